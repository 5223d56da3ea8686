"""A table of named columns, its numbers, texts and times, read from a text or a Parquet file.

Text files are CSV and alike, plain or gzipped: UTF-8 (a byte order mark is accepted), one line per
row, the same number of cells in each. Cells are separated by commas, semicolons, tabs or vertical
bars, as set or as the first lines show. Missing values are empty, ``NA``, ``NaN`` or ``null``.
Parquet files are read column by column with pyarrow (the extra ``parquet``).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Matrix, Stamps, look_like_times, stamps_of
from fedproto_app.data.files import content_of, require_room, unpacked
from fedproto_app.data.series import ColumnNames
from fedproto_app.data.source_checks import require_available
from fedproto_app.settings import DELIMITERS, DataSettings
from fedproto_app.settings.choice import Decimal, TimeUnit

if TYPE_CHECKING:
    from pandas import DataFrame, Series

TIME_NAMES = frozenset({"time", "timestamp", "date", "datetime", "date_time", "date time", "ds"})
SUFFIX = re.compile(r"\.[ct]sv(\.gz)?$", re.IGNORECASE)
PARQUET_SUFFIX = re.compile(r"\.(parquet|pq)$", re.IGNORECASE)

MISSING = ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND"]
MISSING += ["1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
_LOOKED_AT = 50  # lines or rows, to recognise the file's form
_FAR_LARGER = 10  # times: a number in the first line is a name if all below are smaller by this
_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}([T ].*)?")
_FRACTION = re.compile(r"[+-]?(\d+[.,]\d*|[.,]\d+|\d+(?=[eE]))([eE][+-]?\d+)?")
_MARKS = {  # first bytes of files that are not text
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"PAR1": "a Parquet file; source wide-parquet or long-parquet reads it",
    b"PK\x03\x04": "a zip archive or an Excel sheet; save the sheet as CSV",
    b"\xd0\xcf\x11\xe0": "an old Excel sheet; save it as CSV",
    b"\x89HDF": "an HDF5 file; source hdf5 reads it",
}
_INDEX = "__index_level_0__"  # pandas' name for an index without a name


@dataclass(frozen=True)
class Head:
    """The column names of a file, before the columns are read.

    times: the place of the column that looks like a time column, None without one.
    """

    where: str
    names: list[str]
    times: int | None

    def place(self, name: str, key: str) -> int:
        """Return the place of the column that ``data.<key>`` names."""
        require_available([name], self.names, key, "column", self.where)
        return self.names.index(name)


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are read, by place. values: numbers."""

    values: list[int]
    times: int | None = None
    clients: int | None = None

    @property
    def texts(self) -> list[int]:
        """The columns that are read as texts."""
        return [place for place in (self.times, self.clients) if place is not None]


ColumnSelector = Callable[[Head], Columns]


@dataclass(frozen=True)
class Table:
    """The columns that were read from a file.

    frame: columns by place in the file. row, first: the word for a row in messages ("line" in a
    text file) and the number of the first row.
    """

    head: Head
    columns: Columns
    frame: DataFrame
    row: str = "row"
    first: int = 1
    decimal: Decimal = "point"

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
        """Names of the columns of times, clients and, in the long form, values."""
        places = self.columns.times, self.columns.clients
        times, clients = ("" if place is None else self.head.names[place] for place in places)
        is_unnamed = times == _INDEX
        return ColumnNames("" if is_unnamed else times, self.names[0] if clients else "", clients)

    def row_of(self, place: int) -> str:
        """Return the name of a row in messages, by its place in the frame."""
        return f"{self.row} {self.first + int(self.frame.index[place])}"

    def select(self, rows: NDArray[np.intp]) -> Table:
        """Return a table with only these rows, by place; rows keep their numbers in messages."""
        return replace(self, frame=self.frame.iloc[rows])

    def numbers(self) -> Matrix:
        """Return the values [T, N], NaN where missing; raise `DataError` for other texts."""
        values = np.empty((len(self.frame), len(self.columns.values)))
        for position, place in enumerate(self.columns.values):
            values[:, position] = self._numbers(self.frame[place], self.head.names[place])
        return values

    def stamps(self, unit: TimeUnit) -> Stamps | None:
        """Return the times of the rows [T], None without a time column."""
        place = self.columns.times
        if place is None:
            return None
        name = self.head.names[place]
        title = f"column {name!r}" if name else "the first column (without a name: the times)"
        return stamps_of(self.frame[place], unit, title, self.row_of, self.where)

    def clients(self) -> Series:
        """Return the client of each row, [T]."""
        assert self.columns.clients is not None
        column = self.frame[self.columns.clients]
        empty = column.isna() | (column.astype(str).str.strip() == "")
        if empty.any():
            row = self.row_of(int(empty.to_numpy().argmax()))
            name = self.head.names[self.columns.clients]
            raise DataError(f"{self.where}: column {name!r}, {row}: no client is named")
        return column.astype(str).str.strip()

    def _numbers(self, column: Series, name: str) -> NDArray[np.float64]:
        import pandas as pd

        if column.dtype.kind in "iuf":
            return column.to_numpy(dtype=np.float64)
        texts = column.astype(str).str.strip()
        strange = pd.Series(False, index=column.index)
        if self.decimal == "comma":
            strange = texts.str.contains(".", regex=False)  # of thousands: 1.500 is not 1.5
            texts = texts.str.replace(",", ".", regex=False)
        numbers = pd.to_numeric(texts, errors="coerce")
        if (wrong := ((numbers.isna() | strange) & column.notna()).to_numpy()).any():
            place = int(wrong.argmax())
            cell = str(column.iloc[place])
            raise DataError(
                f"{self.where}: column {name!r}, {self.row_of(place)}: {cell!r} is not a number"
                f"{_about(cell, self.decimal)}"
            )
        return numbers.to_numpy(dtype=np.float64)


