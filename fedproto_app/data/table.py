"""A table of named columns, whatever file it was in: its numbers, its texts and its times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.choice import require_there
from fedproto_app.data.clock import Matrix
from fedproto_app.data.stamps import Stamps, stamps_of
from fedproto_app.settings.choice import Decimal, TimeUnit

if TYPE_CHECKING:
    from pandas import DataFrame, Series

TIME_NAMES = frozenset({"time", "timestamp", "date", "datetime", "date_time", "date time", "ds"})


@dataclass(frozen=True)
class Head:
    """What a file says of its columns before these are read.

    names: of all columns. times: the place of what looks like a column of times, if any does.
    """

    where: str
    names: list[str]
    times: int | None

    def place(self, name: str, key: str) -> int:
        """Where the column stands that ``data.<key>`` names."""
        require_there([name], self.names, key, "column", self.where)
        return self.names.index(name)


@dataclass(frozen=True)
class Columns:
    """Which columns of a table are read, by place. values: numbers."""

    values: list[int]
    times: int | None = None
    clients: int | None = None

    @property
    def texts(self) -> list[int]:
        """Those that are no numbers."""
        return [place for place in (self.times, self.clients) if place is not None]


@dataclass(frozen=True)
class Table:
    """The read columns of a file.

    frame: by place in the file. first: the number of the first row in messages, where `row` is
    what a row is called: a line of a text, for example.
    """

    head: Head
    columns: Columns
    frame: DataFrame
    row: str = "row"
    first: int = 1
    decimal: Decimal = "point"

    @property
    def where(self) -> str:
        """The file, in messages."""
        return self.head.where

    @property
    def names(self) -> list[str]:
        """Of the columns of values."""
        return [self.head.names[place] for place in self.columns.values]

    def row_of(self, place: int) -> str:
        """What to call a row, by its place in the frame."""
        return f"{self.row} {self.first + int(self.frame.index[place])}"

    def of(self, rows: NDArray[np.intp]) -> Table:
        """The table of these rows alone, by place; they keep their numbers."""
        kept = self.frame.iloc[rows]
        return Table(self.head, self.columns, kept, self.row, self.first, self.decimal)

    def numbers(self) -> Matrix:
        """[T, N] the values, NaN where one is missing; refuses a cell that is no number."""
        values = np.empty((len(self.frame), len(self.columns.values)))
        for position, place in enumerate(self.columns.values):
            values[:, position] = self._numbers(self.frame[place], self.head.names[place])
        return values

    def stamps(self, unit: TimeUnit) -> Stamps | None:
        """The times of the rows [T], if there is a column of them."""
        place = self.columns.times
        if place is None:
            return None
        name = self.head.names[place]
        title = f"column {name!r}" if name else "the first column (without a name: the times)"
        return stamps_of(self.frame[place], unit, title, self.row_of, self.where)

    def clients(self) -> Series:
        """[T] whose row it is."""
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
    """What may be the matter with a cell that is no number."""
    if decimal == "point" and cell.count(",") == 1 and cell.replace(",", "").isdecimal():
        return '; data.decimal = "comma" reads decimal commas'
    if decimal == "comma" and "." in cell:
        return ' where data.decimal = "comma"'
    return ""


def require_named(names: Iterable[str], where: str) -> None:
    """Refuse columns of values without a name, or two of one name."""
    seen: set[str] = set()
    for name in names:
        if not name:
            raise DataError(
                f"{where}: a column of values has no name in the header (an index that pandas "
                "wrote? leave it out by index=False)"
            )
        if name in seen:
            raise DataError(f"{where}: two columns are named {name!r}")
        seen.add(name)


def value_columns(head: Head, time_column: str, chosen: Sequence[str], key: str) -> Columns:
    """The columns of times and of values of a table in which all others hold values.

    chosen: those of values that are read, as ``data.<key>`` names them; none: all.
    """
    times = head.place(time_column, "time-column") if time_column else head.times
    others = [place for place in range(len(head.names)) if place != times]
    require_there(chosen, [head.names[place] for place in others], key, "column", head.where)
    values = [place for place in others if not chosen or head.names[place] in chosen]
    if not values:
        raise DataError(f"{head.where}: a time column, but no column of values")
    require_named((head.names[place] for place in values), head.where)
    return Columns(values, times)


Wanted = Callable[[Head], Columns]
