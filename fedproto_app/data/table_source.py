"""Read series from tables: wide with a column per client, long with a row per client and time, or
a folder with a file per client, whatever their format.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import LARGEST_GRID_PER_ROW, Stamps, Times, common_step, sampling_step
from fedproto_app.data.files import require_inside, require_room
from fedproto_app.data.row_order import TimedRows, TimeTwice, in_order, note_on_repeated
from fedproto_app.data.series import ClientSeries, columns_on_a_clock, counted_columns
from fedproto_app.data.source_checks import chosen, require_available
from fedproto_app.data.table import (
    TIME_NAMES,
    Columns,
    Head,
    Table,
    TableFile,
    is_clock_time,
    is_fraction,
    require_few_columns,
    value_columns,
)
from fedproto_app.settings import DataSettings

if TYPE_CHECKING:
    from pandas import Series

# Usual names of the client column in the long tables of Nixtla, GluonTS and Prophet.
CLIENT_NAMES = ("unique_id", "item_id", "series_id", "client_id", "client")
VALUE_NAMES = ("y", "target")  # usual names of the value column in the same tables

_MOST_COMPARED = 20  # columns, to find what tells two rows apart


@dataclass(frozen=True)
class TableFormat:
    """How files of a format hold tables.

    name: the format's; "csv" makes the sources wide-csv, long-csv and csv-folder. suffix: of its
    files. endings: the same in messages. open: opens a file. keys: the fields of `DataSettings`
    that it takes beside those of all tables. has_parts: whether a long table may be a folder of
    files, whose rows are joined in the order of the files' names, as other programs write it. hint:
    what else a file with several columns may be.
    """

    name: str
    suffix: re.Pattern[str]
    endings: str
    open: Callable[[Path, DataSettings], TableFile]
    keys: tuple[str, ...] = ()
    has_parts: bool = False
    hint: str = ""

    def client_of(self, path: Path) -> str:
        """Return the name of a file's client."""
        return self.suffix.sub("", path.name)


def load_wide(settings: DataSettings, tables: TableFormat) -> Iterator[ClientSeries]:
    """Yield a client for each column of a file."""
    path = Path(settings.path)
    file = tables.open(path, settings)
    chosen_clients = settings.choice.clients
    table = file.read(value_columns(file.head, settings.time_column, chosen_clients, "clients"))
    try:
        rows = _in_order(table, settings)
    except TimeTwice as error:
        raise _with_cause(error, [table], [path], tables, settings) from None
    columns = table.column_names
    if rows is None:
        yield from counted_columns(table.names, table.numbers(), table.notes, columns)
        return
    yield from columns_on_a_clock(
        table.names,
        rows,
        table.where,
        row=table.row_of,
        may_lack_rows=_may_lack_rows(settings),
        columns=columns,
    )


