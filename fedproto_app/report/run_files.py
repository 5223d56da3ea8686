"""Read the files of a run as typed values, and write CSV files that are safe for spreadsheets."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import FedProtoError

Record = dict[str, Any]  # a JSON object, such as summary.json or a line of rounds.jsonl
TEXTS = ("client", "node", "group", "class", "third")  # columns of texts. All others hold numbers
# A quote before a cell makes a spreadsheet show it as text. The name itself may start with quotes.
_FORMULA = re.compile(r"'*(?:[=@]|[+-].*[(|!])")
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class CsvTable:
    """The columns of a run's CSV file.

    texts, numbers: columns with an entry for each of the N rows. If a number is unknown or was
    withheld, its cell is empty and the number is NaN.
    """

    file: Path
    texts: Mapping[str, list[str]]
    numbers: Mapping[str, NDArray[np.float64]]

    def __getitem__(self, column: str) -> NDArray[np.float64]:
        """Return a column of numbers [N], or raise `FedProtoError` if the file lacks it."""
        if column not in self.numbers:
            raise FedProtoError(f"{self.file}: no column {column!r}")
        return self.numbers[column]

    def finite(self, column: str) -> list[float]:
        """Return the finite numbers of a column."""
        return [value for value in self[column].tolist() if isfinite(value)]

    def by_client(self, column: str) -> dict[str, float]:
        """Return a column of numbers as a dict, by client."""
        return dict(zip(self.clients, self[column].tolist(), strict=True))

    @property
    def clients(self) -> list[str]:
        """The client of each row."""
        return self.texts["client"]

    @property
    def nodes(self) -> list[str]:
        """The node of each row's client."""
        return self.texts["node"]

    @property
    def groups(self) -> list[str]:
        """The true group of each row's client, "" if unknown."""
        return self.texts["group"]


def read_table(file: Path, texts: Sequence[str] = ()) -> CsvTable:
    """Read a CSV file whose first line names the columns. texts: columns that it must have.

    Raises `FedProtoError` that names the file, and the line and column of a cell that is wrong.
    """
    return parsed(file, lambda text: _table(file, text, texts))


def _table(file: Path, text: str, texts: Sequence[str]) -> CsvTable:
    columns, *rows = csv.reader(io.StringIO(text)) if text else [[]]
    if missing := [name for name in texts if name not in columns]:
        raise ValueError(f"no column {missing[0]!r}")
    for line, row in enumerate(rows, start=2):
        if len(row) != len(columns):
            raise ValueError(f"line {line} has {len(row)} cells, and the first {len(columns)}")
    cells = {name: [row[place] for row in rows] for place, name in enumerate(columns)}
    return CsvTable(
        file,
        {name: list(map(_name, column)) for name, column in cells.items() if name in TEXTS},
        {name: _numbers(name, column) for name, column in cells.items() if name not in TEXTS},
    )


def _numbers(column: str, cells: Sequence[str]) -> NDArray[np.float64]:
    numbers = []
    for line, cell in enumerate(cells, start=2):
        try:
            numbers.append(float(cell or "nan"))
        except ValueError:
            fault = f"line {line}, column {column!r}: {cell!r} is not a number"
            raise ValueError(fault) from None
    return np.array(numbers, dtype=np.float64)


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return the rows as CSV. A quote is put before a cell that a spreadsheet would run as a
    formula."""
    text = io.StringIO()
    csv.writer(text).writerows([[_as_text(cell) for cell in row] for row in rows])
    return text.getvalue()


def _as_text(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def _name(cell: str) -> str:
    """Return the text that `csv_text` wrote as this cell."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell[1:]) else cell


def read_records(file: Path) -> list[Record]:
    """Return the JSON objects in a file with one object per line."""
    return parsed(file, lambda text: [_record(line) for line in text.splitlines()])


def read_record(file: Path) -> Record:
    """Return the JSON object in a file."""
    return parsed(file, _record)


def _record(text: str) -> Record:
    record = json.loads(text)
    if not isinstance(record, dict):
        raise ValueError(f"{text[:40]!r} is not a JSON object")
    return record


def parsed(file: Path, parse: Callable[[str], Parsed]) -> Parsed:
    """Return what `parse` makes of a file's text, or raise `FedProtoError` that names the file."""
    try:
        return parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedProtoError(f"{file}: {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise FedProtoError(f"{file}: cannot be read: {error}") from None
