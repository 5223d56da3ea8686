"""Read series from tables in any file format.

A table is wide, with a column per client, or long, with a row per client and time. Or there is a
folder with a table per client.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Clock, Matrix, Stamps
from fedproto_app.data.files import require_inside, require_room
from fedproto_app.data.row_order import FileRows, TimeTwice
from fedproto_app.data.series import ClientSeries, ColumnNames, series_of
from fedproto_app.data.source_checks import chosen, require_available
from fedproto_app.data.table import (
    MISSING,
    TIME_NAMES,
    Columns,
    Head,
    Table,
    TableFile,
    client_name,
    is_clock_time,
    is_fraction,
    require_few_columns,
    require_named,
    value_columns,
)
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import Choice, KnownColumn, names_in, text_of

if TYPE_CHECKING:
    from pandas import Series

# Usual names of the client column in the long tables of Nixtla, GluonTS and Prophet.
CLIENT_NAMES = ("unique_id", "item_id", "series_id", "client_id", "client")
VALUE_NAMES = ("y", "target")  # usual names of the value column in the same tables

MOST_TEXTS = 16  # in a column that is known in advance: as many as a compass has points
_TRUTH = {"true": 1.0, "false": 0.0}
_COUNT = Clock(np.timedelta64(1, "s"), np.timedelta64(0, "s"))  # the clock of numbers of steps
_MOST_COMPARED = 20  # columns that are compared to find what tells two rows apart


@dataclass(frozen=True)
class TableFormat:
    """How files of a format hold tables.

    name: such as csv, which gives the sources the names wide-csv, long-csv and csv-folder.
    suffix: the suffix of its files. endings: the endings as messages list them. open: opens a file.
    keys: further fields of `DataSettings` that it uses. has_parts: whether a folder of long tables
    is read as one table in parts even if nobody names its column of clients. hint: what else a file
    with several columns may be. further: names of further files that have this format. In a folder
    they are read only if there are no other files.
    """

    name: str
    suffix: re.Pattern[str]
    endings: str
    open: Callable[[Path, DataSettings], TableFile]
    keys: tuple[str, ...] = ()
    has_parts: bool = False
    hint: str = ""
    further: re.Pattern[str] | None = None

    def client_of(self, path: Path) -> str:
        """Return the name of the client that a file belongs to."""
        name = self.suffix.sub("", path.name)
        return name if self.further is None else self.further.sub("", name)

    def files_in(self, paths: Sequence[Path]) -> list[Path]:
        """Return the files of a folder that have this format."""
        files = [path for path in paths if self.suffix.search(path.name)]
        if files or self.further is None:
            return files
        return [path for path in paths if self.further.search(path.name)]


def load_wide(settings: DataSettings, tables: TableFormat) -> Iterator[ClientSeries]:
    """Yield a client for each column of a file."""
    path = Path(settings.path)
    file = tables.open(path, settings)
    choice = settings.choice
    columns_read = value_columns(file.head, choice, choice.clients, "clients")
    table = file.read(columns_read, names_in(settings.missing_values))
    stamps, values = table.stamps(settings.time_unit), table.numbers()
    rows = FileRows(stamps, values, table.where, table.names, table.row_of, notes=table.notes)
    yield from _series([rows], [table], [path], tables, settings, table.column_names)


def load_long(settings: DataSettings, tables: TableFormat) -> Iterator[ClientSeries]:
    """Yield the clients of a file with a row for each client and time, or of a folder of parts.

    Clients are in the order of their first rows.
    """

    def select(file: TableFile) -> Columns:
        return _with_known(long_columns(file.head, settings), file, settings)

    yield from _of_rows(settings, tables, _paths(settings, tables), select)


def load_covariates(
    settings: DataSettings, clock: Clock | None, tables: TableFormat
) -> Iterator[ClientSeries]:
    """Yield the columns of a table that has no values, only columns known in advance.

    settings: their path is the table's. clock: the clock of the series that the columns belong to.
    A table with only one row for each client gets this clock. Yields a series for each client, with
    all values missing. Without a column of clients, yields one named "".
    """
    select = partial(_covariate_columns, settings=settings)
    yield from _of_rows(settings, tables, _paths(settings, tables), select, clock or _COUNT)


def load_folder(settings: DataSettings, tables: TableFormat) -> Iterator[ClientSeries]:
    """Yield a client for each file of a folder, named after the file, in order of names."""
    paths = chosen(_paths(settings, tables), tables.client_of, settings, settings.path)

    def select(file: TableFile) -> Columns:
        return _with_known(_one_column(file.head, settings, tables), file, settings)

    yield from _of_rows(settings, tables, paths, select, by_file=True)


def _of_rows(
    settings: DataSettings,
    tables: TableFormat,
    paths: Sequence[Path],
    select: Callable[[TableFile], Columns],
    usual: Clock | None = None,
    *,
    by_file: bool = False,
) -> Iterator[ClientSeries]:
    """Yield the clients of tables with a row for each client and time.

    select: returns a table's columns. usual: as in `series_of`. by_file: whether each file is a
    client. If not, each name in a column is one.
    """
    read = _read(paths, select, tables, settings)
    if settings.unfold:
        read = [table.unfolded() for table in read]
    if by_file:
        names = [tables.client_of(path) for path in paths]
        codes = np.repeat(np.arange(len(read)), [len(table.values) for table in read])
        sources = list(map(str, paths))
    else:
        read, clients = _of_chosen(read, settings)
        names = list(clients.cat.categories)
        codes = clients.cat.codes.to_numpy().astype(np.int64)
        sources = [f"{settings.path}: client {n!r}" if n else settings.path for n in names]
    counts = np.bincount(codes, minlength=len(names))  # 0 for a client that is not chosen
    require_few_columns(int(np.count_nonzero(counts)), settings.path, "clients")
    places_of = np.split(np.argsort(codes, kind="stable"), counts.cumsum()[:-1])
    values, known, notes_on_texts = _values_and_known(read)
    stamps = _stamps(read, settings)
    notes = [
        [*table.notes, *(of_table.notes if of_table else ())]
        for table, of_table in zip(read, stamps, strict=True)
    ]
    if not by_file:
        notes = [[*chain(*notes), *_notes_on_spellings(read)]] * len(names)
    all_times = [of_table.times for of_table in stamps if of_table]
    times = np.concatenate([np.empty(0, dtype="datetime64[us]"), *all_times])
    has_targets, row_of = bool(read[0].columns.targets), _rows_of(read, with_files=not by_file)
    rows = [
        FileRows(
            stamps[0] and replace(stamps[0], times=times[places], notes=()),
            values[places],
            where,
            [str(name) or (tables.client_of(paths[0]) if has_targets else "")],
            row_of,
            places,
            tuple(dict.fromkeys([*of_client, *notes_on_texts])),
        )
        for name, where, places, of_client in zip(names, sources, places_of, notes, strict=True)
        if places.size
    ]
    if stamps[0] and stamps[0].utc and not has_targets:
        # Covariates in UTC suit series whose local times are converted to UTC.
        settings = settings.model_copy(update={"time_zone": ""})
    columns = None if by_file else read[0].column_names
    yield from _series(rows, read, paths, tables, settings, columns, known, usual)


def _of_chosen(read: Sequence[Table], settings: DataSettings) -> tuple[list[Table], Series]:
    """Return the tables with only the rows of chosen clients, and the client of each row."""
    import pandas as pd
    from pandas.api.types import union_categoricals

    chosen_clients, clients = settings.choice.clients, [table.clients() for table in read]
    joined = pd.Series(union_categoricals(clients))
    require_available(
        chosen_clients, list(joined.cat.categories), "clients", "client", settings.path
    )
    if not chosen_clients:
        return list(read), joined
    rows_of = [np.flatnonzero(of_table.isin(chosen_clients)) for of_table in clients]
    of_chosen = [table.select(rows) for table, rows in zip(read, rows_of, strict=True) if rows.size]
    return of_chosen, joined[joined.isin(chosen_clients)].reset_index(drop=True)


def _series(
    rows: Sequence[FileRows],
    read: Sequence[Table],
    paths: Sequence[Path],
    tables: TableFormat,
    settings: DataSettings,
    table: ColumnNames | None = None,
    known: tuple[str, ...] = (),
    usual: Clock | None = None,
) -> Iterator[ClientSeries]:
    """Yield `series_of` these rows. read: the tables that they come from. paths: all files."""
    try:
        yield from series_of(rows, settings, table, known, usual)
    except TimeTwice as error:
        raise _with_cause(error, read, paths, tables, settings) from None


def _notes_on_spellings(tables: Sequence[Table]) -> list[str]:
    """Return a note on each client whose name is written in several ways."""
    spellings: dict[str, set[str]] = {}
    for table in tables:
        for written in table.written_clients().cat.categories:
            spellings.setdefault(client_name(written), set()).add(written)
    ambiguous = [map(ascii, sorted(texts)) for texts in spellings.values() if len(texts) > 1]
    return [f"{' and '.join(texts)} are read as one client" for texts in ambiguous]


def _with_cause(
    error: TimeTwice,
    read: Sequence[Table],
    paths: Sequence[Path],
    tables: TableFormat,
    settings: DataSettings,
) -> DataError:
    """Return the error with what tells the two rows apart: the client's spelling, or a column.

    This must read the other columns, so it is done only after an error.
    """
    (number, first_place), (second_number, second_place) = map(_place_in(read), error.rows)
    if number != second_number:
        return error
    table, places = read[number], (first_place, second_place)
    client = table.title(table.columns.clients)
    if client:
        first, second = (str(table.written_clients().iloc[place]) for place in places)
        if first != second:
            return DataError(
                f"{error}; the client is written {first!a} and {second!a} there: if "
                "these are two clients, give them names that differ by more than blanks or accents"
            )
    rows = [int(table.texts.index[place]) for place in places]
    unread = [
        place
        for place, name in enumerate(table.head.names)
        if place not in (*table.columns.read, table.head.index) and name
    ]
    path = next((path for path in paths if str(path) == table.where), paths[0])
    for place in unread[:_MOST_COMPARED]:
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
            times = text_of([table.title(table.columns.times), name])
            return DataError(f"{differs} --set data.time-column={shlex.quote(times)} joins them")
        if not client:
            return DataError(
                f"{differs} if it names the clients, --set data.source=long-{tables.name} --set "
                f"data.client-column={shlex.quote(name)} reads them"
            )
        joined = shlex.quote(text_of([client, name]))
        return DataError(
            f"{differs} if it names the clients, --set data.client-column={shlex.quote(name)}; if "
            f"both {client!r} and {name!r} do, --set data.client-column={joined} joins them"
        )
    repeated = "--set data.repeated=mean takes the mean of such rows, and =last the last one"
    return DataError(f"{error}; {repeated}")


def _is_few_valued(cells: Series) -> bool:
    """Return whether these texts may name clients: they repeat and are no fractions."""
    return cells.nunique() <= max(2, len(cells) // 2) and not cells.map(is_fraction).any()


def _read(
    paths: Sequence[Path],
    select: Callable[[TableFile], Columns],
    tables: TableFormat,
    settings: DataSettings,
) -> list[Table]:
    """Read the files one by one. Raises `DataError` if together they do not fit into memory."""
    read, size = [], 0
    for path in paths:
        file = tables.open(path, settings)
        read.append(file.read(select(file), names_in(settings.missing_values)))
        size += read[-1].columns.bytes_of(len(read[-1].values))
        if len(read) > 1:  # the size of a single file was checked when it was read
            require_room(size, settings.path)
    return read


def long_columns(head: Head, settings: DataSettings) -> Columns:
    """Return the columns of clients, times and values of a long table, not those known in advance.

    Raises `DataError` if one of the three is not set and no column has a usual name for it.
    """
    choice, names = settings.choice, head.names
    joined = head.joined(choice)
    if settings.unfold:
        first, last = (head.place(name, "unfold") for name in names_in(settings.unfold))
        chosen = choice.client_columns
        client = head.place(chosen[0], "client-column") if chosen else None
        times = head.time(choice)
        return Columns(list(range(first, last + 1)), times, client, joined=joined)
    chosen = choice.client_columns
    client = _place(head, "client-column", CLIENT_NAMES, "clients' names", chosen)
    columns = Columns([], _time_place(head, choice), client, joined=joined)
    read_or_skipped = (*columns.texts, head.index)
    value_places = [place for place in range(len(names)) if place not in read_or_skipped]
    value_names = [names[place] for place in value_places]
    require_available(choice.columns, value_names, "columns", "column of values", head.where)
    usual = list(dict.fromkeys(name for name in value_names if name.lower() in VALUE_NAMES))
    selected = choice.columns or (
        usual if len(usual) == 1 else _without_known(value_names, settings)
    )
    if len(selected) != 1:
        raise DataError(
            f"{head.where}: {len(selected)} columns of values "
            f"({', '.join(selected[:5]) or 'none'}), but the long form has one; choose it with "
            "data.columns"
        )
    return replace(columns, values=[head.place(selected[0], "columns")])


def _covariate_columns(file: TableFile, settings: DataSettings) -> Columns:
    """Return the columns of times, clients and covariates of a table without values.

    The covariates are the columns in ``data.known``, or all columns of numbers if it is empty.
    """
    head, choice = file.head, settings.choice
    if not set(choice.time_columns) <= set(head.names):
        choice = replace(choice, time_columns=())
    if not set(choice.client_columns) <= set(head.names):
        choice = replace(choice, client_columns=())
    usual = [name for name in head.names if name.lower() in CLIENT_NAMES]
    clients = choice.client_columns or usual
    client = head.place(clients[0], "client-column") if clients else None
    columns = Columns([], _time_place(head, choice), client, joined=head.joined(choice))
    if settings.known:
        return _with_known(columns, file, settings)
    unused = [p for p in range(len(head.names)) if p not in (*columns.texts, head.index)]
    texts = file.of_texts(unused)
    numbers = {p: KnownColumn(head.names[p]) for p in unused if p not in texts}
    if not numbers:
        raise DataError(f"data.covariates: {head.where} has no column of numbers beside the times")
    require_named((column.name for column in numbers.values()), head.where)
    return replace(columns, values=list(numbers), known=numbers)


def _without_known(names: Sequence[str], settings: DataSettings) -> list[str]:
    known_names = {column.name for column in settings.known_columns}
    return [name for name in names if name not in known_names]


def _with_known(columns: Columns, file: TableFile, settings: DataSettings) -> Columns:
    """Return these columns and those columns of ``data.known`` that the file has.

    Raises `DataError` if a column has another use, or if it is missing. A missing column is allowed
    if there is a table of covariates, which may have it.
    """
    head = file.head
    uses = dict.fromkeys(columns.parts(columns.times), "holds the times")
    uses |= dict.fromkeys(columns.parts(columns.clients), "names the clients")
    uses |= dict.fromkeys(columns.values, "is forecast")
    unused = [n for p, n in enumerate(head.names) if p not in uses and p != head.index and n]
    columns_known: dict[int, KnownColumn] = {}
    for column in settings.known_columns:
        if settings.covariates and column.name not in head.names:
            continue
        if column.name not in head.names:
            require_available([column.name], unused, "known", "column", head.where)
        place = head.place(column.name, "known")
        if place in uses:
            raise DataError(
                f"data.known: column {column.name!r} of {head.where} {uses[place]}; name others"
            )
        columns_known[place] = column
    texts = file.of_texts(list(columns_known))
    texts |= {place for place, column in columns_known.items() if column.values}
    numbers = [place for place in columns_known if place not in texts]
    return replace(columns, values=[*columns.values, *numbers], known=columns_known)


def _values_and_known(
    tables: Sequence[Table],
) -> tuple[Matrix, tuple[str, ...], tuple[str, ...]]:
    """Return the values and known columns of the joined tables, [T, N + k], the k names, and notes.

    A column of texts becomes a column of 0 and 1 for each text. If a table has no values, a column
    of missing values takes their place.
    """
    names, notes = list[str](), list[str]()
    blocks = [np.concatenate([_targets(table) for table in tables])]
    for column in tables[0].columns.known.values():
        for table in tables:
            if column not in table.columns.known.values():
                raise DataError(f"{table.where}: no column {column.name!r} (data.known)")
        cells = [_known_cells(table, column.name) for table in tables]
        are_texts = [of_table.dtype == object for of_table in cells]
        if not any(are_texts):
            names.append(column.name)
            blocks.append(np.concatenate([of_table.to_numpy() for of_table in cells])[:, None])
            continue
        for table, of_table, is_text in zip(tables, cells, are_texts, strict=True):
            if not is_text and of_table.notna().any():
                with_texts = tables[are_texts.index(True)].where
                raise DataError(
                    f"{table.where}: column {column.name!r} holds numbers, but texts in "
                    f"{with_texts}; write it alike in all files"
                )
        columns = _of_texts(cells, column, tables, notes)
        names += columns
        blocks += [flags[:, None] for flags in columns.values()]
    values = np.concatenate(blocks, axis=1) if names else blocks[0]
    return values, tuple(names), tuple(notes)


def _targets(table: Table) -> Matrix:
    """Return the values [T, N] without the known columns, or a column of NaN if there are none."""
    values = table.numbers()[:, : len(table.columns.targets)]
    return values if values.shape[1] else np.full((len(values), 1), np.nan)


def _known_cells(table: Table, name: str) -> Series:
    """Return a known column of a table. It holds numbers, or texts with None where missing."""
    import pandas as pd

    place = table.head.names.index(name)
    if place in table.columns.values:
        return pd.Series(table.numbers()[:, table.columns.values.index(place)])
    column = table.texts[place]
    texts = column.astype(str).str.strip().astype(object)
    return texts.where(column.notna() & ~texts.isin(MISSING), None)


def _of_texts(
    cells: Sequence[Series], column: KnownColumn, tables: Sequence[Table], notes: list[str]
) -> dict[str, Matrix]:
    """Return by name a column of 0 and 1, [T], for each text that a known column holds.

    A column that only says true or false stays one column. A note on unlisted texts is added.
    """
    import pandas as pd

    texts = pd.concat([of_table.astype(object) for of_table in cells], ignore_index=True)
    texts = texts.where(texts.notna(), None)
    is_missing = texts.isna().to_numpy()
    present = sorted(set(texts[~is_missing]))
    if not column.values and {text.lower() for text in present} <= set(_TRUTH):
        truth = [np.nan if text is None else _TRUTH[text.lower()] for text in texts]
        return {column.name: np.array(truth)}
    unlisted = [text for text in present if column.values and text not in column.values]
    if unlisted and column.is_open:
        notes.append(
            f"column {column.name!r} is 0 in all its columns in the {texts.isin(unlisted).sum()} "
            f"rows with other texts than {', '.join(column.values)}, such as {unlisted[0]!r}"
        )
    elif unlisted:
        row = _rows_of(tables)(int((texts == unlisted[0]).to_numpy().argmax()))
        raise DataError(
            f"{tables[0].where}: column {column.name!r}, {row}: {unlisted[0]!r} is none of the "
            f"texts that data.known lists: {'|'.join(column.values)}"
        )
    values = column.values or tuple(present)
    if len(values) > MOST_TEXTS:
        raise DataError(
            f"{tables[0].where}: column {column.name!r} holds {len(values)} different texts, such "
            f"as {values[0]!r}; what is known in advance is numbers or at most {MOST_TEXTS} texts"
        )
    return {
        f"{column.name}={value}": np.where(is_missing, np.nan, (texts == value).to_numpy())
        for value in values
    }


def _time_place(head: Head, choice: Choice) -> int:
    """Return the place of the column of times. The table must have one."""
    times = head.time(choice)
    return _place(head, "time-column", TIME_NAMES, "times") if times is None else times


def _place(
    head: Head, key: str, usual: Collection[str], noun: str, chosen: Sequence[str] = ()
) -> int:
    """Return the place of the first column that ``data.<key>`` names, or that has a usual name."""
    if chosen:
        return head.place(chosen[0], key)
    names = [name for name in head.names if name.lower() in usual]
    if not names:
        raise DataError(
            f"{head.where}: which column holds the {noun}? set data.{key} to one of "
            f"{', '.join(head.names[:8])}"
        )
    return head.place(names[0], key)


def _rows_of(tables: Sequence[Table], *, with_files: bool = True) -> Callable[[int], str]:
    """Return a function that gives a row's name in messages from its place in the joined tables.

    with_files: whether it also names the file, if there are several.
    """
    place_in = _place_in(tables)

    def row_of(joined_place: int) -> str:
        number, place = place_in(joined_place)
        row = tables[number].row_of(place)
        return (
            f"{Path(tables[number].where).name}, {row}" if with_files and len(tables) > 1 else row
        )

    return row_of


def _place_in(tables: Sequence[Table]) -> Callable[[int], tuple[int, int]]:
    """Return a function that finds a joined row: its table's number, and its place in the table."""
    ends = np.cumsum([len(table.values) for table in tables])

    def place_in(joined_place: int) -> tuple[int, int]:
        number = int(np.searchsorted(ends, joined_place, side="right"))
        return number, joined_place - int(ends[number]) + len(tables[number].values)

    return place_in


