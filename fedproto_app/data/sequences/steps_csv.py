"""One sequence in a CSV file: a header with the dimensions' names, then one row a step.

UTF-8 (a byte order mark is accepted), comma separated, plain or gzipped, numbers only. A first
column named like a time is left out: the rows are the steps, whatever the time between them.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.csv_source import TIME_NAMES
from fedproto_app.errors import DataError

_GZIP = b"\x1f\x8b"


def parse_steps(content: bytes, where: str) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """The names of the dimensions [d] and the values [T, d], all finite, T ≥ 1.

    where: the file's name in messages. Raises `DataError` naming the line and the column.
    """
    reader = csv.reader(io.StringIO(_text(content, where), newline=""), skipinitialspace=True)
    try:
        names = [name.strip() for name in next(reader, [])]
        first = int(bool(names) and names[0].lower() in TIME_NAMES)
        _require_names(names[first:], where)
        rows = [
            _numbers(cells, names, first, f"{where}: line {reader.line_num}") for cells in reader
        ]
    except csv.Error as error:
        raise DataError(f"{where}: not a readable CSV file: {error}") from None
    if not rows:
        raise DataError(f"{where}: only a header line, no step")
    values = np.array(rows)
    if not (finite := np.isfinite(values)).all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise DataError(
            f"{where}: column {names[first + column]!r}, step {row + 1}: {values[row, column]} is "
            "not a finite number"
        )
    return tuple(names[first:]), values


def _text(content: bytes, where: str) -> str:
    try:
        if content.startswith(_GZIP):
            content = gzip.decompress(content)
        return content.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 text: byte {error.object[error.start]:#04x} at offset "
            f"{error.start}"
        ) from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{where}: cannot be read: {error}") from None


def _require_names(names: list[str], where: str) -> None:
    if not names:
        raise DataError(f"{where}: no column of values in the header")
    if len(names) == 1 and ";" in names[0]:
        raise DataError(f"{where}: columns are separated by semicolons; commas are expected")
    for name in names:
        if not name:
            raise DataError(f"{where}: a column has no name in the header")
        if names.count(name) > 1:
            raise DataError(f"{where}: two columns are named {name!r}")


def _numbers(cells: list[str], names: list[str], first: int, line: str) -> list[float]:
    """The values of one row, from the column `first` on."""
    if len(cells) != len(names):
        raise DataError(f"{line} has {len(cells)} cells, the header has {len(names)}")
    numbers = []
    for name, cell in zip(names[first:], cells[first:], strict=True):
        try:
            numbers.append(float(cell))
        except ValueError:
            raise DataError(f"{line}, column {name!r}: {cell!r} is not a number") from None
    return numbers
