"""Read a table from a text file: CSV or a similar format, plain or gzipped, in UTF-8.

A byte order mark is accepted. There is one line per row, with the same number of cells in each.
Cells are separated by commas, semicolons, tabs or vertical bars, as set or as the first lines show.
Missing values are empty, ``NA``, ``NaN`` or ``null``. The file is read in blocks, which are checked
before pandas reads them. Pandas alone would silently fill short lines and cut long ones, and it
limits neither the length of a line nor the memory.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import open_unpacked, require_room
from fedproto_app.data.format import Changes
from fedproto_app.data.number_styles import Style
from fedproto_app.data.table import (
    LOOKED_AT,
    MISSING,
    Columns,
    Head,
    TableFile,
    head_of,
    require_few_columns,
)
from fedproto_app.data.table_format import Sample, sample_of_rows, table_format
from fedproto_app.data.table_source import TableFormat
from fedproto_app.settings import DELIMITERS, DataSettings
from fedproto_app.settings.choice import Decimal

if TYPE_CHECKING:
    from pandas import DataFrame

SUFFIX = re.compile(r"\.[ct]sv(\.gz)?$", re.IGNORECASE)
LONGEST_LINE = 1 << 24  # bytes; a line is held in memory as text and as cells
_PIECE = 1 << 23  # bytes that are read and parsed at once
_MARKS = {  # first bytes of files that are not text
    b"\xff\xfe": "UTF-16 text; save it as UTF-8",
    b"\xfe\xff": "UTF-16 text; save it as UTF-8",
    b"PAR1": "a Parquet file; source wide-parquet or long-parquet reads it",
    b"PK\x03\x04": "a zip archive or an Excel sheet; give it the ending .xlsx",
    b"\xd0\xcf\x11\xe0": "an old Excel sheet; save it as .xlsx or CSV",
    b"\x89HDF": "an HDF5 file; source hdf5 reads it",
}
_IF_TITLES = "; if the names of the columns stand further down, set data.header to their line"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_RULE = re.compile(rb"^[-|+]*-{3}[-|+]*\r?\n", re.MULTILINE)  # a line of dashes, as in SAP's lists
_BARS = re.compile(rb"^\|(.*)\|\r?$", re.MULTILINE)
_LINE_END = ord("\n")


class CsvFile(TableFile):
    """A table in a file, or in its content. Errors name the column and the line.

    where: the file's name in messages. Raises `DataError` if the file holds no such table.
    """

    row = "line"

    def __init__(self, source: Path | bytes, where: str, settings: DataSettings) -> None:
        self._source, self._where, self.decimal = source, where, settings.decimal
        self._text = _without_blank_end(_blocks(source, where))
        try:
            beginning: list[bytes] = []
            while sum(block.count(b"\n") for block in beginning) < LOOKED_AT:
                if (block := next(self._text, None)) is None:
                    break
                beginning.append(block)
            lines = _first_lines(b"".join(beginning), where)
            self.delimiter = DELIMITERS.get(settings.delimiter) or delimiter_of(
                lines, where, settings.decimal
            )
            self.head = head_of([cells(line, self.delimiter) for line in lines], where, settings)
            if len(lines) <= self.head.rows:
                raise DataError(f"{where}: only a header line, no values")
        except csv.Error as error:
            raise _no_csv(where, error) from None
        self.first = 1 + self.head.rows
        # The first blocks are read only once: their lines are yielded again with the others.
        self._unread: Iterator[bytes] | None = chain(beginning, self._text)

    def blocks(self, columns: Columns, style: Style | Literal["texts"]) -> Iterator[DataFrame]:
        import pandas as pd

        text = self._unread or _without_blank_end(_blocks(self._source, self._where))
        self._unread = None
        text = _without_first(text, self.head.rows)
        # If the delimiter were also the decimal sign, pandas would cut cells. Texts are safe.
        in_texts = style == "texts" or (style == "comma" and self.delimiter == ",")
        kinds: dict[int, Any] = dict.fromkeys(columns.read if in_texts else (), "str")
        empty_end = [self.head.index] if self.head.index == len(self.head.names) - 1 else []
        used = [*columns.read, *empty_end]
        # "NA" may be a country's code. pandas looks a list of missing values up once, but a
        # dictionary for each column. It accepts places as keys, which its type stubs do not.
        names = [*columns.parts(columns.clients), *empty_end]
        missing: Any = {p: [""] if p in names else MISSING for p in used} if names else MISSING
        first = 0
        try:
            for block in _checked(text, self.head, self.delimiter, columns):

                def parsed(block: bytes = block, kinds: dict[int, Any] = kinds) -> DataFrame:
                    return pd.read_csv(
                        BytesIO(block),
                        sep=self.delimiter,
                        decimal="," if style == "comma" and not in_texts else ".",
                        names=range(len(self.head.names)),
                        usecols=used,
                        dtype=kinds or None,
                        na_values=missing,
                        header=None,
                        index_col=False,
                        keep_default_na=False,
                        skip_blank_lines=False,  # in one column such a line is a missing value
                        # Blanks before a cell matter only to quotation marks, and slow pandas.
                        skipinitialspace=b'"' in block,
                        encoding="utf-8",
                        low_memory=False,
                    )

                frame = parsed()
                # pandas is quickest if it detects itself that cells are texts. It takes 007 for a
                # number, so a column of texts whose cells may all be numbers is parsed again.
                numbers = [place for place in columns.texts if frame[place].dtype.kind != "O"]
                if numbers:
                    kinds |= dict.fromkeys(numbers, object)
                    frame = parsed()
                for place in empty_end:
                    if (has_value := frame[place].notna().to_numpy()).any():
                        raise DataError(
                            f"{self._where}: the last column has no name, but a value in "
                            f"{self._row_name(first + int(has_value.argmax()))}; give the column a "
                            "name"
                        )
                frame.index = pd.RangeIndex(first, first + len(frame))
                first += len(frame)
                yield frame
        except (csv.Error, pd.errors.ParserError) as error:
            raise _no_csv(self._where, error) from None


def _no_csv(where: str, error: Exception) -> DataError:
    return DataError(f"{where}: not a readable CSV file: {error}")


def _without_first(blocks: Iterator[bytes], lines: int) -> Iterator[bytes]:
    """Yield these blocks of whole lines without the first `lines` lines."""
    for block in blocks:
        while lines and block:
            block, lines = block[block.index(b"\n") + 1 :], lines - 1
        if block:
            yield block


def _checked(
    blocks: Iterator[bytes], head: Head, delimiter: str, columns: Columns
) -> Iterator[bytes]:
    """Yield each of these blocks of whole lines after checking that its rows fit the header.

    Raises `DataError` if a row has another number of cells than the header, or if there are more
    rows of these columns than fit into memory. From the first quotation mark on, the `csv` module
    cuts the rows, because a quoted cell may hold delimiters and ends of lines.
    """
    rows, size, width, where = head.rows, 0, len(head.names), head.where

    def require(counts: NDArray[np.int64]) -> None:
        if (wrong := counts != width).any():
            place = int(wrong.argmax())
            raise DataError(
                f"{where}: line {rows + place + 1} has {counts[place]} cells, line "
                f"{head.above + 1} has {width}"
                f"{_IF_TITLES if rows + place == head.rows else ''}"
            )

    no_sign = bytes(sorted({*range(256)} - {*f"\n{delimiter}".encode()}))
    for block in blocks:
        if b'"' in block:
            break
        signs = np.frombuffer(block.translate(None, no_sign), np.uint8)
        ends = np.flatnonzero(signs == _LINE_END)
        require(np.diff(ends, prepend=-1))
        rows, size = rows + len(ends), size + len(block)
        require_room(columns.bytes_of(rows) + size, where)
        yield block
    else:
        return
    unread, end = list[bytes](), 0  # blocks with unread rows, and their last line

    def lines() -> Iterator[str]:
        nonlocal end
        for quoted in chain([block], blocks):
            unread.append(quoted)
            in_block = quoted.decode().split("\n")[:-1]
            end += len(in_block)
            yield from (f"{line}\n" for line in in_block)

    reader = csv.reader(lines(), delimiter=delimiter, skipinitialspace=True)
    for row in reader:
        if len(row) != width and (row or width > 1):
            require(np.array([max(len(row), 1)]))
        rows += 1
        if reader.line_num == end:
            size += sum(map(len, unread))
            require_room(columns.bytes_of(rows) + size, where)
            yield b"".join(unread)
            unread.clear()


def _without_blank_end(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield these blocks of whole lines without the empty lines that end the file."""
    blank = b""
    for block in filter(None, blocks):
        if block[-2:-1] in b"\r\n":
            if not (text := block.rstrip(b"\r\n")):
                blank += block
                continue
            end = block.index(b"\n", len(text)) + 1
            block, blank = blank + block[:end], block[end:]
        elif blank:
            block, blank = blank + block, b""
        yield block