def load_long(settings: DataSettings, tables: TableFormat) -> Iterator[ClientSeries]:
    """Yield the clients of a file with a row for each client and time, or of a folder of parts.

    Clients are in the order of their first rows.
    """
    import pandas as pd

    path = Path(settings.path)
    paths = _files(settings, tables) if path.is_dir() else [path]
    select = partial(long_columns, settings=settings)
    used_tables, chosen_clients = _read(paths, select, tables, settings), settings.choice.clients
    clients_by_table = [table.clients() for table in used_tables]
    clients = pd.concat(clients_by_table, ignore_index=True)
    require_available(
        chosen_clients, list(dict.fromkeys(clients)), "clients", "client", settings.path
    )
    if chosen_clients:
        rows_of = [
            np.flatnonzero(table_clients.isin(chosen_clients)) for table_clients in clients_by_table
        ]
        used_tables = [
            table.select(table_rows)
            for table, table_rows in zip(used_tables, rows_of, strict=True)
            if table_rows.size
        ]
        clients = clients[clients.isin(chosen_clients)].reset_index(drop=True)
    require_few_columns(clients.nunique(), settings.path, "clients")
    values = np.concatenate([table.numbers() for table in used_tables])
    stamps = [table.stamps(settings.time_unit) for table in used_tables]
    _require_alike(used_tables, stamps)
    # No table lacks times: `long_columns` requires them.
    all_stamps = [table_stamps for table_stamps in stamps if table_stamps is not None]
    all_times = np.concatenate([table_stamps.times for table_stamps in all_stamps])
    row_of, zone = _rows_of(used_tables), settings.time_zone
    spellings = _spellings(used_tables, clients)
    notes = (
        *(note for table in used_tables for note in table.notes),
        *(note for table_stamps in all_stamps for note in table_stamps.notes),
        *(f"{' and '.join(map(ascii, of_one))} are read as one client" for of_one in spellings),
    )
    notes = tuple(dict.fromkeys(notes))
    rows: dict[str, TimedRows] = {}
    try:
        for name, indices in clients.groupby(clients, sort=False).indices.items():
            places = np.asarray(indices, dtype=np.intp)
            client_stamps = Stamps(all_times[places], all_stamps[0].utc, all_stamps[0].is_count)
            where = f"{settings.path}: client {name!r}"
            rows[str(name)] = in_order(
                client_stamps, values[places], where, zone, row_of, notes, places
            )
    except TimeTwice as error:
        raise _with_cause(error, used_tables, paths, tables, settings) from None
    rows = _with_repeated(rows)
    may_lack_rows = _may_lack_rows(settings)
    times = [client_rows.stamps.times for client_rows in rows.values()]
    step = common_step(times, may_lack_rows=may_lack_rows)
    for name, client_rows in rows.items():
        where = f"{settings.path}: client {name!r}"
        if not may_lack_rows:
            _require_step(client_rows.stamps.times, step, where)
        yield from columns_on_a_clock(
            [name],
            client_rows,
            where,
            step,
            row_of,
            may_lack_rows=may_lack_rows,
            columns=used_tables[0].column_names,
        )


def load_folder(settings: DataSettings, tables: TableFormat) -> Iterator[ClientSeries]:
    """Yield a client for each file of a folder, named after the file, in order of names."""
    paths = chosen(_files(settings, tables), tables.client_of, settings, settings.path)
    select = partial(_one_column, settings=settings, tables=tables)
    used_tables = _read(paths, select, tables, settings)
    _require_alike(used_tables, [table.stamps(settings.time_unit) for table in used_tables])
    rows = []
    for table, path in zip(used_tables, paths, strict=True):
        try:
            rows.append(_in_order(table, settings))
        except TimeTwice as error:
            raise _with_cause(error, [table], [path], tables, settings) from None
    # All clients share one period, so they need one step; a file with a single row has none.
    may_lack_rows = _may_lack_rows(settings)
    times = [file_rows.stamps.times for file_rows in rows if file_rows is not None]
    step = common_step(times, may_lack_rows=may_lack_rows)
    for path, table, file_rows in zip(paths, used_tables, rows, strict=True):
        name = tables.client_of(path)
        if file_rows is None:
            yield from counted_columns([name], table.numbers(), table.notes)
            continue
        if not may_lack_rows:
            _require_step(file_rows.stamps.times, step, table.where)
        yield from columns_on_a_clock(
            [name], file_rows, path, step, table.row_of, may_lack_rows=may_lack_rows
        )


def _in_order(table: Table, settings: DataSettings) -> TimedRows | None:
    """Return the rows of a table in the order of time, None without a time column."""
    stamps = table.stamps(settings.time_unit)
    if stamps is not None:
        rows = in_order(
            stamps, table.numbers(), table.where, settings.time_zone, table.row_of, table.notes
        )
        return _with_repeated({"": rows})[""]
    if settings.time_zone:
        raise DataError(
            f"data.time-zone = {settings.time_zone!r}: {table.where} has no column of times"
        )
    return None


def _with_repeated(rows: dict[str, TimedRows]) -> dict[str, TimedRows]:
    """Return the rows of all clients with a note on how many of them came again."""
    note = note_on_repeated(sum(of_client.repeated for of_client in rows.values()))
    return {
        name: replace(of_client, notes=(*of_client.notes, *note))
        for name, of_client in rows.items()
    }


