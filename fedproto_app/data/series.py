"""The result of every source of series: one client's series on the source's clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.clock import Clock, Matrix, clock_of, common_step, on_the_clock
from fedproto_app.data.row_order import RowName, TimedRows, row_number


@dataclass(frozen=True)
class ColumnNames:
    """The names of a table's columns, "" for those that it lacks, and how its text is written.

    values, clients: of a long table; in a wide one every client is a column of its name. delimiter:
    between cells. decimal: the sign in numbers.
    """

    times: str = ""
    values: str = ""
    clients: str = ""
    delimiter: str = ","
    decimal: str = "."


@dataclass(frozen=True)
class ClientSeries:
    """The raw series of one client.

    name: unique within its source; it seeds the client's randomness and names its state.
    values: [T] float64, regularly sampled, NaN where a value is missing.
    start: position of ``values[0]`` on the source's clock, in sampling steps. Equal positions of
        two clients are the same time, and positions that are equal modulo the period have the same
        phase (hour of the day); this aligns the rows of prototypes across clients.
    clock: the meaning of positions, None if the source has no times.
    columns: the columns of the table that the series comes from, None if it is no such table.
    group: the client's true group if the source knows it (synthetic data), else "".
    notes: what a person should know of how the source was read, such as rows that were sorted.
    """

    name: str
    values: NDArray[np.float64]
    start: int = 0
    group: str = ""
    clock: Clock | None = None
    columns: ColumnNames | None = None
    notes: tuple[str, ...] = ()


def counted_columns(
    names: Sequence[str],
    values: Matrix,
    notes: tuple[str, ...] = (),
    columns: ColumnNames | None = None,
) -> Iterator[ClientSeries]:
    """Yield a client for each column of values [T, N] without times; all start at 0."""
    for name, column in zip(names, values.T, strict=True):
        yield ClientSeries(name, column, columns=columns, notes=notes)


def columns_on_a_clock(
    names: Sequence[str],
    rows: TimedRows,
    where: object,
    step: np.timedelta64 | None = None,
    row: RowName = row_number,
    *,
    may_lack_rows: bool = False,
    columns: ColumnNames | None = None,
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
        yield ClientSeries(name, column, start, clock=clock, columns=columns, notes=rows.notes)


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
