"""Read a table from a sheet of an Excel file with openpyxl (the extra ``excel``).

openpyxl reads a sheet row by row. The faster calamine reserves memory for every cell between the
first and the last, so a sheet with two distant cells would end the process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from zipfile import ZipFile

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import require_file, require_room
from fedproto_app.data.number_styles import Style
from fedproto_app.data.source_checks import require_available
from fedproto_app.data.table import (
    LOOKED_AT,
    MISSING,
    Columns,
    TableFile,
    head_of,
    is_written_value,
    require_few_columns,
)
from fedproto_app.data.table_format import Sample, sample_of_rows, table_format
from fedproto_app.data.table_source import TableFormat
from fedproto_app.settings import DataSettings

if TYPE_CHECKING:
    from openpyxl import Workbook
    from openpyxl.worksheet._read_only import ReadOnlyWorksheet
    from pandas import DataFrame, Series

EXCEL_SUFFIX = re.compile(r"\.xls[xm]$", re.IGNORECASE)
_CELL_BYTES = 64  # memory for a value in a row, and its share of the row's own memory
_SAMPLED = 10_000  # rows that are read to recognise the form of a table
_UNCHECKED = 1 << 16  # cells that are read before the next look at the memory
_SHARED_TEXTS = 4  # as Python's texts, shared texts take this many times the size of their XML
_MOST_ROWS = 1 << 20  # Excel's limit; a damaged file may give a row any number

Row = list[object]


class ExcelFile(TableFile):
    """The sheet that is set, or the first sheet with values. Errors name the column and the row."""

    def __init__(self, path: Path, settings: DataSettings) -> None:
        self._rows, first, notes = _sheet(path, settings.sheet)
        texts = [[_text(cell) for cell in row] for row in self._rows[:LOOKED_AT]]
        head = head_of(texts, str(path), settings, "row", first)
        if len(self._rows) <= head.rows:
            raise DataError(f"{path}: only a header row, no values")
        self.head = replace(head, notes=(*notes, *head.notes))
        self.first = first + head.rows
        del self._rows[: head.rows]
        self.decimal = settings.decimal

    def blocks(self, columns: Columns, style: Style | Literal["texts"]) -> list[DataFrame]:
        import pandas as pd

        frame: DataFrame = pd.DataFrame(index=pd.RangeIndex(len(self._rows)))
        for place in columns.read:
            column = [row[place] for row in self._rows]
            if place in columns.values:
                frame[place] = _numbers_or_texts(column)
            else:
                frame[place] = _times(column) if place == columns.times else _texts(column)
        return [frame]


def _sample(path: Path, answers: DataSettings) -> Sample:
    rows, first_row, _ = _sheet(path, answers.sheet, _SAMPLED)
    ends = rows[:LOOKED_AT], rows[LOOKED_AT:][-LOOKED_AT:]
    first, last = ([[_text(cell) for cell in row] for row in part] for part in ends)
    return sample_of_rows(first, last, len(rows), answers.header, first_row=first_row)


def _sheet(
    path: Path, name: str, limit: int | None = None
) -> tuple[list[Row], int, tuple[str, ...]]:
    """Return the rows of a sheet, the number of the first of them, and notes.

    name: the sheet's name. "" stands for the first sheet with a row of values, or if there is none,
    the first that is not empty. limit: the number of rows to read, by default all.

    Empty rows and columns around the table are left out.
    """
    with _opened(path) as book:
        titles = [sheet.title for sheet in book.worksheets]
        if name:
            require_available([name], titles, "sheet", "sheet", str(path))
        read = [book.worksheets[titles.index(name)]] if name else book.worksheets
        chosen: tuple[str, list[Row], int] | None = None
        for sheet in read:
            rows, first = _rows(sheet, path, limit)
            has_values = _has_values(rows)
            if rows and (chosen is None or has_values):
                chosen = sheet.title, rows, first
            if has_values:
                break
        if chosen is not None:
            title, rows, first = chosen
            unread = ", ".join(unread for unread in titles if unread != title)
            note = f"only the sheet {title!r} is read, not {unread}: data.sheet chooses"
            return rows, first, (note,) if unread and not name else ()
    raise DataError(f"{path}: no cell has a value")


def _has_values(rows: list[Row]) -> bool:
    """Return whether a row holds two values, such as a time and a number, or nothing else."""
    for row in rows:
        cells = [text for cell in row if (text := _text(cell))]
        count = sum(map(is_written_value, cells))
        if count >= min(2, len(cells)) and cells:
            return True
    return False


def _rows(sheet: ReadOnlyWorksheet, path: Path, limit: int | None) -> tuple[list[Row], int]:
    sheet.reset_dimensions()  # the size that a file declares may be wrong
    rows: list[Row] = []
    first, cells, width, checked = 0, 0, 0, 0
    for number, values in enumerate(sheet.iter_rows(values_only=True), start=1):
        if number > _MOST_ROWS:
            raise DataError(f"{path}: more than {_MOST_ROWS:,} rows")
        row = list(values)
        while row and _is_empty(row[-1]):
            row.pop()
        require_few_columns(len(row), str(path))
        if not rows:
            if not row:
                continue
            first = number
        rows.append(row)
        cells, width = cells + len(row) + 1, max(width, len(row))
        if cells > checked:  # not at each row, because it makes a system call
            require_room(_CELL_BYTES * cells, path)
            checked = cells + _UNCHECKED
        if limit is not None and len(rows) == limit:
            break
    while rows and not rows[-1]:
        rows.pop()
    require_room(_CELL_BYTES * width * len(rows), path)
    margin = min((_margin(row) for row in rows if row), default=0)
    return [row[margin:] + [None] * (width - max(len(row), margin)) for row in rows], first


def _margin(row: Row) -> int:
    return next(place for place, cell in enumerate(row) if not _is_empty(cell))


def _is_empty(cell: object) -> bool:
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _text(cell: object) -> str:
    """Return a cell as it would be written in a text file."""
    if cell is None:
        return ""
    if isinstance(cell, date):
        return cell.isoformat(" ") if isinstance(cell, datetime) else cell.isoformat()
    number = int(cell) if isinstance(cell, float) and cell.is_integer() else cell
    return str(number).strip()


def _texts(cells: Row) -> Series:
    import pandas as pd

    return pd.Series([_text(cell) or None for cell in cells], dtype="str")


def _numbers_or_texts(cells: Row) -> Series:
    """Return a column of numbers, NaN where missing. A cell that is no number stays a text."""
    import pandas as pd

    texts = [_text(cell) for cell in cells]
    cells = [
        None if text in MISSING else cell if type(cell) in (int, float) else text
        for cell, text in zip(cells, texts, strict=True)
    ]
    has_text = any(isinstance(cell, str) for cell in cells)
    return pd.Series(cells, dtype=object if has_text else "float64")


def _times(cells: Row) -> Series:
    """Return a column of times, of counts such as days, or of texts."""
    import pandas as pd

    if all(isinstance(cell, datetime) for cell in cells):
        return pd.Series(cells, dtype="datetime64[us]")
    is_count = all(type(cell) in (int, float) for cell in cells)
    return pd.Series(cells) if is_count else _texts(cells)


@contextmanager
def _opened(path: Path) -> Iterator[Workbook]:
    """Open the file after a check of its unpacked size. Any fault becomes a `DataError`."""
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise DataError(
            f"{path}: Excel files need openpyxl: pip install 'fedproto-app[excel]'"
        ) from None
    require_file(path)
    try:
        with ZipFile(path) as archive:
            texts = [member for member in archive.infolist() if "sharedStrings" in member.filename]
            require_room(sum(member.file_size for member in archive.infolist()), path)
            require_room(_SHARED_TEXTS * sum(member.file_size for member in texts), path)
        with path.open("rb") as file:  # if openpyxl cannot read a file, it leaves it open
            book = load_workbook(file, read_only=True, data_only=True, keep_links=False)
            yield book
    except DataError:
        raise
    except Exception as error:  # damaged archives and XML fail in many ways
        line = str(error).partition("\n")[0]
        raise DataError(f"{path}: not a readable Excel file: {line}") from None


FORMAT = table_format(
    TableFormat("excel", EXCEL_SUFFIX, ".xlsx", ExcelFile, keys=("sheet", "header", "decimal")),
    "an .xlsx or .xlsm file, or a folder of them",
    _sample,
)
