"""Read series from tables: wide with a column per client, long with a row per client and time, or
a folder with a file per client. CSV, Parquet and Excel differ only in how a table is read, except
that a long Parquet table may be a folder of parts, as other programs write it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import LARGEST_GRID_PER_ROW, Stamps, Times, common_step, sampling_step
from fedproto_app.data.excel_table import EXCEL_SUFFIX, read_excel_table
from fedproto_app.data.files import require_inside, require_room
from fedproto_app.data.parquet_table import PARQUET_SUFFIX, read_parquet_table
from fedproto_app.data.row_order import TimedRows, in_order
from fedproto_app.data.series import ClientSeries, columns_on_a_clock, counted_columns
from fedproto_app.data.source_checks import chosen, require_available
from fedproto_app.data.table import (
    TIME_NAMES,
    Columns,
    ColumnSelector,
    Head,
    Table,
    require_few_columns,
    value_columns,
)
from fedproto_app.data.text_table import SUFFIX, read_text_table
from fedproto_app.settings import DataSettings

# Usual names of the client column in the long tables of Nixtla, GluonTS and Prophet.
CLIENT_NAMES = ("unique_id", "item_id", "series_id", "client_id", "client")
VALUE_NAME = "y"  # the usual name of the value column in the same tables

Reader = Callable[[Path, ColumnSelector, DataSettings], Table]


def load_wide(settings: DataSettings, read: Reader | None = None) -> Iterator[ClientSeries]:
    """Yield a client for each column of a file. read: reads the table; None: by its format."""

    def select(head: Head) -> Columns:
        return value_columns(head, settings.time_column, settings.choice.clients, "clients")

    table = (read or _read)(Path(settings.path), select, settings)
    rows, columns = _in_order(table, settings), table.column_names
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
    tables = ((read or _read)(part_path, select_columns, settings) for part_path in paths)
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
    notes = tuple(dict.fromkeys(note for table in used_tables for note in table.notes))
    rows: dict[str, TimedRows] = {}
    for name, indices in clients.groupby(clients, sort=False).indices.items():
        places = np.asarray(indices, dtype=np.intp)
        client_stamps = Stamps(all_times[places], all_stamps[0].utc, all_stamps[0].is_count)
        where = f"{settings.path}: client {name!r}"
        rows[str(name)] = in_order(
            client_stamps, values[places], where, zone, row_of, notes, places
        )
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
    rows = [_in_order(table, settings) for table in tables]
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
        return in_order(
            stamps, table.numbers(), table.where, settings.time_zone, table.row_of, table.notes
        )
    if settings.time_zone:
        raise DataError(
            f"data.time-zone = {settings.time_zone!r}: {table.where} has no column of times"
        )
    return None


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
    value_places = [place for place in range(len(names)) if place not in (client, times)]
    value_names = [names[place] for place in value_places]
    require_available(choice.columns, value_names, "columns", "column of values", head.where)
    selected = choice.columns or ((VALUE_NAME,) if VALUE_NAME in value_names else value_names)
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