def _blocks(source: Path | bytes, where: str) -> Iterator[bytes]:
    """Yield the text of a file in blocks of whole lines, each ended by a line feed.

    From a list that SAP printed, the lines of dashes and the bars around each line are removed.
    Raises `DataError` if the file is no UTF-8 text, is too large, or has a line that is too long.
    """
    size, is_list = 0, False
    with open_unpacked(source, where) as stream:
        while block := stream.read(_PIECE):
            end_of_line = stream.readline(LONGEST_LINE + 1)
            block += end_of_line
            if len(end_of_line) > LONGEST_LINE:
                with open_unpacked(source, where) as reopened:
                    line = (reopened.read(size) + block).count(b"\n") + 1
                raise DataError(
                    f"{where}: line {line} is longer than {LONGEST_LINE >> 20} MiB; is it a table?"
                )
            if not size:
                _require_no_mark(block, where)
            _require_text(block, size, where)
            size += len(block)
            require_room(size, where)
            if size == len(block):
                block = block.removeprefix(_BYTE_ORDER_MARK)
                is_list = _RULE.match(block) is not None
            block = block if block.endswith(b"\n") else block + b"\n"
            yield _BARS.sub(rb"\1", _RULE.sub(b"", block)) if is_list else block


def _require_no_mark(content: bytes, where: str) -> None:
    for mark, meaning in _MARKS.items():
        if content.startswith(mark):
            raise DataError(f"{where}: not UTF-8 text: it looks like {meaning}")


