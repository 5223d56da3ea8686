"""A table of named columns, read from any kind of file: its numbers, texts and times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.choice import require_available
from fedproto_app.data.clock import Matrix
from fedproto_app.data.stamps import Stamps, stamps_of
from fedproto_app.settings.choice import Decimal, TimeUnit

if TYPE_CHECKING:
    from pandas import DataFrame, Series

TIME_NAMES = frozenset({"time", "timestamp", "date", "datetime", "date_time", "date time", "ds"})


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

    def row_of(self, place: int) -> str:
        """Return the name of a row in messages, by its place in the frame."""
        return f"{self.row} {self.first + int(self.frame.index[place])}"

    def select(self, rows: NDArray[np.intp]) -> Table:
        """Return a table with only these rows, by place; rows keep their numbers in messages."""
        frame = self.frame.iloc[rows]
        return Table(self.head, self.columns, frame, self.row, self.first, self.decimal)

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


ColumnSelector = Callable[[Head], Columns]