def _about(cell: str, decimal: Decimal) -> str:
    """Return a hint why a cell is not a number, or ""."""
    if decimal == "point" and cell.count(",") == 1 and cell.replace(",", "").isdecimal():
        return '; data.decimal = "comma" reads decimal commas'
    if decimal == "comma" and "." in cell:
        return ' where data.decimal = "comma"'
    return ""


def require_named(names: Iterable[str], where: str) -> None:
    """Raise `DataError` if a column of values has no name, or two have the same name."""
    unique_names: set[str] = set()
    for name in names:
        if not name:
            raise DataError(
                f"{where}: a column of values has no name in the header (an index that pandas "
                "wrote? leave it out by index=False)"
            )
        if name in unique_names:
            raise DataError(f"{where}: two columns are named {name!r}")
        unique_names.add(name)


def value_columns(head: Head, time_column: str, chosen: Sequence[str], key: str) -> Columns:
    """Return the time column and the value columns of a table without other columns.

    chosen: names of the value columns to read, from ``data.<key>``; empty: all.
    """
    times = head.place(time_column, "time-column") if time_column else head.times
    candidates = [place for place in range(len(head.names)) if place != times]
    require_available(
        chosen, [head.names[place] for place in candidates], key, "column", head.where
    )
    values = [place for place in candidates if not chosen or head.names[place] in chosen]
    if not values:
        raise DataError(f"{head.where}: a time column, but no column of values")
    require_named((head.names[place] for place in values), head.where)
    return Columns(values, times)


def read_text_table(path: Path, settings: DataSettings, select_columns: ColumnSelector) -> Table:
    """Read the selected columns of a file; `DataError` names the file, the column and the line."""
    return parse_text_table(content_of(path), str(path), settings, select_columns)


def parse_text_table(
    content: bytes, where: str, settings: DataSettings, select_columns: ColumnSelector
) -> Table:
    """Read the selected columns from the content of a file, gzipped or not."""
    import pandas as pd

    text = decoded(unpacked(content, where), where)
    try:
        lines = first_lines(text)
        if not text.strip():
            raise DataError(f"{where}: the file is empty")
        delimiter = DELIMITERS.get(settings.delimiter) or delimiter_of(
            lines, where, settings.decimal
        )
        head, begins = _head([cells(line, delimiter) for line in lines], where, settings)
        if len(lines) <= begins:
            raise DataError(f"{where}: only a header line, no values")
        columns = select_columns(head)
        _require_rectangle(text, len(head.names), delimiter, where)
        # pandas takes places for names, its stubs do not.
        kinds: dict[Any, Any] = dict.fromkeys(columns.texts, str)
        missing: dict[Any, Any] = {
            **dict.fromkeys(columns.values, MISSING),
            **{place: [""] for place in columns.texts},  # "NA" may be a country's code
        }
        frame = pd.read_csv(
            io.StringIO(text),
            sep=delimiter,
            decimal="," if settings.decimal == "comma" else ".",
            header=None,
            names=range(len(head.names)),
            usecols=sorted({*columns.texts, *columns.values}),
            skiprows=begins,
            index_col=False,
            dtype=kinds,
            na_values=missing,
            keep_default_na=False,
            skip_blank_lines=False,  # in a file of one column an empty line is a missing value
            skipinitialspace=True,
            low_memory=False,
        )
    except (csv.Error, pd.errors.ParserError) as error:
        raise DataError(f"{where}: not a readable CSV file: {error}") from None
    return Table(head, columns, frame, "line", 1 + begins, settings.decimal)


