"""Read a table from a text file: CSV and alike, plain or gzipped, in UTF-8 (a byte order mark is
accepted), with one line per row and the same number of cells in each.

Cells are separated by commas, semicolons, tabs or vertical bars, as set or as the first lines show.
Missing values are empty, ``NA``, ``NaN`` or ``null``. The file is read twice in blocks: first to
count and to refuse, then by pandas. pandas alone would fill short lines and cut long ones without a
word, and it bounds neither the length of a line nor the memory.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import open_unpacked, require_room
from fedproto_app.data.number_styles import Style
from fedproto_app.data.table import (
    BLOCK_CELLS,
    LOOKED_AT,
    MISSING,
    Columns,
    ColumnSelector,
    Table,
    head_of,
    require_few_columns,
    table_of,
)
from fedproto_app.settings import DELIMITERS, DataSettings
from fedproto_app.settings.choice import Decimal

if TYPE_CHECKING:
    from pandas import DataFrame

SUFFIX = re.compile(r"\.[ct]sv(\.gz)?$", re.IGNORECASE)
LONGEST_LINE = 1 << 24  # bytes; a line is held as text and as cells
_PIECE = 1 << 20  # bytes that are read at once
_MARKS = {  # first bytes of files that are not text
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"PAR1": "a Parquet file; source wide-parquet or long-parquet reads it",
    b"PK\x03\x04": "a zip archive or an Excel sheet; give it the ending .xlsx",
    b"\xd0\xcf\x11\xe0": "an old Excel sheet; save it as .xlsx or CSV",
    b"\x89HDF": "an HDF5 file; source hdf5 reads it",
}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_END = ord("\n")


def read_text_table(
    source: Path | bytes, where: str, settings: DataSettings, select_columns: ColumnSelector
) -> Table:
    """Read the selected columns of a file, or of its content.

    where: the file's name in messages. Raises `DataError` naming the file, the column and the line.
    """
    import pandas as pd

    try:
        lines = first_lines(source, where)
        delimiter = DELIMITERS.get(settings.delimiter) or delimiter_of(
            lines, where, settings.decimal
        )
        head = head_of([cells(line, delimiter) for line in lines], where, settings)
        if len(lines) <= head.rows:
            raise DataError(f"{where}: only a header line, no values")
        columns = select_columns(head)
        rows = _rows(source, where, len(head.names), delimiter, columns) - head.rows

        def blocks(style: Style | Literal["texts"]) -> Iterator[DataFrame]:
            # With the delimiter as its decimal sign, pandas would cut cells: texts are safe.
            in_texts = style == "texts" or (style == "comma" and delimiter == ",")
            kinds = columns.read if in_texts else columns.texts
            missing: Any = MISSING
            if columns.clients is not None:  # "NA" may be a country's code
                missing = {**dict.fromkeys(columns.read, MISSING), columns.clients: [""]}
            arguments: dict[str, Any] = {  # pandas takes places for names, its stubs do not
                "sep": delimiter,
                "decimal": "," if style == "comma" and not in_texts else ".",
                "names": range(len(head.names)),
                "usecols": columns.read,
                "dtype": dict.fromkeys(kinds, str),
                "na_values": missing,
            }
            with open_unpacked(source, where) as stream:
                yield from pd.read_csv(
                    stream,
                    **arguments,
                    header=None,
                    skiprows=head.rows,
                    index_col=False,
                    keep_default_na=False,
                    skip_blank_lines=False,  # in a single column such a line is a missing value
                    skipinitialspace=True,
                    encoding="utf-8-sig",
                    low_memory=False,
                    nrows=rows,
                    chunksize=max(1, BLOCK_CELLS // len(head.names)),
                )

        table = table_of(head, columns, rows, blocks, settings.decimal, "line", 1 + head.rows)
        return replace(table, delimiter=delimiter)
    except (csv.Error, pd.errors.ParserError) as error:
        raise DataError(f"{where}: not a readable CSV file: {error}") from None


def _rows(source: Path | bytes, where: str, width: int, delimiter: str, columns: Columns) -> int:
    """Return the number of rows, header included, up to the last that is not empty.

    Raises `DataError` for a row with too few or many cells, and for more rows than fit into memory.
    """
    rows, last = 0, 0
    first_wrong: tuple[int, int] | None = None  # row and its width, if only empty rows follow
    size = 0
    for widths, is_empty, length in _widths(source, where, delimiter):
        wrong = widths != width
        present = np.flatnonzero(~is_empty)
        if present.size:
            if first_wrong is None and (places := np.flatnonzero(wrong[: present[-1] + 1])).size:
                first_wrong = rows + int(places[0]) + 1, int(widths[places[0]])
            if first_wrong is not None:
                row, cells_in_row = first_wrong
                raise DataError(f"{where}: line {row} has {cells_in_row} cells, line 1 has {width}")
            last = rows + int(present[-1]) + 1
        if first_wrong is None and (places := np.flatnonzero(wrong)).size:
            first_wrong = rows + int(places[0]) + 1, int(widths[places[0]])
        rows += len(widths)
        size += length
        require_room(columns.bytes_of(last) + size, where)
    return last


def _widths(source: Path | bytes, where: str, delimiter: str) -> Iterator[tuple[Any, Any, int]]:
    """Yield the number of cells of each row, whether the row is empty, and the bytes of the rows.

    Rows come in blocks. From the first quotation mark on they are cut by `csv`, as a quoted cell
    may hold delimiters and ends of lines.
    """
    blocks = _blocks(source, where)
    for block in blocks:
        if b'"' in block:
            yield from _quoted_widths(chain([block], blocks), delimiter)
            return
        data = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(data == _LINE_END)
        signs = np.flatnonzero(data == ord(delimiter))
        lengths = np.diff(ends, prepend=-1) - 1
        is_empty = (lengths == 0) | ((lengths == 1) & (data[ends - 1] == ord("\r")))
        yield np.diff(np.searchsorted(signs, ends), prepend=0) + 1, is_empty, len(block)


def _quoted_widths(blocks: Iterator[bytes], delimiter: str) -> Iterator[tuple[Any, Any, int]]:
    size = 0

    def lines() -> Iterator[str]:
        nonlocal size
        for block in blocks:
            size += len(block)
            yield from (f"{line}\n" for line in block.decode().split("\n")[:-1])

    rows = csv.reader(lines(), delimiter=delimiter, skipinitialspace=True)
    while widths := [len(row) for row in islice(rows, LOOKED_AT * 100)]:
        counts = np.array(widths)
        yield np.maximum(counts, 1), counts == 0, size
        size = 0


def _blocks(source: Path | bytes, where: str) -> Iterator[bytes]:
    """Yield the text of a file in blocks of whole lines, each ended by a line feed.

    Raises `DataError` for a file that is no UTF-8 text, too large, or has too long a line.
    """
    size, lines, unfinished = 0, 0, b""
    with open_unpacked(source, where) as stream:
        while piece := stream.read(_PIECE):
            if not size:
                _require_no_mark(piece, where)
            size += len(piece)
            require_room(size, where)
            if size == len(piece):
                piece = piece.removeprefix(_BYTE_ORDER_MARK)
            end = piece.rfind(b"\n") + 1
            if end:
                block, unfinished = unfinished + piece[:end], piece[end:]
                _require_text(block, size - len(unfinished) - len(block), where)
                lines += block.count(b"\n")
                yield block
            else:
                unfinished += piece
            if len(unfinished) > LONGEST_LINE:
                raise DataError(
                    f"{where}: line {lines + 1} is longer than {LONGEST_LINE >> 20} MiB; is it a "
                    "table?"
                )
    if unfinished:
        _require_text(unfinished, size - len(unfinished), where)
        yield unfinished + b"\n"


def _require_no_mark(content: bytes, where: str) -> None:
    for mark, meaning in _MARKS.items():
        if content.startswith(mark):
            raise DataError(f"{where}: not UTF-8 text: it looks like {meaning}")


def _require_text(content: bytes, offset: int, where: str) -> None:
    """Raise `DataError` if this part of a file, from the offset on, is not UTF-8 text."""
    try:
        content.isascii() or content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 text: byte {content[error.start]:#04x} at offset "
            f"{offset + error.start}; save it as UTF-8"
        ) from None
    if b"\0" in content:
        place = offset + content.index(b"\0")
        raise DataError(f"{where}: not UTF-8 text: a zero byte after {place} bytes")
    if content.count(b"\r") != content.count(b"\r\n"):
        raise DataError(
            f"{where}: a carriage return without a line feed; end lines with a line feed"
        )


def text_lines(source: Path | bytes, where: str) -> Iterator[str]:
    """Yield the lines of a file, gzipped or not, or of its content, without their ends.

    where: the file's name in messages. Raises `DataError` as for a table.
    """
    for block in _blocks(source, where):
        for line in block.decode().split("\n")[:-1]:
            yield line.removesuffix("\r")


def first_lines(source: Path | bytes, where: str) -> list[str]:
    """Return the first lines, to recognise the file's form; `DataError` for an empty file."""
    lines = list(islice(text_lines(source, where), LOOKED_AT))
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError(f"{where}: the file is empty")
    require_few_columns(max(map(lines[0].count, DELIMITERS.values())) + 1, where)
    return lines


