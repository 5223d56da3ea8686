"""Series out of tables: wide with a column per client, long with a row per client and time, or a
folder with a file per client. CSV and Parquet differ in how a table is read, and in nothing here,
but that the long form of Parquet may be a folder of parts, as other programs write it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.choice import chosen, require_there
from fedproto_app.data.clock import LARGEST_GRID_PER_ROW, Times, common_step, sampling_step
from fedproto_app.data.frames import columns_on_a_clock
from fedproto_app.data.parquet_table import PARQUET_SUFFIX, read_parquet_table
from fedproto_app.data.room import require_room
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.source_checks import require_inside
from fedproto_app.data.stamps import Stamps
from fedproto_app.data.table import TIME_NAMES, Columns, Head, Table, value_columns
from fedproto_app.data.text_table import SUFFIX, read_text_table
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
    yield from _long([read_text_table(Path(settings.path), settings, wanted)], settings)


def load_long_parquet(settings: DataSettings) -> Iterator[ClientSeries]:
    """The clients of one Parquet file with a row for each of them and time, or of a folder of such
    files, whose rows follow one another in the order of the files' names."""
    wanted, path = partial(long_columns, settings=settings), Path(settings.path)
    paths = _files(path, PARQUET_SUFFIX, ".parquet") if path.is_dir() else [path]
    yield from _long(_that_fit(path, (read_parquet_table(one, wanted) for one in paths)), settings)


def load_csv_folder(settings: DataSettings) -> Iterator[ClientSeries]:
    """The clients of a folder, a CSV file each, named by the file and in the order of the names."""
    paths = _files(Path(settings.path), SUFFIX, ".csv, .csv.gz or .tsv")

    def read(path: Path) -> Table:
        return read_text_table(path, settings, partial(_one_column, settings=settings))

    yield from _folder(paths, read, settings)


def load_parquet_folder(settings: DataSettings) -> Iterator[ClientSeries]:
    """The clients of a folder, a Parquet file each, named by the file and in the order of the
    names."""
    paths = _files(Path(settings.path), PARQUET_SUFFIX, ".parquet")

    def read(path: Path) -> Table:
        return read_parquet_table(path, partial(_one_column, settings=settings))

    yield from _folder(paths, read, settings)


def _folder(
    files: Sequence[Path], read: Callable[[Path], Table], settings: DataSettings
) -> Iterator[ClientSeries]:
    paths = chosen(files, client_of, settings, settings.path)
    tables = _that_fit(Path(settings.path), map(read, paths))
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
    return PARQUET_SUFFIX.sub("", SUFFIX.sub("", path.name))


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


def _long(given: Sequence[Table], settings: DataSettings) -> Iterator[ClientSeries]:
    """A client's rows are in the order of time; its clients are in that of their first rows."""
    import pandas as pd

    tables, wanted = list(given), settings.choice.clients
    of_tables = [table.clients() for table in tables]
    clients = pd.concat(of_tables, ignore_index=True)
    require_there(wanted, list(dict.fromkeys(clients)), "clients", "client", settings.path)
    if wanted:
        rows_of = [np.flatnonzero(one.isin(wanted)) for one in of_tables]
        tables = [table.of(kept) for table, kept in zip(tables, rows_of, strict=True) if kept.size]
        clients = clients[clients.isin(wanted)].reset_index(drop=True)
    values = np.concatenate([table.numbers() for table in tables])
    stamps = [table.stamps(settings.time_unit) for table in tables]
    _require_alike(tables, stamps)
    known = [one for one in stamps if one is not None]  # all: `long_columns` asks for times
    all_times = np.concatenate([one.times for one in known])
    rows = clients.groupby(clients, sort=False).indices
    times = {name: all_times[places] for name, places in rows.items()}
    step = common_step(times.values())
    row_of = _rows_of(tables)
    for name, places in rows.items():
        where, its = f"{settings.path}: client {name!r}", times[name]
        _require_step(its, step, where)
        yield from columns_on_a_clock(
            [str(name)],
            values[places],
            Stamps(its, known[0].utc, known[0].counted),
            where,
            step,
            lambda place, places=places: row_of(int(places[place])),  # type: ignore[misc]
        )


def _rows_of(tables: Sequence[Table]) -> Callable[[int], str]:
    """What to call a row of tables that follow one another, by its place in all of them."""
    ends = np.cumsum([len(table.frame) for table in tables])

    def row_of(place: int) -> str:
        number = int(np.searchsorted(ends, place, side="right"))
        table = tables[number]
        row = table.row_of(place - int(ends[number]) + len(table.frame))
        return row if len(tables) == 1 else f"{Path(table.where).name}, {row}"

    return row_of


def _one_column(head: Head, settings: DataSettings) -> Columns:
    """The columns of a folder's file: times, if there are any, and one of values."""
    choice = settings.choice
    columns = value_columns(head, choice.time_column, choice.columns, "columns")
    if len(columns.values) != 1:
        names = ", ".join(head.names[place] for place in columns.values[:5])
        kind = settings.source.removesuffix("-folder")
        recordings = ", one to be predicted is source recordings" if kind == "csv" else ""
        raise DataError(
            f"{head.where}: {len(columns.values)} columns of values ({names}), but source "
            f"{settings.source} reads one a file: choose it with data.columns; a column per client "
            f"is source wide-{kind}{recordings}"
        )
    return columns


def _files(folder: Path, suffix: re.Pattern[str], known: str) -> list[Path]:
    """The folder's own files with such a name. known: of which kinds these are, in messages."""
    inside = folder.resolve()
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    paths = [path for path in entries if suffix.search(path.name)]
    if not paths:
        deeper = next((path.name for path in entries if path.is_dir()), "")
        hint = f"; folders in it, such as {deeper!r}, are not looked into" if deeper else ""
        raise DataError(f"{folder}: the folder holds no {known} file{hint}")
    for path in paths:
        require_inside(path, inside)
    return paths


def _that_fit(where: Path, tables: Iterable[Table]) -> list[Table]:
    """The tables, read one after the other as long as there is room for all."""
    read, size = [], 0
    for table in tables:
        read.append(table)
        size += int(table.frame.memory_usage(index=False).sum())
        require_room(size, where)
    return read


def _require_alike(tables: Sequence[Table], stamps: Sequence[Stamps | None]) -> None:
    """Refuse files with and without times, or with times of different kinds."""
    first = stamps[0]
    for table, its in zip(tables, stamps, strict=True):
        if (its is None) != (first is None):
            having, lacking = (tables[0], table) if its is None else (table, tables[0])
            raise DataError(
                f"{lacking.where} has no time column, but {having.where} has one: "
                "phases can be aligned only if all files have it or none"
            )
        if its and first and its.counted != first.counted:
            having, lacking = (table, tables[0]) if its.counted else (tables[0], table)
            raise DataError(
                f"{having.where} counts its steps, but {lacking.where} has times: "
                "all files have the one or the other"
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
