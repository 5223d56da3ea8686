"""The result of every source of series: one client's series on the source's clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Clock, Matrix, common_clock, on_the_clock
from fedproto_app.data.row_order import RowName, TimedRows, row_number


@dataclass(frozen=True)
class ColumnNames:
    """The names of a table's columns, "" for those that it lacks, and how its text is written.

    values, clients: of a long table. In a wide table every client is a column of its name.
    delimiter: between cells. decimal: the sign in numbers.
    """

    times: str = ""
    values: str = ""
    clients: str = ""
    delimiter: str = ","
    decimal: str = "."


@dataclass(frozen=True)
class ClientSeries:
    """One client's values and columns known in advance, on one clock.

    name: unique within its source; it seeds the client's randomness and names its state.
    values: [T] float64, regularly sampled, NaN where a value is missing.
    start: position of ``values[0]`` on the source's clock, in steps. Equal positions of
        two clients are the same time, and positions that are equal modulo the period have the same
        phase (hour of the day). This aligns the rows of prototypes across clients.
    clock: the meaning of positions, None if the source has no times.
    known: [T', k] float64 with T' ≥ T, the columns known in advance, such as a weather forecast.
        Row t is of the time of ``values[t]``, and rows after the last value are of the times to
        be forecast. NaN where a value is missing.
    columns: the names of these columns, k of them.
    table: the columns of the table that the series comes from, None if it is no such table.
    group: the client's true group if the source knows it (synthetic data), else "".
    notes: what a person should know of how the source was read, such as rows that were sorted.
    """

    name: str
    values: NDArray[np.float64]
    start: int = 0
    group: str = ""
    clock: Clock | None = None
    known: Matrix = field(default_factory=lambda: np.empty((0, 0)))
    columns: tuple[str, ...] = ()
    table: ColumnNames | None = None
    notes: tuple[str, ...] = ()

    @property
    def end(self) -> int:
        """The position after the last value, on the source's clock."""
        return self.start + len(self.values)

    @property
    def future(self) -> Matrix:
        """The known columns after the last value, up to the first row that lacks one, [F, k]."""
        rows = self.known[len(self.values) :]
        lacks = np.isnan(rows).any(axis=1)
        return rows[: int(lacks.argmax()) if lacks.any() else None]

    def when(self, row: int) -> str:
        """Return the time of a row, or its position if the source has no times."""
        position = self.start + row
        return str(position) if self.clock is None else self.clock.time(position)

    def part(self, first: int, end: int | None = None) -> ClientSeries:
        """Return the series with the values from number `first` up to `end` alone.

        end: None or more than there are: up to the last value. The known columns begin with the
        first value, but they are not cut at the end, because a weather forecast for tomorrow is
        known today however many values are left out.
        """
        values = self.values[first : None if end is None else max(first, end)]
        return replace(self, values=values, known=self.known[first:], start=self.start + first)

    def with_future(self, future: Matrix) -> ClientSeries:
        """Return the series with these rows [n, k] of the known columns after its last value.

        They take the place of those that it had. Raises `DataError` for another number of columns.
        """
        if future.ndim != 2 or future.shape[1] != len(self.columns):
            names = f" ({', '.join(self.columns)})" if self.columns else ""
            raise DataError(
                f"client {self.name!r}: its future is an array {future.shape}, expected a column "
                f"for each of its {len(self.columns)} known columns{names}"
            )
        past = self.known[: len(self.values)]
        return replace(self, known=np.concatenate([past, future]) if self.columns else past)


def counted_columns(
    names: Sequence[str],
    values: Matrix,
    notes: tuple[str, ...] = (),
    columns: ColumnNames | None = None,
    known: tuple[str, ...] = (),
) -> Iterator[ClientSeries]:
    """Yield a client for each column of values [T, N + k] without times. All start at 0.

    known: the names of the last k columns, with values known in advance.
    """
    clients = values.T[: len(names)]
    for name, column in zip(names, clients, strict=True):
        series = ClientSeries(name, column, table=columns, notes=notes)
        yield replace(series, known=values[:, len(names) :], columns=known) if known else series


def columns_on_a_clock(
    names: Sequence[str],
    rows: TimedRows,
    where: object,
    clock: Clock | None = None,
    row: RowName = row_number,
    *,
    may_lack_rows: bool = False,
    columns: ColumnNames | None = None,
    known: tuple[str, ...] = (),
) -> Iterator[ClientSeries]:
    """Yield a client for each column of values, on the regular grid of the clock.

    rows: their values are [T, N + k]. known: the names of the last k columns, see above.
    clock: shared with other clients, None for these rows' clock. row: the name of a row
    in messages, by its place in the file. may_lack_rows: see `on_the_clock`, whose `DataError` this
    raises too.
    """
    stamps = rows.stamps
    clock = clock or common_clock([stamps], may_lack_rows=may_lack_rows)
    clock = clock.at(stamps.times) if clock and len(stamps.times) else clock
    values, start = on_the_clock(
        stamps.times,
        rows.values,
        clock,
        where,
        lambda place: row(int(rows.places[place])),
        may_lack_rows=may_lack_rows,
    )
    clock = None if stamps.is_count or not len(stamps.times) else clock
    for series in counted_columns(names, values, rows.notes, columns, known):
        yield replace(series, start=start, clock=clock)


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
