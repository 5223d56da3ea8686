"""A table of named columns: its numbers, texts and times, from a file of any format.

A file gives the table in blocks of rows, whose numbers are put into one matrix, so it is never
held as text and as numbers at once.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Matrix, Stamps, is_period, look_like_times, stamps_of
from fedproto_app.data.number_styles import Style, is_number, numbers_in, style_of
from fedproto_app.data.series import ColumnNames
from fedproto_app.data.source_checks import require_available
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import Decimal, KnownColumn, TimeUnit

if TYPE_CHECKING:
    from pandas import DataFrame, Series

INDEX = "__index_level_0__"  # pandas' name in Parquet files for an index without a name
TIME_NAMES = frozenset({"time", "timestamp", "date", "datetime", "date_time", "date time", "ds"})
MISSING = [
    *("", "?", "NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "<NA>", "NULL", "Null", "null"),
    *("NaN", "nan", "-NaN", "-nan", "None", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
]
UNNAMED = ("", "unnamed: 0")  # names of pandas' index, lowered, in text files
LOOKED_AT = 50  # lines or rows, to recognise the file's form
MOST_COLUMNS = 100_000  # or clients: each costs time and memory, however few its rows
BLOCK_CELLS = 1 << 20  # that are read at once
# Measured: a number is in the matrix, on the grid of its clock and in its client's series.
_NUMBER_BYTES = 24
_TEXT_BYTES = 200  # of a time or a client's name, while it is read
_MOST_COMPARED = 1000  # cells that show whether a column holds texts
_MOST_FAULTS = 1000  # cells that are no numbers, after which the file is refused

_MOST_BELOW_NAMES = 3  # lines below the names before the first values, such as units
_FAR_LARGER = 10  # times: a number in the first line is a name if all below are smaller by this
_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}([T ].*)?")
_TOTALS = {
    *("total", "totals", "grand total", "sum", "average", "mean"),
    *("summe", "gesamt", "gesamtsumme"),
}
_CLOCK_TIME = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d+)?)?( ?[aApP][mM])?")
_FRACTION = re.compile(r"[+-]?(\d+[.,]\d*|[.,]\d+|\d+(?=[eE]))([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Head:
    """The column names of a file, before the columns are read.

    times: the place of the column that looks like a time column, None without one. rows: the number
    of rows before the first row of values. notes: what a person should know of the header. index:
    the place of a column without a name that only numbers the rows, as pandas writes it.
    """

    where: str
    names: list[str]
    times: int | None
    rows: int = 0
    notes: tuple[str, ...] = ()
    index: int | None = None

    def place(self, name: str, key: str) -> int:
        """Return the place of the column that ``data.<key>`` names, or would."""
        require_available([name], self.names, key, "column", self.where)
        if (count := self.names.count(name)) > 1:
            raise DataError(f"data.{key}: {self.where} has {count} columns {name!r}; rename them")
        return self.names.index(name)


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are read, by place.

    values: numbers. known: the columns that are known in advance; those of numbers are the last of
    `values`, and the others are read as texts.
    """

    values: list[int]
    times: int | None = None
    clients: int | None = None
    known: Mapping[int, KnownColumn] = field(default_factory=dict)

    @property
    def targets(self) -> list[int]:
        """The columns of values that are to be forecast."""
        return [place for place in self.values if place not in self.known]

    @property
    def texts(self) -> list[int]:
        """The columns that are read as texts."""
        rest = [place for place in self.known if place not in self.values]
        return [*(place for place in (self.times, self.clients) if place is not None), *rest]

    @property
    def read(self) -> list[int]:
        """The columns that are read, in the order of the file."""
        return sorted({*self.texts, *self.values})

    def bytes_of(self, rows: int) -> int:
        """Return the memory that so many rows take while they are read."""
        return rows * (_NUMBER_BYTES * len(self.values) + _TEXT_BYTES * len(self.texts))


class Fault(NamedTuple):
    """A cell that is no number: its row in the table, its column's place, its text."""

    row: int
    place: int
    cell: str