def _head(rows: list[list[str]], where: str, settings: DataSettings) -> tuple[Head, int]:
    """Return the names of the columns, and the number of lines before the first row."""
    first, decimal_comma = rows[0], settings.decimal == "comma"
    has_header = settings.header == "true"
    if settings.header == "auto":
        is_certain = len(rows) < 2 or has_names(rows, decimal_comma)
        if not is_certain and any(first):
            raise DataError(
                f"{where}: line 1 has values where names are expected ({', '.join(first[:5])}); "
                "set data.header = false if the file has no header, true if these are names"
            )
        has_header = True
    if has_header:
        return Head(where, first, 0 if first[0].lower() in TIME_NAMES or not first[0] else None), 1
    times = 0 if len(first) > 1 and look_like_times([row[0] for row in rows]) else None
    return Head(where, numbered(len(first)), times), 0


def _require_rectangle(text: str, columns: int, delimiter: str, where: str) -> None:
    """Raise `DataError` for a line with too few or many cells, which pandas would fill or cut."""
    for line, width in enumerate(_widths(text, delimiter), start=1):
        if width != columns:
            raise DataError(f"{where}: line {line} has {width} cells, line 1 has {columns}")


def _widths(text: str, delimiter: str) -> Iterator[int]:
    if '"' not in text:
        return (line.count(delimiter) + 1 for line in text.split("\n"))
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True)
    return (max(1, len(row)) for row in rows)


def decoded(content: bytes, where: str) -> str:
    """Return the text in these bytes, without line ends after the last line."""
    for mark, meaning in _MARKS.items():
        if content.startswith(mark):
            raise DataError(f"{where}: not UTF-8 text: it looks like {meaning}")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 text: byte {content[error.start]:#04x} at offset {error.start}; "
            "save it as UTF-8"
        ) from None
    if "\0" in text:
        offset = text.index("\0")
        raise DataError(f"{where}: not UTF-8 text: a zero byte after {offset} characters")
    return text.rstrip("\r\n")


def first_lines(text: str) -> list[str]:
    """Return the first lines, to recognise the file's form."""
    return [line.rstrip("\r\n") for line in islice(io.StringIO(text, newline="\n"), _LOOKED_AT)]


def cells(line: str, delimiter: str) -> list[str]:
    """Return the cells of a line."""
    row = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [""])
    return [cell.strip() for cell in row] or [""]


def delimiter_of(lines: list[str], where: str, decimal: Decimal = "point") -> str:
    """Return the delimiter that cuts all of these lines into the same number of cells.

    Raises `DataError` if several do. If none does, return the most frequent delimiter of the first
    line, so that a later check names the line with too few or too many cells.
    """
    fitting = {sign for sign in DELIMITERS.values() if _cuts_evenly(lines, sign)}
    if decimal == "comma" and len(fitting) > 1:
        fitting -= {","}
    if len(fitting) > 1:
        names = [name for name, sign in DELIMITERS.items() if sign in fitting]
        raise DataError(
            f"{where}: cells could be separated by {' or '.join(names)}; set data.delimiter to one "
            "of them"
        )
    return next(iter(fitting), max(DELIMITERS.values(), key=lines[0].count))


def _cuts_evenly(lines: list[str], sign: str) -> bool:
    """Return whether the sign cuts each line into the same number of cells, two or more."""
    try:
        widths = {len(cells(line, sign)) for line in lines}
    except csv.Error:  # a cell without end
        return False
    return len(widths) == 1 and widths != {1}