def _one_column(head: Head, settings: DataSettings, tables: TableFormat) -> Columns:
    """Return the columns of a file in a folder: one of values, and one of times if it has any."""
    choice = settings.choice
    columns = value_columns(head, choice, choice.columns, "columns")
    if not choice.columns and settings.known:
        names = _without_known([head.names[place] for place in columns.values], settings)
        columns = value_columns(head, choice, names, "columns")
    if len(columns.values) != 1:
        listed = ", ".join(head.names[place] for place in columns.values[:5])
        raise DataError(
            f"{head.where}: {len(columns.values)} columns of values ({listed}), but source "
            f"{settings.source} reads one per file: name it with --target COLUMN or --set "
            f"data.columns=COLUMN; a column per client is source wide-{tables.name}{tables.hint}"
        )
    return columns


def _paths(settings: DataSettings, tables: TableFormat) -> list[Path]:
    """Return the file, or those files directly in the folder that have the format's suffix."""
    folder = Path(settings.path)
    if not folder.is_dir():
        return [folder]
    entries = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    paths = tables.files_in(entries)
    if not paths:
        deeper = next((path.name for path in entries if path.is_dir()), "")
        hint = f"; folders in it, such as {deeper!r}, are not looked into" if deeper else ""
        raise DataError(f"{folder}: the folder holds no {tables.endings} file{hint}")
    for path in paths:
        require_inside(path, folder)
    return paths


def _stamps(tables: Sequence[Table], settings: DataSettings) -> list[Stamps | None]:
    """Return the times of the tables' rows, or None if there is no time column.

    Raises `DataError` if only some files have times, or if their kinds of times differ.
    """
    stamps = [table.stamps(settings.time_unit) for table in tables]
    alike = "phases can be aligned only if all files have it or none"
    messages = (
        f"{{1}} has no time column, but {{0}} has one: {alike}",
        "{0} counts its steps, but {1} has times: either all files need times or none",
        f"{{0}} has times with an offset from UTC, but {{1}} without: {alike}",
    )
    kinds = [(s is not None, bool(s and s.is_count), bool(s and s.utc)) for s in stamps]
    for table, of_table in zip(tables, kinds, strict=True):
        for applies, applies_to_first, message in zip(of_table, kinds[0], messages, strict=True):
            if applies != applies_to_first:
                having, lacking = (table, tables[0])[:: 1 if applies else -1]
                raise DataError(message.format(having.where, lacking.where))
    return stamps