def _spellings(tables: Sequence[Table], clients: Series) -> list[list[str]]:
    """Return the spellings of each client that is written in several ways."""
    import pandas as pd

    written = pd.concat([table.written_clients() for table in tables], ignore_index=True)
    differ = (written != clients).to_numpy()
    if not differ.any():
        return []
    names = set(clients[differ])
    several = written[clients.isin(names)].groupby(clients).unique()
    return [sorted(spellings) for spellings in several if len(spellings) > 1]


def _with_cause(
    error: TimeTwice,
    read: Sequence[Table],
    paths: Sequence[Path],
    tables: TableFormat,
    settings: DataSettings,
) -> DataError:
    """Return the error with what tells the two rows apart: the name's spelling or other columns.

    Reads the other columns, so only after an error.
    """
    ends = np.cumsum([len(table.values) for table in read])
    numbers = [int(np.searchsorted(ends, row, side="right")) for row in error.rows]
    if numbers[0] != numbers[1]:
        return error
    table = read[numbers[0]]
    places = [row - int(ends[numbers[0]]) + len(table.values) for row in error.rows]
    client = None if table.columns.clients is None else table.head.names[table.columns.clients]
    if client is not None:
        first, second = (str(table.written_clients().iloc[place]) for place in places)
        if first != second:
            return DataError(
                f"{error}; the client is written {first!a} and {second!a} there: if "
                "these are two clients, give them names that differ by more than blanks or accents"
            )
    rows = [int(table.texts.index[place]) for place in places]
    others = [
        place
        for place, name in enumerate(table.head.names)
        if place not in (*table.columns.read, table.head.index) and name
    ]
    path = next((path for path in paths if str(path) == table.where), paths[0])
    for place in others[:_MOST_COMPARED]:
        try:
            column = tables.open(path, settings).read(Columns([], None, place))
        except DataError:
            continue
        cells = column.texts[place].astype(str).str.strip()
        first, second = (str(cells.loc[row]) for row in rows)
        if first == second or not _is_few_valued(cells):
            continue
        name = table.head.names[place]
        differs = f"{error}; column {name!r} differs between these rows ({first!r}, {second!r}):"
        if is_clock_time(first):
            return DataError(f"{differs} join it with the dates into one column of times")
        if client is None:
            return DataError(
                f"{differs} if it names the clients, --set data.source=long-{tables.name} --set "
                f"data.client-column={shlex.quote(name)} reads them"
            )
        return DataError(
            f"{differs} if it names the clients, set data.client-column to it; if both "
            f"{client!r} and {name!r} do, join them into one column"
        )
    return error


