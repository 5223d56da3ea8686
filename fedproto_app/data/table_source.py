"""Series out of tables: wide with a column per client, long with a row per client and time, or a
folder with a file per client. CSV and Parquet differ in how a table is read, and in nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fedproto_app.data.choice import chosen, require_there
from fedproto_app.data.clock import LARGEST_GRID_PER_ROW, Times, common_step, sampling_step
from fedproto_app.data.frames import columns_on_a_clock
from fedproto_app.data.parquet_table import read_parquet_table
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.source_checks import require_inside
from fedproto_app.data.stamps import Stamps
from fedproto_app.data.table import TIME_NAMES, Columns, Head, Table, value_columns
from fedproto_app.data.text_table import SUFFIX, read_text_table
from fedproto_app.errors import DataError
from fedproto_app.settings import DataSettings

# What the long form calls a client where nobody says: of Nixtla's, GluonTS', Prophet's tables.
CLIENT_NAMES = ("unique_id", "item_id", "series_id", "client_id", "client")
VALUE_NAME = "y"  # the column of values beside others, in the same tables


def load_wide_csv(settings: DataSettings) -> Iterator[ClientSeries]:
    """The clients of one CSV file, a column each."""
    wanted = partial(_wide_columns, settings=settings)
    yield from _wide(read_text_table(Path(settings.path), settings, wanted), settings)


def load_wide_parquet(settings: DataSettings) -> Iterator[ClientSeries]:
    """The clients of one Parquet file, a column each."""
    wanted = partial(_wide_columns, settings=settings)
    yield from _wide(read_parquet_table(Path(settings.path), wanted), settings)


def load_long_csv(settings: DataSettings) -> Iterator[ClientSeries]:
    """The clients of one CSV file with a row for each of them and time."""
    wanted = partial(long_columns, settings=settings)
    yield from _long(read_text_table(Path(settings.path), settings, wanted), settings)


def load_long_parquet(settings: DataSettings) -> Iterator[ClientSeries]:
    """The clients of one Parquet file with a row for each of them and time."""
    wanted = partial(long_columns, settings=settings)
    yield from _long(read_parquet_table(Path(settings.path), wanted), settings)


def load_csv_folder(settings: DataSettings) -> Iterator[ClientSeries]:
    """The clients of a folder, a file each, named by the file and in the order of the names."""
    paths = chosen(_files(Path(settings.path)), client_of, settings, settings.path)
    tables = [_of_one_client(path, settings) for path in paths]
    stamps = [table.stamps(settings.time_unit) for table in tables]
    _require_alike(tables, stamps)
    # One step for all, because all clients share one period; a file with one row cannot tell it.
    step = common_step(one.times for one in stamps if one is not None)
    for path, table, its in zip(paths, tables, stamps, strict=True):
        if its is not None:
            _require_step(its.times, step, table.where)
        yield from columns_on_a_clock(
            [client_of(path)], table.numbers(), its, path, step, table.row_of
        )


def client_of(path: Path) -> str:
    """Whose file it is."""
    return SUFFIX.sub("", path.name)


def long_columns(head: Head, settings: DataSettings) -> Columns:
    """The columns of clients, times and values of the long form.

    Raises `DataError` if one of them is not named and cannot be told.
    """
    choice, names = settings.choice, head.names
    client = _place(head, choice.client_column, "client-column", CLIENT_NAMES, "clients' names")
    times = (
        head.times
        if head.times is not None and not choice.time_column
        else _place(head, choice.time_column, "time-column", TIME_NAMES, "times")
    )
    others = [place for place in range(len(names)) if place not in (client, times)]
    there = [names[place] for place in others]
    require_there(choice.columns, there, "columns", "column of values", head.where)
    wanted = choice.columns or ((VALUE_NAME,) if VALUE_NAME in there else there)
    if len(wanted) != 1:
        raise DataError(
            f"{head.where}: {len(wanted)} columns of values ({', '.join(wanted[:5]) or 'none'}), "
            "but the long form has one; choose it with data.columns"
        )
    return Columns([place for place in others if names[place] == wanted[0]][:1], times, client)


def _place(head: Head, named: str, key: str, usual: object, what: str) -> int:
    """Where the column stands that ``data.<key>`` names, or that has a usual name."""
    if named:
        return head.place(named, key)
    assert isinstance(usual, tuple | frozenset)
    found = [place for place, name in enumerate(head.names) if name.lower() in usual]
    if not found:
        raise DataError(
            f"{head.where}: which column holds the {what}? set data.{key} to one of "
            f"{', '.join(head.names[:8])}"
        )
    return found[0]


def _wide_columns(head: Head, settings: DataSettings) -> Columns:
    return value_columns(head, settings.time_column, settings.choice.clients, "clients")


def _wide(table: Table, settings: DataSettings) -> Iterator[ClientSeries]:
    stamps = table.stamps(settings.time_unit)
    return columns_on_a_clock(table.names, table.numbers(), stamps, table.where, row=table.row_of)


def _long(table: Table, settings: DataSettings) -> Iterator[ClientSeries]:
    """A client's rows are in the order of time; its clients are in that of their first rows."""
    clients, choice = table.clients(), settings.choice
    require_there(choice.clients, list(dict.fromkeys(clients)), "clients", "client", table.where)
    if choice.clients:
        kept = np.flatnonzero(clients.isin(choice.clients))
        table, clients = table.of(kept), clients.iloc[kept]
    values, stamps = table.numbers(), table.stamps(settings.time_unit)
    assert stamps is not None  # `long_columns` asks for times
    rows = clients.groupby(clients, sort=False).indices
    times = {name: stamps.times[places] for name, places in rows.items()}
    step = common_step(times.values())
    for name, places in rows.items():
        where, its = f"{table.where}: client {name!r}", times[name]
        _require_step(its, step, where)
        yield from columns_on_a_clock(
            [str(name)],
            values[places],
            Stamps(its, stamps.utc, stamps.counted),
            where,
            step,
            lambda place, places=places: table.row_of(int(places[place])),  # type: ignore[misc]
        )


