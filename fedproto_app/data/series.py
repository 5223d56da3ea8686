"""The series of one client on the source's clock. Every source of series returns such objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import (
    LARGEST_GRID_PER_ROW,
    Clock,
    Matrix,
    Times,
    common_clock,
    on_the_clock,
    sampling_step,
)
from fedproto_app.data.row_order import FileRows, TimedRows, in_order, with_counts
from fedproto_app.settings import DataSettings


@dataclass(frozen=True)
class ColumnNames:
    """The names of a table's columns, "" for those that it lacks, and how its text is written.

    values, clients: only for a long table. In a wide table, each client is a column with its name.
    delimiter: the sign between cells. decimal: the decimal sign in numbers.
    """

    times: str = ""
    values: str = ""
    clients: str = ""
    delimiter: str = ","
    decimal: str = "."


@dataclass(frozen=True)
class ClientSeries:
    """One client's values and columns known in advance, on one clock.

    name: unique within its source. It seeds the client's randomness and names its state.
    values: [T] float64, regularly sampled, NaN where a value is missing.
    start: position of ``values[0]`` on the source's clock, in steps. Equal positions of
        two clients are the same time, and positions that are equal modulo the period have the same
        phase (hour of the day). This aligns the rows of prototypes across clients.
    clock: the times of the positions, None if the source has no times.
    known: [T', k] float64 with T' ≥ T, the columns known in advance, such as a weather forecast.
        Row t belongs to the time of ``values[t]``, and rows after the last value belong to the
        times to be forecast. NaN where a value is missing.
    columns: the k names of these columns.
    table: the columns of the table that the series comes from, None if it comes from no table.
    group: the client's true group if the source knows it, as for synthetic data, else "".
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
        """The known columns after the last value, [F, k], up to the first incomplete row."""
        rows = self.known[len(self.values) :]
        lacks = np.isnan(rows).any(axis=1)
        return rows[: int(lacks.argmax()) if lacks.any() else None]

    def when(self, row: int) -> str:
        """Return the time of a row, or its position if the source has no times."""
        position = self.start + row
        return str(position) if self.clock is None else self.clock.time(position)

    def part(self, first: int, end: int | None = None) -> ClientSeries:
        """Return the series with only the values from number `first` up to `end`.

        If end is None or larger than the number of values, the part goes up to the last value. The
        known columns begin with the first value. They are not cut at the end, because a weather
        forecast for tomorrow exists today, however many values are left out.
        """
        values = self.values[first : None if end is None else max(first, end)]
        return replace(self, values=values, known=self.known[first:], start=self.start + first)

    def with_future(self, future: Matrix) -> ClientSeries:
        """Return the series with these rows [n, k] as its known columns after the last value.

        They replace any others there.
        """
        past = self.known[: len(self.values)]
        return replace(self, known=np.concatenate([past, future]))


def series_of(
    sources: Sequence[FileRows],
    settings: DataSettings,
    table: ColumnNames | None = None,
    known: tuple[str, ...] = (),
    usual: Clock | None = None,
) -> Iterator[ClientSeries]:
    """Yield the clients of these rows on the regular grid of their common clock.

    sources: either all have times or none has. Without times, all clients start at 0. table: the
    columns of the table that they come from. known: the names of the last columns of values.
    usual: the clock to use if the times show none. If it is a clock of the calendar, it is used in
    any case, and rows on days without a step are left out.

    Raises `DataError` for times that cannot be put in order or that do not fit the clock.
    """
    if sources[0].stamps is not None:
        placed = _on_one_clock(sources, settings, usual)
    elif settings.time_zone:
        raise DataError(
            f"data.time-zone = {settings.time_zone!r}: {sources[0].where} has no column of times"
        )
    else:
        placed = ((source.values, 0, None, source.notes) for source in sources)
    for source, (values, start, clock, notes) in zip(sources, placed, strict=True):
        clients, count = source.clients, len(source.clients)
        in_advance = values[:, count:] if known else np.empty((0, 0))
        for name, of_client in zip(clients, values.T[:count], strict=True):
            series = ClientSeries(name, of_client, start, clock=clock, table=table, notes=notes)
            yield replace(series, known=in_advance, columns=known)


def _on_one_clock(
    sources: Sequence[FileRows], settings: DataSettings, usual: Clock | None
) -> Iterator[tuple[Matrix, int, Clock | None, tuple[str, ...]]]:
    """Yield for each source its values on the grid, their start, their clock and the notes."""
    may_lack_rows = settings.missing == "zero"
    zone, repeated = settings.time_zone, settings.repeated
    ordered = with_counts([in_order(source, zone, repeated) for source in sources])
    common = common_clock((rows.stamps for rows in ordered), may_lack_rows=may_lack_rows)
    if usual is not None and (common is None or usual.is_of_calendar):
        common, ordered = usual, [_on_days_of(usual, rows) for rows in ordered]
    for source, rows in zip(sources, ordered, strict=True):
        times = rows.stamps.times
        if not may_lack_rows:
            _require_step(times, common, source.where)
        clock = common.shifted_to(times) if common and len(times) else common

        def row(place: int, source: FileRows = source, rows: TimedRows = rows) -> str:
            return source.row(int(rows.places[place]))

        values, start = on_the_clock(
            times, rows.values, clock, source.where, row, may_lack_rows=may_lack_rows
        )
        has_clock = not rows.stamps.is_count and len(times)
        yield values, start, clock if has_clock else None, rows.notes


def _on_days_of(clock: Clock, rows: TimedRows) -> TimedRows:
    """Leave out the rows on weekdays that have no step, and add a note about it."""
    has_step = np.is_busday(rows.stamps.times.astype("datetime64[D]"), weekmask=clock.week)
    if clock.months or has_step.all():
        return rows
    note = f"rows on days without a step are left out: {clock.words}"
    stamps = replace(rows.stamps, times=rows.stamps.times[has_step])
    return TimedRows(stamps, rows.values[has_step], rows.places[has_step], (*rows.notes, note))


def _require_step(times: Times, clock: Clock | None, where: object) -> None:
    """Raise `DataError` if a client's step differs. Else its rows would be called irregular."""
    step = sampling_step(times)
    if step is None or clock is None or clock.is_of_calendar:
        return
    if step % clock.step or step > LARGEST_GRID_PER_ROW * clock.step:
        raise DataError(
            f"{where}: its times are mostly {step.item()} apart, but the step of all "
            f"clients is {clock.step.item()}; resample them to one step"
        )


def notes_of(clients: Sequence[ClientSeries]) -> list[str]:
    """Return notes on how the source was read that a person should know, one per line."""
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
