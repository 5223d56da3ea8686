"""A response as curves for people to read: how each value of a column changes the forecast."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedproto_app.strategies.response.features import FEATURES, Columns, Floats, Response


def curve(response: Response, column: int, points: Floats, period: int) -> Floats:
    """Return the differences [n] in a client's forecast, on the standard scale of its series, if a
    column stays at each of these points [n] instead of at the mean of all clients.

    If a value stays, the column's trailing means equal it. The differences are means over the
    phases of the period. The columns' effects add up, so the other columns do not matter.
    """
    alone = _of_column(response, column)
    lasting = np.append(points, alone.columns.mean[0]).repeat(2 * period)[:, None]
    values = alone.values(lasting, 0, period).reshape(-1, 2, period)
    means = values[:, 1].mean(axis=1)  # in the second period, the trailing means equal the value
    return np.asarray(means[:-1] - means[-1], dtype=np.float64)


def trained_range(response: Response, column: int) -> tuple[float, float]:
    """Return the least and the greatest value of a column in the client's train part, in the
    column's units. They are cut as the features are."""
    part = response.parts[0]
    ends = np.array([part.lowest[0, column], part.highest[0, column]])
    columns = response.columns
    if not columns.is_plain[column]:
        ends = columns.mean[0, column] + columns.deviation[0, column] * ends
    return float(ends[0]), float(ends[1])


def _of_column(response: Response, column: int) -> Response:
    """Return the response to this column alone."""
    place, columns = [column], response.columns
    parts = tuple(
        replace(
            part,
            coefficients=part.coefficients.reshape(FEATURES, -1)[:, column],
            lowest=part.lowest[:, place],
            highest=part.highest[:, place],
        )
        for part in response.parts
    )
    alone = Columns(
        columns.mean[:, place],
        columns.deviation[:, place],
        columns.is_plain[place],
        columns.is_used[place],
    )
    return Response(alone, parts)