def _of_one_client(path: Path, settings: DataSettings) -> Table:
    """The table of a folder's file, with one column of values."""
    choice = settings.choice

    def wanted(head: Head) -> Columns:
        columns = value_columns(head, choice.time_column, choice.columns, "columns")
        if len(columns.values) != 1:
            names = ", ".join(head.names[place] for place in columns.values[:5])
            raise DataError(
                f"{path}: {len(columns.values)} columns of values ({names}), but source csv-folder "
                "reads one a file: choose it with data.columns; a column per client is source "
                "wide-csv, one to be predicted is source recordings"
            )
        return columns

    return read_text_table(path, settings, wanted)


def _files(folder: Path) -> list[Path]:
    inside = folder.resolve()
    paths = sorted(
        path
        for path in folder.iterdir()
        if SUFFIX.search(path.name) and not path.name.startswith(".")
    )
    if not paths:
        raise DataError(f"{folder}: the folder holds no .csv, .csv.gz or .tsv file")
    for path in paths:
        require_inside(path, inside)
    return paths


def _require_alike(tables: list[Table], stamps: list[Stamps | None]) -> None:
    """Refuse files with and without times, or with times of different kinds."""
    first = stamps[0]
    for table, its in zip(tables, stamps, strict=True):
        if (its is None) != (first is None):
            having, lacking = (tables[0], table) if its is None else (table, tables[0])
            raise DataError(
                f"{lacking.where} has no time column, but {having.where} has one: "
                "phases can be aligned only if all files have it or none"
            )
        if its and first and its.utc != first.utc:
            having, lacking = (table, tables[0]) if its.utc else (tables[0], table)
            raise DataError(
                f"{having.where} has times with an offset from UTC, but {lacking.where} without: "
                "phases can be aligned only if all files have it or none"
            )


def _require_step(times: Times, step: np.timedelta64 | None, where: str) -> None:
    """Refuse a client whose own step is not the others', before its rows look irregular."""
    own = sampling_step(times)
    if own is None or step is None or (np.diff(times) <= 0).any():
        return
    if own % step or own > LARGEST_GRID_PER_ROW * step:
        raise DataError(
            f"{where}: its times are mostly {own.item()} apart, those of all clients "
            f"{step.item()}; clients share one step: bring them to it"
        )