@dataclass(frozen=True)
class Table:
    """The columns that were read from a file.

    texts: the times and clients, by place in the file. values: [T, N], NaN where missing or faulty.
    row, first: the word for a row in messages ("line" in a text file) and the number of the first
    row. notes: what a person should know of how the file was read. delimiter, decimal: the signs
    between cells and in numbers.
    """

    head: Head
    columns: Columns
    texts: DataFrame
    values: Matrix
    faults: tuple[Fault, ...] = ()
    row: str = "row"
    first: int = 1
    notes: tuple[str, ...] = ()
    delimiter: str = ","
    decimal: str = "."

    @property
    def where(self) -> str:
        """The file's name in messages."""
        return self.head.where

    @property
    def names(self) -> list[str]:
        """Names of the columns of values."""
        return [self.head.names[place] for place in self.columns.values]

    @property
    def column_names(self) -> ColumnNames:
        """Names of the columns of times, clients and, in the long form, values; the signs."""
        places = self.columns.times, self.columns.clients
        times, clients = ("" if place is None else self.head.names[place] for place in places)
        is_unnamed = times == INDEX
        values = self.names[0] if clients and self.names else ""
        names = "" if is_unnamed else times, values, clients
        return ColumnNames(*names, self.delimiter, self.decimal)

    def row_of(self, place: int) -> str:
        """Return the name of a row in messages, by its place in the table."""
        return f"{self.row} {self.first + int(self.texts.index[place])}"

    def select(self, rows: NDArray[np.intp]) -> Table:
        """Return a table with only these rows, by place; rows keep their numbers in messages."""
        return replace(self, texts=self.texts.iloc[rows], values=self.values[rows])

    def numbers(self) -> Matrix:
        """Return the values [T, N], NaN where missing; raise `DataError` for other texts."""
        for fault in self.faults:
            if fault.row in self.texts.index:
                raise DataError(
                    f"{self.where}: column {self.head.names[fault.place]!r}, {self.row} "
                    f"{self.first + fault.row}: {fault.cell!r} is not a number"
                )
        return self.values

    def stamps(self, unit: TimeUnit) -> Stamps | None:
        """Return the times of the rows [T], None without a time column."""
        place = self.columns.times
        if place is None:
            return None
        name = self.head.names[place]
        title = f"column {name!r}" if name else "the first column (without a name: the times)"
        return stamps_of(self.texts[place], unit, title, self.row_of, self.where)

    def clients(self) -> Series:
        """Return the client of each row, [T]; "" without a column of clients."""
        import pandas as pd

        if self.columns.clients is None:
            return pd.Series("", index=self.texts.index, dtype=str)
        column = self.texts[self.columns.clients]
        empty = column.isna() | (column.astype(str).str.strip() == "")
        if empty.any():
            row = self.row_of(int(empty.to_numpy().argmax()))
            name = self.head.names[self.columns.clients]
            raise DataError(f"{self.where}: column {name!r}, {row}: no client is named")
        # "North " is North, and an accent may be a character of its own or not.
        return column.astype(str).str.strip().str.normalize("NFC")

    def written_clients(self) -> Series:
        """Return the client of each row as the file writes it, [T]."""
        if self.columns.clients is None:
            return self.clients()
        return self.texts[self.columns.clients].astype(str)