def has_names(rows: list[list[str]], decimal_comma: bool) -> bool:
    """Return whether the first of these rows certainly holds the names of the columns.

    A date or a fraction is not a name. Whole numbers may be names, such as numbers of sensors; this
    is certain only if no number below is whole and each name is far larger than all numbers below.
    """
    first, below = rows[0], rows[1:]
    if not is_date(first[0]) and below and all(is_date(row[0]) for row in below):
        return True
    if any(is_date(cell) or _is_fraction(cell) for cell in first):
        return False
    if not all(_is_value(cell) for cell in first):
        return True
    return _are_names_of_sensors(first, below, decimal_comma)


def _are_names_of_sensors(first: list[str], below: list[list[str]], decimal_comma: bool) -> bool:
    """Return whether these whole numbers are names: no value below is whole or nearly as large."""
    if len(set(first)) < len(first) or not all(map(str.isdecimal, first)):
        return False
    pairs = [pair for row in below for pair in zip(first, row, strict=False)]
    present = [(int(name), cell) for name, cell in pairs if cell not in MISSING]
    point = "," if decimal_comma else "."
    return bool(present) and all(
        _is_fraction(cell)
        and point in cell
        and name > _FAR_LARGER * abs(float(cell.replace(",", ".")))
        for name, cell in present
    )


def is_date(cell: str) -> bool:
    """Return whether the cell looks like a date, in any order of year, month and day."""
    return _DATE.fullmatch(cell) is not None


def _is_fraction(cell: str) -> bool:
    return _FRACTION.fullmatch(cell) is not None


def _is_value(cell: str) -> bool:
    """Return whether a cell is empty or a whole number, so perhaps not a name."""
    return cell in MISSING or re.fullmatch(r"[+-]?\d+", cell) is not None


def numbered(count: int) -> list[str]:
    """Return names for columns without names."""
    return [f"column-{number}" for number in range(1, count + 1)]


def read_parquet_table(path: Path, select_columns: ColumnSelector) -> Table:
    """Read the selected columns of a file, after a check of the sizes that the file declares."""
    with _opened(path) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        head = Head(str(path), list(schema.names), _times(schema))
        columns = select_columns(head)
        if not rows:
            raise DataError(f"{path}: no row in it")
        places = sorted({*columns.texts, *columns.values})
        names = [head.names[place] for place in places]
        row_size = sum(_bytes_of_a_cell(schema.field(place), path) for place in places)
        for name in names:
            if head.names.count(name) > 1:
                raise DataError(f"{path}: two columns are named {name!r}")
        require_room(rows * row_size, path)
        read = file.read(columns=names).select(names)  # "a" would select "a.b" as well
        frame = read.to_pandas(ignore_metadata=True)
    frame.columns = places
    return Table(head, columns, frame)


def first_rows(path: Path) -> tuple[Head, list[list[str]]]:
    """Return the columns of a file, and the cells of the first rows as texts, by column."""
    with _opened(path) as file:
        head = Head(str(path), list(file.schema_arrow.names), _times(file.schema_arrow))
        require_room(file.metadata.num_rows * len(head.names), path)
        batch = next(file.iter_batches(batch_size=_LOOKED_AT), None)
        columns = [] if batch is None else batch.columns
        texts = [list(map(str, column.to_pylist())) for column in columns]
        return head, texts or [[] for _ in head.names]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open the file; a pyarrow error becomes a `DataError` of one line."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{path}: Parquet files need pyarrow: pip install 'fedproto-app[parquet]'"
        ) from None
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (OSError, ValueError, KeyError, pyarrow.ArrowException) as error:
        line = str(error).partition("\n")[0]
        raise DataError(f"{path}: not a readable Parquet file: {line}") from None


def _times(schema: Any) -> int | None:
    """Return the place of the time column: by its name, else the only column of a time type.

    pandas writes the index of a frame as the last column.
    """
    from pyarrow import types

    names = [name.lower() for name in schema.names]
    named_places = [place for place, name in enumerate(names) if name in {*TIME_NAMES, _INDEX}]
    typed = [place for place, kind in enumerate(schema.types) if types.is_temporal(kind)]
    if named_places:
        return next((place for place in named_places if place in typed), named_places[0])
    return typed[0] if len(typed) == 1 else None


def _bytes_of_a_cell(field: Any, path: Path) -> int:
    """Return the size of a cell of a column when it is read; `DataError` for lists and bytes."""
    from pyarrow import types

    if types.is_nested(field.type) or types.is_binary(field.type):
        raise DataError(f"{path}: column {field.name!r} holds {field.type}, not numbers")
    return 8 if types.is_primitive(field.type) else 64
