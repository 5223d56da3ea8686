"""Read series from tables: wide with a column per client, long with a row per client and time, or
a folder with a file per client. CSV, Parquet and Excel differ only in how a table is read, except
that a long Parquet table may be a folder of parts, as other programs write it.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import LARGEST_GRID_PER_ROW, Stamps, Times, common_step, sampling_step
from fedproto_app.data.excel_table import EXCEL_SUFFIX, read_excel_table
from fedproto_app.data.files import require_inside, require_room
from fedproto_app.data.parquet_table import PARQUET_SUFFIX, read_parquet_table
from fedproto_app.data.row_order import TimedRows, TimeTwice, in_order, note_on_repeated
from fedproto_app.data.series import ClientSeries, columns_on_a_clock, counted_columns
from fedproto_app.data.source_checks import chosen, require_available
from fedproto_app.data.table import (
    TIME_NAMES,
    Columns,
    ColumnSelector,
    Head,
    Table,
    is_clock_time,
    is_fraction,
    require_few_columns,
    value_columns,
)
from fedproto_app.data.text_table import SUFFIX, read_text_table
from fedproto_app.settings import DataSettings

if TYPE_CHECKING:
    from pandas import Series

# Usual names of the client column in the long tables of Nixtla, GluonTS and Prophet.
CLIENT_NAMES = ("unique_id", "item_id", "series_id", "client_id", "client")
VALUE_NAMES = ("y", "target")  # usual names of the value column in the same tables

_MOST_COMPARED = 20  # columns, to find what tells two rows apart
Reader = Callable[[Path, ColumnSelector, DataSettings], Table]


def load_wide(settings: DataSettings, read: Reader | None = None) -> Iterator[ClientSeries]:
    """Yield a client for each column of a file. read: reads the table; None: by its format."""

    def select(head: Head) -> Columns:
        return value_columns(head, settings.time_column, settings.choice.clients, "clients")

    path, read = Path(settings.path), read or _read
    table = read(path, select, settings)
    try:
        rows = _in_order(table, settings)
    except TimeTwice as error:
        raise _with_cause(error, [table], [path], read, settings) from None
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


def load_long(settings: DataSettings, read: Reader | None = None) -> Iterator[ClientSeries]:
    """Yield the clients of a file with a row for each client and time, or of a folder of such
    Parquet files, whose rows are joined in the order of the files' names.

    Clients are in the order of their first rows. read: reads a table; None: by its format.
    """
    import pandas as pd

    path, select_columns = Path(settings.path), partial(long_columns, settings=settings)
    paths = _files(settings) if path.is_dir() else [path]
    read = read or _read
    tables = (read(part_path, select_columns, settings) for part_path in paths)
    used_tables, chosen_clients = _that_fit(settings, tables), settings.choice.clients
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
        raise _with_cause(error, used_tables, paths, read, settings) from None
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


def load_folder(settings: DataSettings) -> Iterator[ClientSeries]:
    """Yield a client for each file of a folder, named after the file, in order of names."""
    select_columns = partial(_one_column, settings=settings)
    paths = chosen(_files(settings), client_of, settings, settings.path)
    tables = _that_fit(settings, (_read(path, select_columns, settings) for path in paths))
    _require_alike(tables, [table.stamps(settings.time_unit) for table in tables])
    rows = []
    for table, path in zip(tables, paths, strict=True):
        try:
            rows.append(_in_order(table, settings))
        except TimeTwice as error:
            raise _with_cause(error, [table], [path], _read, settings) from None
    # All clients share one period, so they need one step; a file with a single row has none.
    may_lack_rows = _may_lack_rows(settings)
    times = [file_rows.stamps.times for file_rows in rows if file_rows is not None]
    step = common_step(times, may_lack_rows=may_lack_rows)
    for path, table, file_rows in zip(paths, tables, rows, strict=True):
        if file_rows is None:
            yield from counted_columns([client_of(path)], table.numbers(), table.notes)
            continue
        if not may_lack_rows:
            _require_step(file_rows.stamps.times, step, table.where)
        yield from columns_on_a_clock(
            [client_of(path)], file_rows, path, step, table.row_of, may_lack_rows=may_lack_rows
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
    tables: Sequence[Table],
    paths: Sequence[Path],
    read: Reader,
    settings: DataSettings,
) -> DataError:
    """Return the error with what tells the two rows apart: the name's spelling or other columns.

    Reads the other columns, so only after an error.
    """
    ends = np.cumsum([len(table.values) for table in tables])
    numbers = [int(np.searchsorted(ends, row, side="right")) for row in error.rows]
    if numbers[0] != numbers[1]:
        return error
    table = tables[numbers[0]]
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
            column = read(path, partial(_texts_of, place), settings)
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
            source = f"long-{settings.source.rpartition('-')[2]}"
            return DataError(
                f"{differs} if it names the clients, --set data.source={source} --set "
                f"data.client-column={shlex.quote(name)} reads them"
            )
        return DataError(
            f"{differs} if it names the clients, set data.client-column to it; if both "
            f"{client!r} and {name!r} do, join them into one column"
        )
    return error


def _texts_of(place: int, _: Head) -> Columns:
    """Return the selection of a single column of texts."""
    return Columns([], None, place)


def _is_few_valued(cells: Series) -> bool:
    """Return whether these texts repeat and are no fractions, as names of clients are."""
    return cells.nunique() <= max(2, len(cells) // 2) and not cells.map(is_fraction).any()


def _may_lack_rows(settings: DataSettings) -> bool:
    return settings.missing == "zero"


def _read(path: Path, select_columns: ColumnSelector, settings: DataSettings) -> Table:
    if "csv" in settings.source:
        return read_text_table(path, str(path), settings, select_columns)
    if "excel" in settings.source:
        return read_excel_table(path, settings, select_columns)
    return read_parquet_table(path, select_columns)


def client_of(path: Path) -> str:
    """Return the name of a file's client."""
    return EXCEL_SUFFIX.sub("", PARQUET_SUFFIX.sub("", SUFFIX.sub("", path.name)))


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