class TableFile(ABC):
    """A file that holds a table: its head is read first, then the columns that are chosen.

    head: the names of its columns. decimal: how its numbers are written; "auto": as all cells
    together show. row, first: as in `Table`. delimiter: between the cells of a text.
    """

    head: Head
    decimal: Decimal = "auto"
    row = "row"
    first = 1
    delimiter = ","

    @abstractmethod
    def blocks(self, columns: Columns, style: Style | Literal["texts"]) -> Iterable[DataFrame]:
        """Yield the columns, by place, in blocks of rows with a running index.

        Numbers are read where the style allows it; those of "texts" are as the file writes them.
        It is called again if the numbers are not written plainly. Raises `DataError` before the
        rows take more memory than they may (`require_room`).
        """

    def read(self, columns: Columns) -> Table:
        """Read these columns.

        Raises `DataError` if the cells do not show how numbers are written, or contradict each
        other, and if hardly a cell is a number.
        """
        import pandas as pd

        notes = self.head.notes
        style: Style = "plain" if self.decimal == "auto" else self.decimal
        values, texts, faults = self._read(columns, style)
        if faults and self.decimal == "auto":
            cells = (block[p] for block in self.blocks(columns, "texts") for p in columns.values)
            style, note = style_of(cells, self._row_name, self.head.where)
            notes = (*notes, note) if note else notes
            rows = len(values)
            values, texts, faults = self._read(columns, style)
            if len(faults) <= _MOST_FAULTS and rows != len(values):
                raise DataError(f"{self.head.where}: changed while it was read")
        frame = pd.DataFrame(index=pd.RangeIndex(len(values)))
        for place in columns.texts:
            frame[place] = pd.concat([block[place] for block in texts])
        table = Table(
            self.head,
            columns,
            frame,
            values,
            tuple(faults),
            self.row,
            self.first,
            notes,
            self.delimiter,
            "," if style == "comma" else ".",
        )
        if len(faults) > _MOST_FAULTS:
            table.numbers()
        return _without_totals(table)

    def of_texts(self, places: Sequence[int]) -> set[int]:
        """Return which of these columns hold texts: under 90% of their first cells are numbers."""
        if not places:
            return set()
        first = next(iter(self.blocks(Columns(list(places)), "texts")))
        return {place for place in places if _holds_texts(first[place])}

    def _row_name(self, number: int) -> str:
        return f"{self.row} {self.first + number}"

    def _read(self, columns: Columns, style: Style) -> tuple[Matrix, list[DataFrame], list[Fault]]:
        """Return the values [T, N], the blocks of texts, and the cells that are no numbers.

        Stops after `_MOST_FAULTS` of these.
        """
        parts: list[Matrix] = []
        texts: list[DataFrame] = []
        faults: list[Fault] = []
        rows = 0
        for block in self.blocks(columns, style):
            part = np.empty((len(block), len(columns.values)))
            for position, place in enumerate(columns.values):
                part[:, position], wrong = numbers_in(block[place], style)
                faults += [
                    Fault(rows + int(number), place, str(block[place].iloc[number]))
                    for number in np.flatnonzero(wrong)[:_MOST_FAULTS]
                ]
            parts.append(part)
            texts.append(block[columns.texts])
            rows += len(block)
            if len(faults) > _MOST_FAULTS:
                break
        return np.concatenate(parts), texts, faults


def _holds_texts(column: Series) -> bool:
    if column.dtype.kind in "iuf":
        return False
    cells = column.dropna().head(_MOST_COMPARED).astype(str).str.strip()
    return bool(10 * cells.map(is_number).sum() < 9 * len(cells))


class FrameFile(TableFile):
    """A table that is a pandas frame, for formats of which pandas reads the whole file.

    frame: its columns and rows are numbered if the head is given. where: the file's name in
    messages. The memory that it takes is not bounded here.
    """

    first = 0

    def __init__(self, frame: DataFrame, where: str, head: Head | None = None) -> None:
        import pandas as pd

        if head is None:
            names = [str(name) for name in frame.columns]
            frame = frame.set_axis(pd.RangeIndex(len(names)), axis=1).reset_index(drop=True)
            head = Head(where, names, time_place(names, frame))
        self.head, self._frame = head, frame

    def blocks(self, columns: Columns, style: object) -> list[DataFrame]:
        return [self._frame[columns.read]]


def time_place(names: Sequence[str], frame: DataFrame) -> int | None:
    """Return the place of the time column: by its name, else the only column of a time type.

    frame: its columns are numbered.
    """
    by_name = [place for place, name in enumerate(names) if name.lower() in TIME_NAMES]
    of_type = [place for place in range(len(names)) if frame[place].dtype.kind == "M"]
    if by_name:
        return next((place for place in by_name if place in of_type), by_name[0])
    return of_type[0] if len(of_type) == 1 else None


def is_total(cell: str) -> bool:
    """Return whether the cell names a row of totals."""
    return cell.lower().rstrip(":") in _TOTALS