def last_lines(source: Path | bytes, where: str) -> tuple[list[str], int]:
    """Return up to as many last lines as `first_lines` returns, without these, and the number of
    all lines."""
    lines, blocks = 0, [b"", b""]
    for block in _blocks(source, where):
        lines += block.count(b"\n")
        blocks = [blocks[1], block]
    texts = b"".join(blocks).decode().split("\n")[:-1]
    further = min(LOOKED_AT, lines - LOOKED_AT)
    return [line.removesuffix("\r") for line in texts[-further:] if line] * (further > 0), lines


def cells(line: str, delimiter: str) -> list[str]:
    """Return the cells of a line."""
    row = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [""])
    return [cell.strip() for cell in row] or [""]


def delimiter_of(lines: list[str], where: str, decimal: Decimal = "auto") -> str:
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
    # Titles above a table have other cells than its last lines.
    of_last = [sign for sign in DELIMITERS.values() if _cuts_evenly(lines[len(lines) // 2 :], sign)]
    likely = of_last if len(of_last) == 1 else DELIMITERS.values()
    return next(iter(fitting), max(likely, key=lines[0].count))


def _cuts_evenly(lines: list[str], sign: str) -> bool:
    """Return whether the sign cuts each line into the same number of cells, two or more."""
    try:
        widths = {len(cells(line, sign)) for line in lines}
    except csv.Error:  # a cell without end
        return False
    return len(widths) == 1 and widths != {1}
