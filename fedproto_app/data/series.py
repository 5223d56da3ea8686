"""The result of every source of series: one client's series on the source's clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Clock, Matrix, Stamps, clock_of, common_step, on_the_clock
from fedproto_app.data.row_order import RowName, TimedRows, in_order, row_number

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
    notes: what a person should know of how the source was read, such as rows that were sorted.
    """

    name: str
    values: NDArray[np.float64]
    start: int = 0
    group: str = ""
    clock: Clock | None = None
    notes: tuple[str, ...] = ()


def series_of(frame: DataFrame) -> list[ClientSeries]:
    """Return a client for each column, in order; NaN is a missing value.

    Times with a zone are converted to UTC, others are taken as written. Rows are sorted by time. If
    the index holds no times, rows are only counted. Raises `DataError` for columns that are not
    numeric or share a name, and for times that are repeated or irregular.
    """
    import pandas as pd

    names = [str(name) for name in frame.columns]
    if len(set(names)) != len(names):
        raise DataError(f"the frame: two columns have one name: {names}")
    for name, kind in zip(names, frame.dtypes, strict=True):
        if kind.kind not in "iuf":
            raise DataError(f"the frame: column {name!r} holds {kind}, expected numbers")
    values = frame.to_numpy(dtype=np.float64)
    if not isinstance(frame.index, pd.DatetimeIndex):
        return list(counted_columns(names, values))
    utc = frame.index.tz is not None
    naive = frame.index.tz_convert("UTC").tz_localize(None) if utc else frame.index
    stamps = Stamps(naive.to_numpy(dtype="datetime64[us]"), utc)
    return list(columns_on_a_clock(names, in_order(stamps, values, "the frame"), "the frame"))


def counted_columns(
    names: Sequence[str], values: Matrix, notes: tuple[str, ...] = ()
) -> Iterator[ClientSeries]:
    """Yield a client for each column of values [T, N] without times; all start at 0."""
    for name, column in zip(names, values.T, strict=True):
        yield ClientSeries(name, column, notes=notes)


def columns_on_a_clock(
    names: Sequence[str],
    rows: TimedRows,
    where: object,
    step: np.timedelta64 | None = None,
    row: RowName = row_number,
    *,
    may_lack_rows: bool = False,
) -> Iterator[ClientSeries]:
    """Yield a client for each column of values, on the regular grid of the step.

    step: the step shared with other files; None: the step of these rows. row: the name of a row in
    messages, by its place in the file. may_lack_rows: see `on_the_clock`, whose `DataError` this
    raises too.
    """
    stamps = rows.stamps
    step = step or common_step([stamps.times], may_lack_rows=may_lack_rows)
    values, start = on_the_clock(
        stamps.times,
        rows.values,
        step,
        where,
        lambda place: row(int(rows.places[place])),
        may_lack_rows=may_lack_rows,
    )
    clock = None if stamps.is_count else clock_of(stamps.times, step, utc=stamps.utc)
    for name, column in zip(names, values.T, strict=True):
        yield ClientSeries(name, column, start, clock=clock, notes=rows.notes)


def notes_of(clients: Sequence[ClientSeries]) -> list[str]:
    """Return what a person should know of how the source was read, a line each."""
    names: dict[str, list[str]] = {}
    for client in clients:
        for note in client.notes:
            names.setdefault(note, []).append(client.name)
    return [
        note
        if len(of_note) == len(clients)
        else f"{of_note[0]}{f' and {more} more' if (more := len(of_note) - 1) else ''}: {note}"
        for note, of_note in names.items()
    ]
