"""Turn time stamps into positions on one clock: the sampling step, the start, the gaps.

A position is the number of whole steps since 1970-01-01 00:00. Counted from one origin, equal
wall-clock hours have equal phase in every file and at every site, whenever recording began.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError

Times = NDArray[np.datetime64]
Matrix = NDArray[np.float64]

# A grid with more gaps than rows is a wrong step or a wrong year, not a few missing rows.
LARGEST_GRID_PER_ROW = 2


@dataclass(frozen=True)
class Clock:
    """The meaning of a position: position k is the time offset + k · step after 1970-01-01 00:00.

    offset: less than a step, for times that are not a whole number of steps after 1970. utc: True
    if the source's times had an offset from UTC and were converted to UTC.
    """

    step: np.timedelta64
    offset: np.timedelta64
    utc: bool = False

    @property
    def label(self) -> str:
        """A short text that is equal for equal clocks."""
        return f"{self.step} {self.offset}{' utc' if self.utc else ''}"

    def moments(self, positions: NDArray[np.int64]) -> Times:
        """Return the times at positions, in microseconds, without a zone."""
        return np.datetime64(0, "us") + self.offset + positions * self.step

    def seconds(self, positions: NDArray[np.int64]) -> Matrix:
        """Return the times at positions, in seconds since 1970."""
        return self.moments(positions).astype("datetime64[us]").astype(np.float64) / 1e6

    def time(self, position: int) -> str:
        """Return the time at a position in ISO 8601; only the date if steps are whole days."""
        time = np.datetime64(0, "us") + self.offset + position * self.step
        day = np.timedelta64(1, "D")
        if not self.utc and not self.step % day and not self.offset % day:
            return str(time.astype("datetime64[D]"))
        return _text(time) + ("+00:00" if self.utc else "")


def clock_of(times: Times, step: np.timedelta64 | None, *, utc: bool = False) -> Clock | None:
    """Return the clock of a file's times, None if their step is unknown."""
    if step is None or len(times) == 0:
        return None
    return Clock(step, (times[0] - np.datetime64(0, "us")) % step, utc)


def sampling_step(times: Times) -> np.timedelta64 | None:
    """Return the most common distance between neighbouring times; None for fewer than two times."""
    return common_step([times])


def common_step(files: Iterable[Times]) -> np.timedelta64 | None:
    """Return the `sampling_step` over the times of several clients."""
    distances = [np.diff(times) for times in files if len(times) > 1]
    if not distances:
        return None
    steps, counts = np.unique(np.concatenate(distances), return_counts=True)
    return np.timedelta64(steps[np.argmax(counts)])


def on_the_clock(
    times: Times,
    values: Matrix,
    step: np.timedelta64 | None,
    where: object,
    row: Callable[[int], str] = lambda place: f"row {place + 1}",
) -> tuple[Matrix, int]:
    """Put rows on the regular grid of their step; missing rows become NaN.

    times: [T] strictly increasing, whole steps apart. values: [T, N].
    step: None only if there is at most one row, which then starts at 0.
    where: the file's name in messages. row: the name of a row in messages, by its place.

    Returns the values [T', N], T' >= T, and the position of the first row. Raises `DataError` for
    times that are missing, unordered, repeated, irregular or mostly gaps.
    """
    _require_increasing(times, where, row)
    if step is None or len(times) == 0:
        return values, 0
    offsets = times - times[0]
    irregular = np.flatnonzero(offsets % step)
    if irregular.size:
        late = int(irregular[0])
        raise DataError(
            f"{where}: irregular times: {_text(times[late])} in {row(late)} lies "
            f"{_text(times[late] - times[0])} after the first, which is no multiple of the step "
            f"{_text(step)}; bring all rows to one step"
        )
    rows = (offsets // step).astype(np.int64)
    length = int(rows[-1]) + 1
    if length > LARGEST_GRID_PER_ROW * len(times):
        raise DataError(
            f"{where}: {len(times)} rows in {length} steps of {_text(step)}: more gaps than rows; "
            "is a time wrong, or the step longer in a part of them?"
        )
    grid = np.full((length, values.shape[1]), np.nan)
    grid[rows] = values
    origin = np.datetime64(0, "us")
    return grid, int((times[0] - origin) // step)


def _require_increasing(times: Times, where: object, row: Callable[[int], str]) -> None:
    if np.isnat(times).any():
        raise DataError(f"{where}: {row(int(np.argmax(np.isnat(times))))} has no time")
    disorder = np.flatnonzero(np.diff(times) <= np.timedelta64(0))
    if disorder.size:
        place = int(disorder[0]) + 1
        before, after = times[place - 1], times[place]
        if before == after:
            raise DataError(
                f"{where}: the time {_text(after)} comes twice, again in {row(place)}; keep one of "
                "the rows, or, if clocks were changed, write times with an offset from UTC"
            )
        raise DataError(
            f"{where}: times must increase, but in {row(place)} {_text(after)} follows "
            f"{_text(before)}; sort the rows by time"
        )


def _text(time: np.datetime64 | np.timedelta64) -> str:
    """Return a time as people write it, or a duration as days and hh:mm:ss."""
    return str(time.item())  # in microseconds, these are Python's datetime and timedelta