def _one_column(head: Head, settings: DataSettings) -> Columns:
    """Return the columns of a folder's file: one of values, and one of times if it has any."""
    choice = settings.choice
    columns = value_columns(head, choice.time_column, choice.columns, "columns")
    if len(columns.values) != 1:
        names = ", ".join(head.names[place] for place in columns.values[:5])
        kind = settings.source.removesuffix("-folder")
        recordings = ", one to be predicted is source recordings" if kind == "csv" else ""
        raise DataError(
            f"{head.where}: {len(columns.values)} columns of values ({names}), but source "
            f"{settings.source} reads one per file: choose it with data.columns; a column per "
            f"client is source wide-{kind}{recordings}"
        )
    return columns


def _files(settings: DataSettings) -> list[Path]:
    """Return the files directly in the folder that have a suffix of the source's format."""
    folder, suffix, file_kinds = Path(settings.path), PARQUET_SUFFIX, ".parquet"
    if "csv" in settings.source:
        suffix, file_kinds = SUFFIX, ".csv, .csv.gz or .tsv"
    elif "excel" in settings.source:
        suffix, file_kinds = EXCEL_SUFFIX, ".xlsx"
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    paths = [path for path in entries if suffix.search(path.name)]
    if not paths:
        deeper = next((path.name for path in entries if path.is_dir()), "")
        hint = f"; folders in it, such as {deeper!r}, are not looked into" if deeper else ""
        texts = [path.name for path in entries if path.suffix.lower() == ".txt"]
        if texts:
            hint = f", but {len(texts)} .txt files, such as {texts[0]!r}: rename them to .csv"
        raise DataError(f"{folder}: the folder holds no {file_kinds} file{hint}")
    for path in paths:
        require_inside(path, folder)
    return paths


def _that_fit(settings: DataSettings, tables: Iterable[Table]) -> list[Table]:
    """Read the tables one by one; raise `DataError` if all together do not fit into memory."""
    read, size = [], 0
    for table in tables:
        read.append(table)
        size += table.columns.bytes_of(len(table.values))
        if len(read) > 1:  # the size of a single file was checked when it was read
            require_room(size, settings.path)
    return read


def _require_alike(tables: Sequence[Table], stamps: Sequence[Stamps | None]) -> None:
    """Raise `DataError` if only some files have times, or if their kinds of times differ."""
    first = stamps[0]
    for table, file_stamps in zip(tables, stamps, strict=True):
        if (file_stamps is None) != (first is None):
            having, lacking = (tables[0], table) if file_stamps is None else (table, tables[0])
            raise DataError(
                f"{lacking.where} has no time column, but {having.where} has one: "
                "phases can be aligned only if all files have it or none"
            )
        if file_stamps and first and file_stamps.is_count != first.is_count:
            having, lacking = (table, tables[0]) if file_stamps.is_count else (tables[0], table)
            raise DataError(
                f"{having.where} counts its steps, but {lacking.where} has times: "
                "all files have the one or the other"
            )
        if file_stamps and first and file_stamps.utc != first.utc:
            having, lacking = (table, tables[0]) if file_stamps.utc else (tables[0], table)
            raise DataError(
                f"{having.where} has times with an offset from UTC, but {lacking.where} without: "
                "phases can be aligned only if all files have it or none"
            )


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
