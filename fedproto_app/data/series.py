"""The result of every source of series: one client's series on the source's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Clock, Matrix, Stamps, clock_of, on_the_clock, sampling_step

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class ClientSeries:
    """The raw series of one client.

    name: unique within its source; it seeds the client's randomness and names its state.
    values: [T] float64, regularly sampled, NaN where a value is missing.
    start: position of ``values[0]`` on the source's clock, in sampling steps. Equal positions of
        two clients are the same time, and positions that are equal modulo the period have the same
        phase (hour of the day); this aligns the rows of prototypes across clients.
    clock: the meaning of positions, None if the source has no times.
    group: the client's true group if the source knows it (synthetic data), else "".
    """

    name: str
    values: NDArray[np.float64]
    start: int = 0
    group: str = ""
    clock: Clock | None = None


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
