"""The moments of the known columns, which add up over clients and give everybody the same φ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedproto_app.data.known_columns import YEAR_COLUMNS
from fedproto_app.data.series import ClientSeries
from fedproto_app.strategies.response.features import (
    WIDTHS,
    Columns,
    Floats,
    filled,
    trailing_means,
)

_YEAR = 365 * 86_400  # seconds
_OTHER_UNIT = 100.0  # columns whose sizes differ by a larger factor are in different units


class Moments(NamedTuple):
    """Sums over clients, for the columns and their trailing means [3, k].

    mean: the sum of the clients' means. square: the sum of the squares of these means. variance:
    the sum of the clients' variances. clients: [k], the number of clients that have a value of the
    column. numeric: [k], the number that have a value other than 0 and 1. years: [1], the number
    that have a year of values.
    """

    mean: Floats
    square: Floats
    variance: Floats
    clients: Floats
    numeric: Floats
    years: Floats

    def less(self, client: Moments) -> Moments:
        """Return these sums without one client's."""
        totals: Iterator[Floats] = iter(self)
        return Moments(*(total - value for total, value in zip(totals, client, strict=True)))

    @property
    def size(self) -> Floats:
        """The root mean square of each column, [k], or 0 for a column that no client has."""
        squares = (self.square[0] + self.variance[0]) / np.maximum(self.clients, 1)
        size: Floats = np.sqrt(np.maximum(squares, 0.0))
        return size

    def columns(self, names: Sequence[str]) -> Columns:
        """Return the `Columns` that standardise everybody's columns."""
        clients = np.maximum(self.clients, 1)
        mean = self.mean / clients
        variance = self.variance / clients + np.maximum(self.square / clients - mean**2, 0)
        is_year = np.isin(names, YEAR_COLUMNS)
        return Columns(
            mean,
            np.sqrt(np.maximum(variance, 0.0)),
            is_plain=(self.numeric < 0.5) | is_year,
            is_used=(self.clients > 0.5) & ~(is_year & (self.years[0] < 0.5)),
        )


def stated_moments(scales: Mapping[str, tuple[float, float]], names: Sequence[str]) -> Moments:
    """Return moments with these means and deviations. Other columns have mean 0, deviation 1."""
    mean, deviation = np.array([scales.get(name, (0.0, 1.0)) for name in names]).reshape(-1, 2).T
    wide = np.ones((WIDTHS, 1))
    is_numeric = np.isin(names, list(scales)).astype(float)
    clients = np.ones(len(names))
    variance = wide * deviation**2
    return Moments(wide * mean, wide * mean**2, variance, clients, is_numeric, np.ones(1))


def moments_of(series: ClientSeries, train: slice, period: int) -> Moments:
    """Return a client's moments over its train part, all 0 for a column without values there."""
    known = series.known[: max(1, train.stop)]  # a client may have no train part
    has_value = np.isfinite(known[train]).any(axis=0)
    wide = trailing_means(np.nan_to_num(filled(known)), period)[train]
    first = np.isfinite(known).argmax(axis=0)
    later = np.arange(train.start, train.stop)[:, None] >= first  # zeros before the first value
    is_present = (later & has_value)[:, None].repeat(WIDTHS, axis=1)
    count = np.maximum(is_present.sum(axis=0), 1)
    mean = np.where(is_present, wide, 0.0).sum(axis=0) / count
    variance = np.where(is_present, (wide - mean) ** 2, 0.0).sum(axis=0) / count
    is_numeric = np.isfinite(known[train]) & ~np.isin(known[train], (0.0, 1.0))
    step = 0.0 if series.clock is None else series.clock.step_seconds
    has_year = (train.stop - train.start) * step >= _YEAR
    return Moments(
        mean,
        mean**2,
        variance,
        has_value.astype(float),
        is_numeric.any(axis=0).astype(float),
        np.array([float(has_year)]),
    )


def unit_fault(client: Moments, total: Moments, names: Sequence[str]) -> str | None:
    """Return which column of a client is far larger than in the total, or than in the total without
    the client, as if it were in another unit. Return None if there is none."""
    remainder = total.less(client)
    for column, name in enumerate(names):
        size, sizes = client.size[column], [total.size[column]]
        square = remainder.square[0, column] + remainder.variance[0, column]
        if remainder.clients[column] > 0.5 and square >= 0:
            sizes.append(remainder.size[column])
        usual = min(sizes)
        if usual > 0 and size > _OTHER_UNIT * usual:
            return (
                f"its column {name!r} is about {size / usual:.0f} times as large as other "
                "clients': is it in another unit?"
            )
    return None