def _without_totals(table: Table) -> Table:
    """Return the table without a last row of totals, where a time should stand."""
    place = table.columns.times
    if place is None or len(table.values) < 2:
        return table
    last = str(table.texts[place].iloc[-1]).strip()
    if not is_total(last):
        return table
    note = f"{table.row_of(len(table.values) - 1)}, {last!r}, is left out"
    kept = table.select(np.arange(len(table.values) - 1))
    return replace(kept, notes=(*table.notes, note))


def require_named(names: Iterable[str], where: str) -> None:
    """Raise `DataError` if a column of values has no name, or two have the same name."""
    unique_names: set[str] = set()
    for name in names:
        if not name:
            raise DataError(f"{where}: a column of values has no name in the header")
        if name in unique_names:
            raise DataError(f"{where}: two columns are named {name!r}")
        unique_names.add(name)


def require_few_columns(count: int, where: str, noun: str = "columns") -> None:
    """Raise `DataError` for a table of more columns, or clients, than are read in minutes."""
    if count > MOST_COLUMNS:
        raise DataError(f"{where}: {count:,} {noun}, more than {MOST_COLUMNS:,}; cut the file")


def value_columns(head: Head, time_column: str, chosen: Sequence[str], key: str) -> Columns:
    """Return the time column and the value columns of a table without other columns.

    chosen: names of the value columns to read, from ``data.<key>``; empty: all.
    """
    times = head.place(time_column, "time-column") if time_column else head.times
    candidates = [place for place in range(len(head.names)) if place not in (times, head.index)]
    require_available(
        chosen, [head.names[place] for place in candidates], key, "column", head.where
    )
    values = [place for place in candidates if not chosen or head.names[place] in chosen]
    if not values:
        raise DataError(f"{head.where}: a time column, but no column of values")
    require_named((head.names[place] for place in values), head.where)
    return Columns(values, times)


def head_of(
    rows: list[list[str]], where: str, settings: DataSettings, row: str = "line", first_row: int = 1
) -> Head:
    """Return the names of the columns, from the cells of the first rows.

    row, first_row: the word for a row in messages, and the number of the first of them. Raises
    `DataError` if the first row may be names or values, or if there are too many columns.
    """
    first = rows[0]
    require_few_columns(len(first), where)
    if settings.header == "auto" and (line := header_line(rows)):
        values = next(n for n, cells in enumerate(rows[line:], line + 1) if _holds_values(cells))
        apart = values > line + 1
        begin = f", and the values in {row} {values + first_row - 1}" if apart else ""
        raise DataError(
            f"{where}: {row} {first_row} does not name the columns: their names seem to stand in "
            f"{row} {line + first_row - 1}{begin}; delete the {row}s above the names"
            f"{' and below them' if apart else ''}"
        )
    has_header = settings.header == "true"
    if settings.header == "auto":
        is_certain = len(rows) < 2 or has_names(rows, settings.decimal)
        if not is_certain and any(first):
            raise DataError(
                f"{where}: line 1 has values where names are expected ({', '.join(first[:5])}); "
                "set data.header = false if the file has no header, true if these are names"
            )
        has_header = True
    if not has_header:
        times = 0 if len(first) > 1 and look_like_times([row[0] for row in rows]) else None
        return Head(where, numbered(len(first)), times)
    above, notes = 1, tuple[str, ...]()
    if has_units(rows):
        units = ", ".join(filter(None, rows[1][:LOOKED_AT]))
        above, notes = 2, (f"the row below the header is taken for units: {units}",)
    named = [place for place, name in enumerate(first) if name.lower() in TIME_NAMES]
    if (
        first[0].lower() in UNNAMED
        and len(first) > 1
        and number_rows([row[0] for row in rows[above:]])
    ):
        # Without another column of times, or with one that is set, it may still be the time.
        times = named[0] if named else 0
        index = None if not named and not settings.time_column else 0
        return Head(where, first, times, above, notes, index)
    times = 0 if 0 in named or not first[0] else None
    return Head(where, first, times, above, notes)


