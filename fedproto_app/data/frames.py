"""Series out of columns of one clock: those of a table, or of a user's DataFrame."""

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
    """The clients in the order of the columns; NaN is a missing value.

    Times with a zone are counted in UTC, others as they are; an index of another kind only counts.
    Raises `DataError` for columns that are no numbers or have a name in common, and for times that
    are unordered, repeated or irregular.
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
    """A client per column, on the grid of their step.

    values: [T, N]. step: of the clock that these share with others; None: their own. Raises
    `DataError` as `on_the_clock`.
    """
    start, clock = 0, None
    if stamps is not None:
        step = step or sampling_step(stamps.times)
        values, start = on_the_clock(stamps.times, values, step, where, row)
        clock = None if stamps.counted else clock_of(stamps.times, step, utc=stamps.utc)
    for name, column in zip(names, values.T, strict=True):
        yield ClientSeries(name, column, start, clock=clock)