def _require_text(content: bytes, offset: int, where: str) -> None:
    """Raise `DataError` if this part of a file, which begins at the offset, is not UTF-8 text."""
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
    if b"\r" in content and content.count(b"\r") != content.count(b"\r\n"):
        raise DataError(
            f"{where}: a carriage return without a line feed; end lines with a line feed"
        )


def text_lines(source: Path | bytes, where: str) -> Iterator[str]:
    """Yield the lines of a file, gzipped or not, or of its content, without line ends.

    where: the file's name in messages. Raises `DataError` as for a table.
    """
    for block in _blocks(source, where):
        for line in block.decode().split("\n")[:-1]:
            yield line.removesuffix("\r")


def _first_lines(text: bytes, where: str) -> list[str]:
    """Return the first lines, which show the file's form. Raises `DataError` if it is empty."""
    first = text.split(b"\n", LOOKED_AT)[:-1]
    lines = [line.decode().removesuffix("\r") for line in first]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise DataError(f"{where}: the file is empty")
    require_few_columns(max(map(lines[0].count, DELIMITERS.values())) + 1, where)
    return lines


def _ends_of(path: Path) -> tuple[list[str], list[str], int]:
    """Return the first lines, as many last lines without overlap, and the number of all lines."""
    first, count, newest = b"", 0, [b"", b""]
    for block in _blocks(path, str(path)):
        if count < LOOKED_AT:
            first += block
        count += block.count(b"\n")
        newest = [newest[1], block]
    further = min(LOOKED_AT, count - LOOKED_AT)
    texts = b"".join(newest).decode().split("\n")[:-1] if further > 0 else []
    last = [line.removesuffix("\r") for line in texts[-further:] if line]
    return _first_lines(first, str(path)), last, count


def cells(line: str, delimiter: str) -> list[str]:
    """Return the cells of a line."""
    row = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [""])
    return [cell.strip() for cell in row] or [""]


def delimiter_of(lines: list[str], where: str, decimal: Decimal = "auto") -> str:
    """Return the delimiter that cuts all of these lines into the same number of cells.

    Raises `DataError` if several do. If none does, return the most frequent delimiter in the first
    line. A later check then names the line with too few or too many cells.
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
    has_signs = any(sign in line for line in lines for sign in DELIMITERS.values())
    if not has_signs and all(len(line.split()) > 1 for line in lines):
        raise DataError(
            f"{where}: cells seem to be separated by blanks; write the table with commas, in R "
            "with write.csv"
        )
    # There may be titles above a table, but not in its last lines.
    of_last = [sign for sign in DELIMITERS.values() if _cuts_evenly(lines[len(lines) // 2 :], sign)]
    likely = of_last if len(of_last) == 1 else DELIMITERS.values()
    return next(iter(fitting), max(likely, key=lines[0].count))


def _cuts_evenly(lines: list[str], sign: str) -> bool:
    """Return whether the sign cuts each line into the same number of cells, at least two."""
    try:
        widths = {len(cells(line, sign)) for line in lines}
    except csv.Error:  # a cell without end
        return False
    return len(widths) == 1 and widths != {1}


def _sample(path: Path, answers: DataSettings) -> Sample:
    """Return the first and last rows, and the delimiter if the file does not clearly show it."""
    lines, further, count = _ends_of(path)
    settings: Changes = {}
    try:
        chosen = DELIMITERS.get(answers.delimiter)
        delimiter = chosen or delimiter_of(lines, str(path), answers.decimal)
    except DataError:
        # Several delimiters fit. If the comma is among them, take it as the decimal comma.
        delimiter = delimiter_of(lines, str(path), "comma")
        settings["data.delimiter"] = next(k for k, v in DELIMITERS.items() if v == delimiter)
    first, last = ([cells(line, delimiter) for line in part] for part in (lines, further))
    return sample_of_rows(first, last, count, answers.header, settings)


FORMAT = table_format(
    TableFormat(
        "csv",
        SUFFIX,
        ".csv, .csv.gz or .tsv",
        lambda path, settings: CsvFile(path, str(path), settings),
        keys=("header", "delimiter", "decimal"),
        hint=", one to be predicted is source recordings",
        further=re.compile(r"\.(txt|dat|data)(\.gz)?$", re.IGNORECASE),
    ),
    "a .csv, .tsv or .txt file, gzipped or not, or a folder of them",
    _sample,
)
