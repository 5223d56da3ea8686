"""One sequence in a CSV file: a header with the dimensions' names, then one row a step.

UTF-8 (a byte order mark is accepted), comma separated, plain or gzipped, numbers only. A first
column named like a time, or the one that the node names, is left out: the rows are the steps,
whatever the time between them.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.choice import require_there
from fedproto_app.data.csv_source import time_position
from fedproto_app.errors import DataError

_GZIP = b"\x1f\x8b"


def parse_steps(
    content: bytes, where: str, time_column: str = "", columns: Sequence[str] = ()
) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """The names of the dimensions [d] and the values [T, d], all finite, T ≥ 1.

    where: the file's name in messages. columns: those that are read, in this order; none: all.
    Raises `DataError` naming the line and the column.
    """
    reader = csv.reader(io.StringIO(_text(content, where), newline=""), skipinitialspace=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        places = _places(header, time_column, columns, where)
        rows = [
            _numbers(cells, header, places, f"{where}: line {reader.line_num}") for cells in reader
        ]
    except csv.Error as error:
        raise DataError(f"{where}: not a readable CSV file: {error}") from None
    if not rows:
        raise DataError(f"{where}: only a header line, no step")
    names, values = tuple(header[place] for place in places), np.array(rows)
    if not (finite := np.isfinite(values)).all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise DataError(
            f"{where}: column {names[column]!r}, step {row + 1}: {values[row, column]} is "
            "not a finite number"
        )
    return names, values


def _places(header: list[str], time_column: str, columns: Sequence[str], where: str) -> list[int]:
    """Where in the header the dimensions stand."""
    times = time_position(header, time_column, where) if header else None
    if times is not None and header[times] == "":
        times = None  # rows are steps here, so no column needs to be one of times
    places = [place for place in range(len(header)) if place != times]
    if columns:
        require_there(columns, [header[place] for place in places], "columns", "column", where)
        places = [place for name in columns for place in places if header[place] == name]
    _require_names([header[place] for place in places], where)
    return places


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


def _numbers(cells: list[str], header: list[str], places: list[int], line: str) -> list[float]:
    """The values of one row at these places."""
    if len(cells) != len(header):
        raise DataError(f"{line} has {len(cells)} cells, the header has {len(header)}")
    numbers = []
    for place in places:
        try:
            numbers.append(float(cells[place]))
        except ValueError:
            raise DataError(
                f"{line}, column {header[place]!r}: {cells[place]!r} is not a number"
            ) from None
    return numbers
