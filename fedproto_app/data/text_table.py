"""Read tables from CSV and similar text files, plain or gzipped.

UTF-8 (a byte order mark is accepted), one line per row, the same number of cells in each. Cells are
separated by commas, semicolons, tabs or vertical bars, as set or as the first lines show. Missing
values are empty, ``NA``, ``NaN`` or ``null``.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from fedproto_app.core.errors import DataError
from fedproto_app.data.room import unpacked, whole_content
from fedproto_app.data.stamps import look_like_times
from fedproto_app.data.table import TIME_NAMES, ColumnSelector, Head, Table
from fedproto_app.settings import DELIMITERS, DataSettings
from fedproto_app.settings.choice import Decimal

SUFFIX = re.compile(r"\.[ct]sv(\.gz)?$", re.IGNORECASE)

MISSING = ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND"]
MISSING += ["1.#QNAN", "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
_LOOKED_AT = 50  # lines, to recognise the file's form
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


def read_text_table(path: Path, settings: DataSettings, select_columns: ColumnSelector) -> Table:
    """Read the selected columns of a file; `DataError` names the file, the column and the line."""
    return _table(decoded(whole_content(path), str(path)), str(path), settings, select_columns)


def parse_text_table(
    content: bytes, where: str, settings: DataSettings, select_columns: ColumnSelector
) -> Table:
    """Read the selected columns from the content of a file, gzipped or not."""
    return _table(decoded(unpacked(content, where), where), where, settings, select_columns)


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


def _table(text: str, where: str, settings: DataSettings, select_columns: ColumnSelector) -> Table:
    import pandas as pd

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
