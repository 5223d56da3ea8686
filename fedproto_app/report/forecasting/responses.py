"""The charts of clients' responses to the columns that are known in advance.

A simulation leaves the responses in its run folder; deployed nodes keep them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.charts import Axis, Chart, DotRow, Dots, Line, Lines, Section, number
from fedproto_app.core.errors import FedProtoError
from fedproto_app.data.known_columns import YEAR_COLUMNS
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import train_part
from fedproto_app.report.forecasting.examples import kept_responses, ranked_clients
from fedproto_app.report.runs import read_run
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.response.curve import curve, trained_range
from fedproto_app.strategies.response.features import Response

POINTS = 41  # of a curve
BAND = 80  # percent of the clients
_MOST_CLIENTS, _MOST_COLUMNS, _SHOWN = 200, 6, 3
_BINS, _HEIGHT = 30, 0.15  # of the area of values, its height as a share of the curves
_CHANGE = "change (standard deviations)"

_log = logging.getLogger(__name__)
Vector = NDArray[np.float64]


def response_sections(run_dir: Path) -> list[Section]:
    """Return the section on the responses of a simulation's clients, [] if it has none."""
    charts = response_charts(run_dir)
    if not charts:
        return []
    about = (
        "By how much a forecast differs while a column lasts at a value, instead of at the mean of "
        "all clients, in standard deviations of the client's series. Other columns stay as they "
        f"are. The band holds the middle {BAND}% of the clients. The lines of single clients, with "
        "the best, the median and the worst test error, end where their training data end. The "
        "area at the bottom shows where the training data of all clients are."
    )
    return [Section("What the columns known in advance change", about, charts)]


def response_charts(run_dir: Path) -> list[Chart]:
    """Return the charts of the columns that change most, and one of all columns of 0 and 1.

    [] without a response, without the node state of a simulation, or if its data are gone.
    """
    try:
        settings = settings_from(read_run(run_dir).settings)
        if not settings.has_response or not (run_dir / "state").is_dir():
            return []
        responses = kept_responses(run_dir, ranked_clients(run_dir, _MOST_CLIENTS))
        series = {client.name: client for client in load_series(settings.data)}
        if missing := sorted(set(responses) - set(series)):
            raise FedProtoError(f"client {missing[0]!r} is not in the data, which have changed")
    except (FedProtoError, OSError) as error:
        _log.info("%s: no responses to show: %s", run_dir, error)
        return []
    return _charts(responses, series, settings) if responses else []


def _charts(
    responses: Mapping[str, Response], series: Mapping[str, ClientSeries], settings: Settings
) -> list[Chart]:
    names = series[next(iter(responses))].columns
    columns = [response.columns for response in responses.values()]
    is_used = np.any([one.is_used for one in columns], axis=0)
    is_plain = np.all([one.is_plain for one in columns], axis=0)
    lines, rows = [], []
    for place, name in enumerate(names):
        if not is_used[place] or name in YEAR_COLUMNS:
            continue
        if is_plain[place]:
            rows.append(_effects(name, place, responses, settings.data.period))
            continue
        ends = np.array([trained_range(response, place) for response in responses.values()])
        if ends.min() < ends.max():
            values = [
                client.known[train_part(client, settings.data), place]
                for client in (series[client] for client in responses)
            ]
            lines.append(_curves(name, place, responses, ends, np.concatenate(values), settings))
    lines.sort(key=lambda chart: -float(np.ptp(chart.lines[0].y)))
    most = _MOST_COLUMNS - bool(rows)
    return [*lines[:most], *([_dots(rows)] if rows else [])]


def _curves(
    name: str,
    place: int,
    responses: Mapping[str, Response],
    ends: Vector,
    values: Vector,
    settings: Settings,
) -> Lines:
    """Return the chart of a column; its first line is the median.

    ends: [K, 2] of the clients' ranges. values: [n], of all clients' train parts.
    """
    x = np.linspace(ends.min(), ends.max(), POINTS)
    mean = np.mean([response.columns.mean[0, place] for response in responses.values()])
    period, points = settings.data.period, np.append(x, mean)
    curves = np.array([curve(response, place, points, period) for response in responses.values()])
    curves = (curves - curves[:, -1:])[:, :-1]  # a client alone has another mean
    low, middle, high = np.percentile(curves, [50 - BAND / 2, 50, 50 + BAND / 2], axis=0)
    band = np.stack([middle - low, high - middle])
    lines = [Line("median of the clients", x, middle, 0, {f"{BAND}% of the clients": band})]
    for look, client in enumerate(list(responses)[:_SHOWN], start=1):
        low_end, high_end = ends[look - 1]
        has_data = (x >= low_end) & (x <= high_end)
        lines.append(Line(client, x, np.where(has_data, curves[look - 1], np.nan), look))
    shown = np.concatenate([low, high, curves[:_SHOWN].ravel()])
    first, last = (f"{number(middle[at])} at {number(x[at])}" for at in (0, -1))
    return Lines(
        name,
        f"Line chart of what {name} changes; median of the clients: {first}, {last}.",
        Axis(name),
        Axis(_CHANGE),
        [*lines, _data(values, x, shown.min(), shown.max())],
    )


def _data(values: Vector, x: Vector, bottom: float, top: float) -> Line:
    """Return an area along the bottom that is high where there are many values."""
    counts, edges = np.histogram(values, bins=_BINS, range=(x[0], x[-1]))
    height = _HEIGHT * ((top - bottom) or 1.0) * counts / max(1, counts.max())
    middles = (edges[:-1] + edges[1:]) / 2
    below = np.full(_BINS, bottom - _HEIGHT * (top - bottom))
    label = "training data"
    return Line(label, middles, below, None, {label: np.stack([0 * height, height])})


def _effects(name: str, place: int, responses: Mapping[str, Response], period: int) -> DotRow:
    """Return a dot per client: what a column of 0 and 1 changes where it is 1 instead of 0."""
    ends = np.array([0.0, 1.0])
    values = np.array([np.diff(curve(r, place, ends, period))[0] for r in responses.values()])
    return DotRow(name, values, list(responses), float(np.median(values)))


def _dots(rows: Sequence[DotRow]) -> Dots:
    medians = ", ".join(f"{row.label} {number(row.middle or 0.0)}" for row in rows)
    text = f"Dots of what columns of 0 and 1 change for each client. Medians: {medians}."
    return Dots("1 instead of 0", text, Axis(_CHANGE), rows)