def _is_few_valued(cells: Series) -> bool:
    """Return whether these texts repeat and are no fractions, as names of clients are."""
    return cells.nunique() <= max(2, len(cells) // 2) and not cells.map(is_fraction).any()


def _may_lack_rows(settings: DataSettings) -> bool:
    return settings.missing == "zero"


def _read(
    paths: Sequence[Path],
    select: Callable[[Head], Columns],
    tables: TableFormat,
    settings: DataSettings,
) -> list[Table]:
    """Read the files one by one; raise `DataError` if all together do not fit into memory."""
    read, size = [], 0
    for path in paths:
        file = tables.open(path, settings)
        read.append(file.read(select(file.head)))
        size += read[-1].columns.bytes_of(len(read[-1].values))
        if len(read) > 1:  # the size of a single file was checked when it was read
            require_room(size, settings.path)
    return read


def long_columns(head: Head, settings: DataSettings) -> Columns:
    """Return the columns of clients, times and values of a long table.

    Raises `DataError` if one of them is not set and no column has its usual name.
    """
    choice, names = settings.choice, head.names
    client = _place(head, choice.client_column, "client-column", CLIENT_NAMES, "clients' names")
    times = (
        head.times
        if head.times is not None and not choice.time_column
        else _place(head, choice.time_column, "time-column", TIME_NAMES, "times")
    )
    read_or_skipped = (client, times, head.index)
    value_places = [place for place in range(len(names)) if place not in read_or_skipped]
    value_names = [names[place] for place in value_places]
    require_available(choice.columns, value_names, "columns", "column of values", head.where)
    usual = list(dict.fromkeys(name for name in value_names if name.lower() in VALUE_NAMES))
    selected = choice.columns or (usual if len(usual) == 1 else value_names)
    if len(selected) != 1:
        raise DataError(
            f"{head.where}: {len(selected)} columns of values "
            f"({', '.join(selected[:5]) or 'none'}), but the long form has one; choose it with "
            "data.columns"
        )
    return Columns([head.place(selected[0], "columns")], times, client)


def _place(head: Head, column_name: str, key: str, usual: Collection[str], noun: str) -> int:
    """Return the place of the column that ``data.<key>`` names, or that has a usual name."""
    if column_name:
        return head.place(column_name, key)
    names = [name for name in head.names if name.lower() in usual]
    if not names:
        raise DataError(
            f"{head.where}: which column holds the {noun}? set data.{key} to one of "
            f"{', '.join(head.names[:8])}"
        )
    return head.place(names[0], key)


def _rows_of(tables: Sequence[Table]) -> Callable[[int], str]:
    """Return a function that names a row in messages, by its place in the joined tables."""
    ends = np.cumsum([len(table.values) for table in tables])

    def row_of(place: int) -> str:
        number = int(np.searchsorted(ends, place, side="right"))
        table = tables[number]
        row = table.row_of(place - int(ends[number]) + len(table.values))
        return row if len(tables) == 1 else f"{Path(table.where).name}, {row}"

    return row_of


def _one_column(head: Head, settings: DataSettings, tables: TableFormat) -> Columns:
    """Return the columns of a folder's file: one of values, and one of times if it has any."""
    choice = settings.choice
    columns = value_columns(head, choice.time_column, choice.columns, "columns")
    if len(columns.values) != 1:
        names = ", ".join(head.names[place] for place in columns.values[:5])
        raise DataError(
            f"{head.where}: {len(columns.values)} columns of values ({names}), but source "
            f"{settings.source} reads one per file: choose it with data.columns; a column per "
            f"client is source wide-{tables.name}{tables.hint}"
        )
    return columns


def _files(settings: DataSettings, tables: TableFormat) -> list[Path]:
    """Return the files directly in the folder that have a suffix of the format."""
    folder = Path(settings.path)
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    paths = [path for path in entries if tables.suffix.search(path.name)]
    if not paths:
        deeper = next((path.name for path in entries if path.is_dir()), "")
        hint = f"; folders in it, such as {deeper!r}, are not looked into" if deeper else ""
        texts = [path.name for path in entries if path.suffix.lower() == ".txt"]
        if texts:
            hint = f", but {len(texts)} .txt files, such as {texts[0]!r}: rename them to .csv"
        raise DataError(f"{folder}: the folder holds no {tables.endings} file{hint}")
    for path in paths:
        require_inside(path, folder)
    return paths


def _require_alike(tables: Sequence[Table], stamps: Sequence[Stamps | None]) -> None:
    """Raise `DataError` if only some files have times, or if their kinds of times differ."""
    alike = "phases can be aligned only if all files have it or none"
    kinds: tuple[tuple[Callable[[Stamps | None], bool], str], ...] = (
        (
            lambda times: times is not None,
            f"{{1}} has no time column, but {{0}} has one: {alike}",
        ),
        (
            lambda times: times is not None and times.is_count,
            "{0} counts its steps, but {1} has times: all files have the one or the other",
        ),
        (
            lambda times: times is not None and times.utc,
            f"{{0}} has times with an offset from UTC, but {{1}} without: {alike}",
        ),
    )
    for table, of_table in zip(tables, stamps, strict=True):
        for applies, message in kinds:
            if applies(of_table) != applies(stamps[0]):
                having, lacking = (table, tables[0])[:: 1 if applies(of_table) else -1]
                raise DataError(message.format(having.where, lacking.where))


def _require_step(times: Times, step: np.timedelta64 | None, where: str) -> None:
    """Raise `DataError` for a client with another step, before its rows look irregular."""
    client_step = sampling_step(times)
    if client_step is None or step is None or (np.diff(times) <= 0).any():
        return
    if client_step % step or client_step > LARGEST_GRID_PER_ROW * step:
        raise DataError(
            f"{where}: its times are mostly {client_step.item()} apart, but the step of all "
            f"clients is {step.item()}; resample them to one step"
        )