def header_line(rows: list[list[str]]) -> int:
    """Return the number of the line that names the columns, if it is not the first, else 0.

    Titles, comments and a logger's own lines stand above it: the first line then has fewer cells
    with a text than the table, or more.
    """
    width = len(_filled(rows[-1]))
    if len(rows[0]) == len(rows[-1]) and len([cell for cell in rows[0] if cell]) >= width - 1:
        return 0
    for number, row in enumerate(rows[1:-1], 2):
        are_names = [not (is_number(cell) or is_date(cell)) for cell in row]
        is_header = len(_filled(row)) == width > 1 and all(are_names) and all(row[1:width])
        if is_header and any(map(_holds_values, rows[number : number + _MOST_BELOW_NAMES])):
            return number
    return 0


def _filled(row: list[str]) -> list[str]:
    """Return the cells up to the last that is not empty."""
    return row[: max((place for place, cell in enumerate(row, 1) if cell), default=0)]


def _holds_values(row: list[str]) -> bool:
    return any(is_number(cell) for cell in row)


def number_rows(cells: Sequence[str]) -> bool:
    """Return whether these cells count the rows: whole numbers that rise by one from 0 or 1."""
    if len(cells) < 2 or not all(map(str.isdecimal, cells)):
        return False
    numbers = list(map(int, cells))
    return numbers[0] in (0, 1) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def has_units(rows: list[list[str]]) -> bool:
    """Return whether the second of these rows holds units, such as kW, between names and values.

    It holds no number, no date and nothing that comes again below, and a text above numbers.
    """
    units, below = rows[1] if len(rows) > 1 else [], rows[2:]
    if not below or any(is_number(cell) or is_date(cell) for cell in units):
        return False
    columns = list(zip(units, zip(*below, strict=False), strict=False))
    if any(unit not in MISSING and unit in column for unit, column in columns):
        return False
    return any(unit not in MISSING and _are_numbers(column) for unit, column in columns)


def _are_numbers(cells: Sequence[str]) -> bool:
    present = [cell for cell in cells if cell not in MISSING]
    return bool(present) and all(map(is_number, present))


def has_names(rows: list[list[str]], decimal: Decimal) -> bool:
    """Return whether the first of these rows certainly holds the names of the columns.

    A date or a fraction is not a name. Whole numbers may be names, such as numbers of sensors; this
    is certain only if no number below is whole and each name is far larger than all numbers below.
    """
    first, below = rows[0], rows[1:]
    if not is_date(first[0]) and below and all(is_date(row[0]) for row in below):
        return True
    if any(is_date(cell) or is_fraction(cell) for cell in first):
        return False
    if not all(_is_value(cell) for cell in first):
        return True
    return _are_names_of_sensors(first, below, decimal)


def _are_names_of_sensors(first: list[str], below: list[list[str]], decimal: Decimal) -> bool:
    """Return whether these whole numbers are names: no value below is whole or nearly as large."""
    if len(set(first)) < len(first) or not all(map(str.isdecimal, first)):
        return False
    pairs = [pair for row in below for pair in zip(first, row, strict=False)]
    present = [(int(name), cell) for name, cell in pairs if cell not in MISSING]
    signs = {"auto": ".,", "point": ".", "comma": ","}[decimal]
    return bool(present) and all(
        is_fraction(cell)
        and any(sign in cell for sign in signs)
        and name > _FAR_LARGER * abs(float(cell.replace(",", ".")))
        for name, cell in present
    )


def is_date(cell: str) -> bool:
    """Return whether the cell looks like a period, or a date in any order of its parts."""
    return _DATE.fullmatch(cell) is not None or is_period(cell)


def is_clock_time(cell: str) -> bool:
    """Return whether the cell is a time without a date, such as 17:20."""
    return _CLOCK_TIME.fullmatch(cell) is not None


def is_fraction(cell: str) -> bool:
    """Return whether the cell is a number with a decimal sign or an exponent."""
    return _FRACTION.fullmatch(cell) is not None


def _is_value(cell: str) -> bool:
    """Return whether a cell is empty or a whole number, so perhaps not a name."""
    return cell in MISSING or re.fullmatch(r"[+-]?\d+", cell) is not None


def numbered(count: int) -> list[str]:
    """Return names for columns without names."""
    return [f"column-{number}" for number in range(1, count + 1)]
