"""Build series from columns that share a clock, in a table or in a user's DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Matrix, clock_of, on_the_clock, sampling_step
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.stamps import Stamps

if TYPE_CHECKING:
    from pandas import DataFrame


def series_of(frame: DataFrame) -> list[ClientSeries]:
    """Return a client for each column, in order; NaN is a missing value.

    Times with a zone are converted to UTC, others are taken as written. If the index holds no
    times, rows are only counted. Raises `DataError` for columns that are not numeric or share a
    name, and for times that are unordered, repeated or irregular.
    """
    import pandas as pd

    names = [str(name) for name in frame.columns]
    if len(set(names)) != len(names):
        raise DataError(f"the frame: two columns have one name: {names}")
    for name, kind in zip(names, frame.dtypes, strict=True):
        if kind.kind not in "iuf":
            raise DataError(f"the frame: column {name!r} holds {kind}, expected numbers")
    stamps = None
    if isinstance(frame.index, pd.DatetimeIndex):
        utc = frame.index.tz is not None
        naive = frame.index.tz_convert("UTC").tz_localize(None) if utc else frame.index
        stamps = Stamps(naive.to_numpy(dtype="datetime64[us]"), utc)
    return list(columns_on_a_clock(names, frame.to_numpy(dtype=np.float64), stamps, "the frame"))


def columns_on_a_clock(
    names: Sequence[str],
    values: Matrix,
    stamps: Stamps | None,
    where: object,
    step: np.timedelta64 | None = None,
    row: Callable[[int], str] = lambda place: f"row {place + 1}",
) -> Iterator[ClientSeries]:
    """Yield a client for each column, on the regular grid of the step.

    values: [T, N]. step: the step shared with other files; None: the step of these stamps. Raises
    the same `DataError` as `on_the_clock`.
    """
    start, clock = 0, None
    if stamps is not None:
        step = step or sampling_step(stamps.times)
        values, start = on_the_clock(stamps.times, values, step, where, row)
        clock = None if stamps.is_count else clock_of(stamps.times, step, utc=stamps.utc)
    for name, column in zip(names, values.T, strict=True):
        yield ClientSeries(name, column, start, clock=clock)
