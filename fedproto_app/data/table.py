"""A table of named columns: its numbers, texts and times, from a file of any format.

A file is read in blocks of rows, whose numbers are put into one matrix. So the table is never held
as text and as numbers at the same time.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import (
    Matrix,
    Stamps,
    is_period,
    look_like_times,
    sampling_step,
    stamps_of,
)
from fedproto_app.data.number_styles import (
    Evidence,
    Style,
    is_number,
    numbers_in,
    style_of,
    value_of,
)
from fedproto_app.data.series import ColumnNames
from fedproto_app.data.source_checks import require_available
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import Choice, Decimal, KnownColumn, TimeUnit

if TYPE_CHECKING:
    from pandas import DataFrame, Series

INDEX = "__index_level_0__"  # pandas' name for an index without a name in Parquet files
TIME_NAMES = frozenset({"time", "timestamp", "date", "datetime", "date_time", "date time", "ds"})
PARTS_OF_TIME = ("year", "month", "day", "hour", "minute", "second")
MISSING = [
    *("", "?", "NA", "N/A", "n/a", "#NA", "#N/A", "#N/A N/A", "<NA>", "NULL", "Null", "null"),
    *("NaN", "nan", "-NaN", "-nan", "None", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
]
UNNAMED = ("", "unnamed: 0")  # names of pandas' index in text files, lowered
LOOKED_AT = 50  # lines or rows that are read to recognise the file's form
MOST_COLUMNS = 100_000  # or clients: each costs time and memory, even with few rows
BLOCK_CELLS = 1 << 20  # cells that are read at once
# Measured: a number is held in the matrix, on the grid of its clock and in its client's series.
_NUMBER_BYTES = 24
_TEXT_BYTES = 200  # memory for a time or a client's name while it is read
_MOST_COMPARED = 1000  # cells that decide whether a column holds texts
_MOST_FAULTS = 1000  # with more cells that are no numbers, the file is refused

_COMMENTS = ("#", "%", "//")
_MOST_BELOW_NAMES = 3  # lines, such as units, that may stand between names and values
_FAR_LARGER = 10  # times as large as all numbers below: then a number in the first line is a name
_DATE = re.compile(r"\d{4}-\d\d(-\d\d([T ].*)?)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}([T ].*)?")
_NO_READING = {"unavailable", "unknown", "missing", "offline", "n.d.", "k.a.", "nodata", "no data"}
_TOTALS = {
    *("total", "totals", "grand total", "sum", "average", "mean"),
    *("summe", "gesamt", "gesamtsumme"),
}
_WITH_UNIT = re.compile(r"(?P<number>[+-]?\d[\d.,]*) ?(?P<unit>[^\W\d_][^\d,;]{0,9}|[%°€$£].{0,9})")
_CLOCK_TIME = re.compile(r"\d{1,2}:\d\d(:\d\d(\.\d+)?)?( ?[aApP][mM])?")


@dataclass(frozen=True)
class Head:
    """The column names of a file, which are available before the columns are read.

    times: the place of the column that looks like a time column, or None. rows: how many rows come
    before the first row of values. above: how many come before the names. notes: what a person
    should know of the header. index: the place of a column without a name that only numbers the
    rows, as pandas writes it, or that is empty because a delimiter ends each line.
    """

    where: str
    names: list[str]
    times: int | None
    rows: int = 0
    notes: tuple[str, ...] = ()
    index: int | None = None
    above: int = 0

    def place(self, name: str, key: str) -> int:
        """Return the place of a column that ``data.<key>`` names or could name."""
        require_available([name], self.names, key, "column", self.where)
        if (count := self.names.count(name)) > 1:
            raise DataError(f"data.{key}: {self.where} has {count} columns {name!r}; rename them")
        return self.names.index(name)

    def time(self, choice: Choice) -> int | None:
        """Return the place of the first column of times, or None if there is none."""
        return (
            self.place(choice.time_columns[0], "time-column") if choice.time_columns else self.times
        )

    def joined(self, choice: Choice) -> dict[int, list[int]]:
        """Return the places of columns that are joined. The key is the place of the first one."""
        joined = {}
        for key, names in (("time", choice.time_columns), ("client", choice.client_columns)):
            parts = [name.lower() for name in names]
            if len(parts) < 2:
                continue
            if set(parts) <= set(PARTS_OF_TIME) and parts != list(PARTS_OF_TIME[: len(parts)]):
                raise DataError(
                    f"data.{key}-column = {','.join(names)!r}: expected the order year, month, "
                    "day, hour, minute, second, without a gap"
                )
            places = [self.place(name, f"{key}-column") for name in names]
            joined[places[0]] = places
        return joined


@dataclass(frozen=True)
class Columns:
    """The places of the columns of a table that are read.

    values: the columns of numbers, with those known in advance last. known: all columns known in
    advance. They are read as texts if they are not in `values`. joined: as from `Head.joined`.
    """

    values: list[int]
    times: int | None = None
    clients: int | None = None
    known: Mapping[int, KnownColumn] = field(default_factory=dict)
    joined: Mapping[int, list[int]] = field(default_factory=dict)

    @property
    def targets(self) -> list[int]:
        """The columns of values that are to be forecast."""
        return [place for place in self.values if place not in self.known]

    @property
    def texts(self) -> list[int]:
        """The columns that are read as texts."""
        known_texts = [place for place in self.known if place not in self.values]
        return [*self.parts(self.times), *self.parts(self.clients), *known_texts]

    def parts(self, place: int | None) -> list[int]:
        """Return the places of the columns that are joined into this one, including its own."""
        return [] if place is None else self.joined.get(place, [place])

    @property
    def read(self) -> list[int]:
        """The columns that are read, in the order of the file."""
        return sorted({*self.texts, *self.values})

    def bytes_of(self, rows: int) -> int:
        """Return the memory that this many rows take while they are read."""
        return rows * (_NUMBER_BYTES * len(self.values) + _TEXT_BYTES * len(self.texts))


class Fault(NamedTuple):
    """A cell that is no number: its row in the table, the place of its column, and its text."""

    row: int
    place: int
    cell: str


@dataclass(frozen=True)
class Table:
    """The columns that were read from a file.

    texts: the times and clients. The keys are the columns' places in the file. values: [T, N], NaN
    where missing or faulty. row: the word for a row in messages, such as "line" in a text file.
    first: the number of the first row. notes: what a person should know of how the file was read.
    delimiter: the sign between cells. decimal: the decimal sign. unfolded_from: the columns whose
    values now stand in rows.
    """

    head: Head
    columns: Columns
    texts: DataFrame
    values: Matrix
    faults: tuple[Fault, ...] = ()
    row: str = "row"
    first: int = 1
    notes: tuple[str, ...] = ()
    delimiter: str = ","
    decimal: str = "."
    unfolded_from: Columns | None = None

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
        """The names of the columns of times, clients and, in the long form, values."""
        times, clients = map(self.title, (self.columns.times, self.columns.clients))
        values = self.names[0] if clients and self.names else ""
        times = "" if times == INDEX else times
        return ColumnNames(times, values, clients, self.delimiter, self.decimal)

    def title(self, place: int | None) -> str:
        """Return the name of a column, or "" for None. A joined column's name lists its parts."""
        sign = "/" if place == self.columns.clients else " "
        return sign.join(self.head.names[part] for part in self.columns.parts(place))

    def row_of(self, place: int) -> str:
        """Return the name in messages of the row at this place in the table."""
        return f"{self.row} {self.first + int(self.texts.index[place])}"

    def select(self, rows: NDArray[np.intp]) -> Table:
        """Return a table with only the rows at these places. They keep their names in messages."""
        import pandas as pd

        texts = {place: _encoded(column) for place, column in self.texts.iloc[rows].items()}
        return replace(self, texts=pd.DataFrame(texts), values=self.values[rows])

    def numbers(self) -> Matrix:
        """Return the values [T, N], NaN if missing. Raises `DataError` if a cell is no number."""
        for fault in self.faults:
            if fault.row in self.texts.index:
                raise DataError(
                    f"{self.where}: column {self.head.names[fault.place]!r}, {self.row} "
                    f"{self.first + fault.row}: {fault.cell!r} is not a number"
                    f"{_remedy_for(fault.cell)}"
                )
        return self.values

    def unfolded(self) -> Table:
        """Return the table with a row for each of its values. They follow each other in time."""
        values = self.numbers()
        count = values.shape[1]
        return replace(
            self,
            texts=self.texts.loc[self.texts.index.repeat(count)],
            values=values.reshape(-1, 1),
            columns=replace(self.columns, values=self.columns.values[:1]),
            unfolded_from=self.columns,
        )

    def stamps(self, unit: TimeUnit) -> Stamps | None:
        """Return the times of the rows [T], or None if there is no time column."""
        import pandas as pd

        if self.unfolded_from is None:
            return self._stamps_of_rows(unit)
        places = self.unfolded_from.values
        names, count = [self.head.names[place] for place in places], len(places)
        months = 12 // count
        folded = replace(self, texts=self.texts.iloc[::count])
        rows, twice = folded._stamps_of_rows(unit), folded.clients().duplicated().to_numpy()
        if rows is None and twice.any():
            raise DataError(
                f"{self.where}: {folded.row_of(int(twice.argmax()))} has the client of an earlier "
                "row, but no column holds times; name the columns that tell the rows apart with "
                "data.client-column, or the column of times with data.time-column"
            )
        if rows is None and all(map(is_date, names)):
            of_names, _ = read_times(pd.Series(names), unit, "the header", str, self.where)
            return replace(of_names, times=np.tile(of_names.times, len(folded.texts)))
        if rows is None or rows.is_count:
            starts = np.zeros(len(twice), "M8[s]") if rows is None else rows.times.astype("M8[s]")
            steps = (starts.astype(np.int64) * count)[:, None] + np.arange(count)
            return Stamps(steps.ravel().astype("datetime64[s]"), is_count=True)
        if rows.form == "Y" and count * months == 12:
            begins = rows.times.astype("datetime64[M]")[:, None] + months * np.arange(count)
            return replace(rows, times=begins.ravel().astype("datetime64[us]"), form="")
        step = sampling_step(np.unique(rows.times))
        if step is None or step.astype(np.int64) % count:
            raise DataError(
                f"{self.where}: data.unfold: {count} columns do not divide the time between two "
                f"rows, {'unknown' if step is None else step.item()}, into equal steps"
            )
        times = rows.times[:, None] + np.arange(count) * (step // count)
        note = f"{count} columns are read as values {(step // count).item()} apart"
        return replace(rows, times=times.ravel(), notes=(*rows.notes, note))

    def _stamps_of_rows(self, unit: TimeUnit) -> Stamps | None:
        import pandas as pd

        place = self.columns.times
        if place is None:
            return None
        # Each different text is read once, as most times occur once for each client.
        name, column = self.title(place), self.texts[place]
        if unit == "excel":
            column = _encoded(column, numbers=True)
        title = f"column {name!r}" if name else "the first column (without a name: the times)"
        if column.dtype != "category" or column.isna().any():
            return stamps_of(self.texts[place], unit, title, self.row_of, self.where)
        texts, codes = pd.Series(column.cat.categories), column.cat.codes.to_numpy()

        def row_of(place: int) -> str:
            return self.row_of(int((codes == place).argmax()))

        stamps, is_24 = read_times(texts, unit, title, row_of, self.where)
        times, notes = stamps.times, stamps.notes
        if unit == "excel":
            day = times[codes[0]].item()
            notes = (*notes, f"{title} holds Excel's days: {texts[codes[0]]} is {day}")
        if is_24.any():
            count = int(is_24[codes].sum())
            notes = (*notes, f"times at 24:00, read as 00:00 of the next day: {count:,}")
        return replace(stamps, times=times[codes], notes=notes)

    def clients(self) -> Series:
        """Return the client of each row as categories, [T]: "" if no column names clients."""
        import pandas as pd

        if self.columns.clients is None:
            return pd.Series("", index=self.texts.index, dtype="category")
        written = self.written_clients()
        names = written.cat.categories.map(client_name)
        codes = written.cat.codes.to_numpy()
        empty = np.append(names == "", True)[codes]  # missing cells: code -1
        if empty.any():
            row = self.row_of(int(empty.argmax()))
            title = self.title(self.columns.clients)
            raise DataError(f"{self.where}: column {title!r}, {row}: no client is named")
        groups, unique_names = pd.factorize(names)
        categories = pd.Categorical.from_codes(groups[codes], unique_names)
        return pd.Series(categories, index=written.index)

    def written_clients(self) -> Series:
        """Return the client of each row as the file writes it, as categories, [T]."""
        if self.columns.clients is None:
            return self.clients()
        return self.texts[self.columns.clients]


def read_times(
    texts: Series, unit: TimeUnit, title: str, row: Callable[[int], str], where: str
) -> tuple[Stamps, NDArray[np.bool_]]:
    """Return `stamps_of` these texts [T], and which are 24:00, read as 00:00 of the next day."""
    texts = texts.str.strip()
    is_24: NDArray[np.bool_] = texts.str.contains("[T ]24:00", regex=True).to_numpy(dtype=bool)
    if not is_24.any():
        return stamps_of(texts, unit, title, row, where), is_24
    texts = texts.mask(is_24, texts.str.replace("([T ])24:", r"\g<1>00:", regex=True))
    stamps = stamps_of(texts, unit, title, row, where)
    return replace(stamps, times=stamps.times + is_24 * np.timedelta64(1, "D")), is_24


def client_name(written: str) -> str:
    """Return a client's name without blanks around it, and with one way to write accents."""
    return unicodedata.normalize("NFC", written.strip())


class TableFile(ABC):
    """A file that holds a table. Its head is read first, then the columns that are chosen.

    head: the names of its columns. decimal: how its numbers are written, or "auto" if all cells
    together must show it. row, first: as in `Table`. delimiter: the sign between cells of a text.
    """

    head: Head
    decimal: Decimal = "auto"
    row = "row"
    first = 1
    delimiter = ","

    @abstractmethod
    def blocks(self, columns: Columns, style: Style | Literal["texts"]) -> Iterable[DataFrame]:
        """Yield the columns in blocks of rows with a running index. They are named by their places.

        Numbers are read if the style allows it. With "texts" they stay as the file writes them. If
        the numbers are not written plainly, this is called again. Raises `DataError` before the
        rows take more memory than they may (`require_room`).
        """

    def read(self, columns: Columns, missing_values: Sequence[str] = ()) -> Table:
        """Read these columns. missing_values: numbers and texts that mean a missing value.

        Raises `DataError` if the cells do not show how numbers are written, if they contradict each
        other, or if hardly any cell is a number.
        """
        import pandas as pd

        notes = self.head.notes
        style: Style = "plain" if self.decimal == "auto" else self.decimal
        values, texts, faults, count = self._read(columns, style, missing_values)
        if faults and self.decimal == "auto":
            rows = None if len(faults) > _MOST_FAULTS else len(values)
            for style, note in self._styles(columns):
                values, texts, faults, count = self._read(columns, style, missing_values)
                notes = (*self.head.notes, note) if note else self.head.notes
                if not faults:
                    break
            if len(faults) <= _MOST_FAULTS and rows not in (None, len(values)):
                raise DataError(f"{self.head.where}: changed while it was read")
        if missing_values:
            listed = ", ".join(missing_values)
            notes = (*notes, f"cells with {listed} that are read as missing values: {count:,}")
        table = Table(
            self.head,
            columns,
            pd.DataFrame(
                {place: _concatenated(blocks) for place, blocks in texts.items()},
                pd.RangeIndex(len(values)),
            ),
            values,
            tuple(faults),
            self.row,
            self.first,
            notes,
            self.delimiter,
            "," if style == "comma" else ".",
        )
        if len(faults) > _MOST_FAULTS:
            table.numbers()
        return _joined(_of_values(table))

    def _styles(self, columns: Columns) -> Iterator[tuple[Style, str]]:
        """Yield possible styles of the numbers, each with a note.

        One comes from the first rows, if these show it, and one from all cells. The first style
        that makes each cell a number is used.
        """
        first, evidence = next(iter(self.blocks(columns, "texts"))), Evidence()
        for place in columns.values:
            evidence.add(first[place].head(LOOKED_AT), self._row_name)
        if {"comma", "thousands"} & set(evidence.cells) and evidence.is_clear:
            yield evidence.style(self.head.where)
        cells = (block[p] for block in self.blocks(columns, "texts") for p in columns.values)
        yield style_of(cells, self._row_name, self.head.where)

    def of_texts(self, places: Sequence[int]) -> set[int]:
        """Return which of these columns hold texts: under 90% of the first cells are numbers."""
        if not places:
            return set()
        first = next(iter(self.blocks(Columns(list(places)), "texts")))
        return {place for place in places if _holds_texts(first[place])}

    def _row_name(self, number: int) -> str:
        return f"{self.row} {self.first + number}"

    def _read(
        self, columns: Columns, style: Style, missing_values: Sequence[str]
    ) -> tuple[Matrix, dict[int, list[Series]], list[Fault], int]:
        """Return the values [T, N], and the blocks of each column of texts.

        Also return the cells that are no numbers, and how many cells hold a value that stands for a
        missing one. Stops after `_MOST_FAULTS` faults.
        """
        numbers: dict[int, list[Matrix]] = {place: [] for place in columns.values}
        texts: dict[int, list[Series]] = {place: [] for place in columns.texts}
        faults: list[Fault] = []
        meanings = (value_of(cell, "point") for cell in missing_values)
        codes = [value for value in meanings if value is not None]
        count, rows = 0, 0
        for block in self.blocks(columns, style):
            rows += len(block)
            for place, blocks in numbers.items():
                column = block[place]
                if len(faults) > _MOST_FAULTS:  # the file is refused anyway
                    blocks.append(np.full(len(column), np.nan))
                    continue
                values, wrong = numbers_in(column, style)
                if wrong.any():
                    cells = column[wrong].astype(str).str.strip()
                    count += int(cells.isin(missing_values).sum())
                    wrong_cells = cells[~cells.isin([*MISSING, *missing_values])][:_MOST_FAULTS]
                    numbered = wrong_cells.index.to_list()
                    faults += [Fault(*pair) for pair in zip(numbered, repeat(place), wrong_cells)]
                if codes:
                    is_code = np.isin(values, codes)
                    count += int(is_code.sum())
                    values = np.where(is_code, np.nan, values)
                blocks.append(values)
            for place, parts in texts.items():
                is_typed_time = place == columns.times and place not in columns.joined
                parts.append(_encoded(block[place], numbers=not is_typed_time))
            if len(faults) > _MOST_FAULTS:
                break
        matrix = np.empty((rows, len(numbers)), order="F")
        for position, place in enumerate(columns.values):
            np.concatenate(numbers.pop(place), out=matrix[:, position])
        return matrix, texts, faults, count


def _remedy_for(cell: str) -> str:
    """Return how to read a cell that has a unit, or that says that a value is missing, else ""."""
    if unit := _WITH_UNIT.fullmatch(cell):
        return (
            f", but {unit['number']} and a unit: write units into the names of the columns, and "
            f"leave {unit['unit']!r} out of the cells"
        )
    is_sign = not any(map(str.isalnum, cell)) and "," not in cell
    if not is_sign and cell.lower() not in _NO_READING:
        return ""
    return f" (--set data.missing-values={shlex.quote(cell)} reads it as a missing value)"


def _encoded(column: Series, *, numbers: bool = False) -> Series:
    """Return a column of texts as categories in the order of their first rows.

    A column of times or numbers stays as it is, unless `numbers` is set.
    """
    import pandas as pd

    if column.dtype.kind in "Mmiufb" and column.dtype != "category":
        if not numbers:
            return column
        column = column.astype(str).where(column.notna())
    codes, texts = pd.factorize(column)
    categories = pd.Categorical.from_codes(codes, pd.Index(texts).astype(str))
    return pd.Series(categories, index=column.index)


def _concatenated(blocks: list[Series]) -> Series:
    """Return the joined blocks of a column, with a new index."""
    import pandas as pd
    from pandas.api.types import union_categoricals

    if all(block.dtype == "category" for block in blocks):
        return pd.Series(union_categoricals(blocks))
    return pd.concat(blocks, ignore_index=True)


def _holds_texts(column: Series) -> bool:
    if column.dtype.kind in "iuf":
        return False
    cells = column.dropna().head(_MOST_COMPARED).astype(str).str.strip()
    return 10 * sum(map(is_number, cells)) < 9 * len(cells)


class FrameFile(TableFile):
    """A table in a pandas frame, for formats whose files pandas reads as a whole.

    frame: if a head is given, its columns and rows must have numbers. where: the file's name in
    messages. The memory that the frame takes is not limited here.
    """

    first = 0

    def __init__(self, frame: DataFrame, where: str, head: Head | None = None) -> None:
        import pandas as pd

        if head is None:
            names = [str(name) for name in frame.columns]
            frame = frame.set_axis(pd.RangeIndex(len(names)), axis=1).reset_index(drop=True)
            head = Head(where, names, time_place(names, frame))
        self.head, self._frame = head, frame

    def blocks(self, columns: Columns, style: object) -> list[DataFrame]:
        return [self._frame[columns.read]]


def time_place(names: Sequence[str], frame: DataFrame) -> int | None:
    """Return the place of the time column of a frame with numbered columns."""
    return place_of_times(names, [p for p in range(len(names)) if frame[p].dtype.kind == "M"])


def place_of_times(names: Sequence[str], typed: Sequence[int]) -> int | None:
    """Return the place of the time column: one with a usual name, else the only one of a time type.

    typed: the places of the columns with a time type.
    """
    usual = [p for p, name in enumerate(names) if name.lower() in TIME_NAMES or name == INDEX]
    if usual:
        return next((place for place in usual if place in typed), usual[0])
    return typed[0] if len(typed) == 1 else None


def is_total(cell: str) -> bool:
    """Return whether the cell names a row of totals."""
    return cell.lower().rstrip(":") in _TOTALS


def _of_values(table: Table) -> Table:
    """Return the table without a last row of totals, and without rows that repeat its names.

    Names are repeated where files were joined.
    """
    place, notes = table.columns.times, list(table.notes)
    if place is None or table.texts[place].dtype != "category":
        return table
    name, column = table.head.names[place], table.texts[place]
    texts, is_name = column.cat.categories, np.zeros(len(column), dtype=np.bool_)
    if name and (spellings := texts[texts.str.strip() == name]).size:
        is_name = column.isin(spellings).to_numpy()
        first = table.row_of(int(is_name.argmax()))
        notes.append(
            f"rows left out that repeat the names of the columns: {is_name.sum():,}, at {first}"
        )
    rows = np.flatnonzero(~is_name)
    if not len(rows):
        raise DataError(f"{table.where}: every {table.row} repeats the names of the columns")
    if len(rows) > 1 and is_total(last := str(column.iloc[rows[-1]]).strip()):
        notes.append(f"{table.row_of(int(rows[-1]))}, {last!r}, is left out")
        rows = rows[:-1]
    return replace(table.select(rows), notes=tuple(notes)) if len(rows) < len(column) else table


def _joined(table: Table) -> Table:
    """Return the table after joining columns that belong together, such as date and time of day."""
    import pandas as pd

    texts, notes = table.texts, table.notes
    for first, places in table.columns.joined.items():
        parts = texts[places]
        groups = parts.groupby(places, sort=False, dropna=False, observed=True).ngroup()
        unique = parts.drop_duplicates().astype(object).fillna("")
        cells = [tuple(map(str.strip, row)) for row in unique.itertuples(index=False)]
        is_client = first == table.columns.clients
        join = "/".join if is_client else time_of_parts
        joined = [join(row) if all(row) else None for row in cells]
        if is_client and len(set(joined)) < len(set(cells)):
            raise DataError(
                f"{table.where}: different cells of {table.title(first)!r} give the same client "
                "when they are joined with a slash"
            )
        joined_cells = pd.Series(joined, dtype=object)[groups].set_axis(texts.index)
        texts = texts.drop(columns=places)
        texts[first] = _encoded(joined_cells)
        names = " and ".join(repr(table.head.names[place]) for place in places)
        become = "names of the clients" if is_client else "times"
        notes = (*notes, f"{names} are joined into {become}, such as {joined[0]!r}")
    return replace(table, texts=texts, notes=notes)


def time_of_parts(cells: Sequence[str]) -> str:
    """Return the time that is written in several cells.

    They are a date and a time of the day or an hour, or a year, a month, and so on to seconds.
    """
    first, *further = (re.sub(r"^(\d+)\.0$", r"\1", cell) for cell in cells)
    if re.fullmatch(r"\d{4}", first):
        numbers = [part.zfill(2) for part in (first, *further)]
        clock = [*numbers[3:], "00"] if len(numbers) == 4 else numbers[3:]
        return " ".join(filter(None, ("-".join(numbers[:3]), ":".join(clock))))
    if len(further) == 1 and re.fullmatch(r"\d{1,2}", further[0]):
        further = [f"{further[0].zfill(2)}:00"]
    return " ".join([re.sub(r"[T ]00:00:00(\.0+)?$", "", first), *further])


def require_named(names: Iterable[str], where: str) -> None:
    """Raise `DataError` if a column of values has no name, or two have the same name."""
    unique_names: set[str] = set()
    for name in names:
        if not name:
            raise DataError(f"{where}: a column of values has no name in the header")
        if name in unique_names:
            raise DataError(f"{where}: two columns are named {name!r}")
        unique_names.add(name)


def require_few_columns(count: int, where: str, noun: str = "columns") -> None:
    """Raise `DataError` for a table with more columns or clients than can be read in minutes."""
    if count > MOST_COLUMNS:
        raise DataError(f"{where}: {count:,} {noun}, more than {MOST_COLUMNS:,}; cut the file")


def value_columns(head: Head, choice: Choice, chosen: Sequence[str], key: str) -> Columns:
    """Return the time column and the value columns of a table without other columns.

    chosen: the names of the value columns to read, from ``data.<key>``. If empty, all are read.
    """
    times = head.time(choice)
    columns = Columns([], times, joined=head.joined(replace(choice, client_columns=())))
    used = (*columns.parts(times), head.index)
    candidates = [place for place in range(len(head.names)) if place not in used]
    require_available(
        chosen, [head.names[place] for place in candidates], key, "column", head.where
    )
    values = [place for place in candidates if not chosen or head.names[place] in chosen]
    if not values:
        raise DataError(f"{head.where}: a time column, but no column of values")
    require_named((head.names[place] for place in values), head.where)
    return replace(columns, values=values)


def head_of(
    rows: list[list[str]], where: str, settings: DataSettings, row: str = "line", first_row: int = 1
) -> Head:
    """Return the names of the columns, from the cells of the first rows.

    row: the word for a row in messages. first_row: the number of the first row. Raises `DataError`
    if the first row may be names or values, or if there are too many columns.
    """
    above = rows_above(rows, settings.header, where, first_row)
    notes = tuple[str, ...]()
    if above:
        last = first_row + above - 1
        numbers = f"{row}s {first_row} to {last}" if above > 1 else f"{row} {last}"
        notes = (f"left out above the names of the columns: {numbers}",)
    first, rows = rows[above], rows[above:]
    require_few_columns(len(first), where)
    if settings.header == "auto" and not above and not settings.unfold:
        is_certain = len(rows) < 2 or has_names(rows, settings.decimal)
        if not is_certain and any(first):
            raise DataError(
                f"{where}: line 1 has values where names are expected ({', '.join(first[:5])}); "
                "set data.header = false if the file has no header, true if these are names"
            )
    index = len(first) - 1 if has_empty_end(rows) else None
    if index is not None:
        notes = (*notes, "the last column has no name and is empty: left out")
    if settings.header == "false":
        times = 0 if len(first) > 1 and look_like_times([row[0] for row in rows]) else None
        return Head(where, numbered(len(first)), times)
    units = unit_rows(rows)
    if units:
        texts = ", ".join(filter(None, rows[1][:LOOKED_AT]))
        rows_are = "rows below the header are" if units > 1 else "row below the header is"
        notes = (*notes, f"the {rows_are} taken for units: {texts}")
    usual = [place for place, name in enumerate(first) if name.lower() in TIME_NAMES]
    times = 0 if 0 in usual or not first[0] else None
    is_unnamed = first[0].lower() in UNNAMED and len(first) > 1
    if is_unnamed and number_rows([row[0] for row in rows[1 + units :]]):
        # It may still be the time, if there is no other column of times or if one is set.
        times = usual[0] if usual else 0
        index = index if not usual and not settings.time_column else 0
    return Head(where, first, times, above + 1 + units, notes, index, above)


def has_empty_end(rows: list[list[str]]) -> bool:
    """Return whether all rows, including the row of names, end with a delimiter."""
    return all(len(row) > 2 and not row[-1] for row in rows) and any(map(any, rows))


def rows_above(rows: list[list[str]], header: str, where: str, first_row: int = 1) -> int:
    """Return how many rows stand above the names of the columns.

    header: the setting ``data.header``, which may be the number of the row with the names.
    first_row: the number of the first of these rows. With "auto", there may be titles, comments or
    a logger's lines above the names. Then the first row has fewer or more filled cells than the
    table.
    """
    if header.isdecimal():
        if not first_row <= int(header) < first_row + len(rows):
            raise DataError(
                f"data.header = {header}: the names of the columns of {where} are expected among "
                f"its rows {first_row} to {first_row + len(rows) - 1}"
            )
        return int(header) - first_row
    if header != "auto":
        return 0
    width = len(_filled(rows[-1]))
    are_comments = all(row[0].startswith(_COMMENTS) for row in rows[:2])
    if (
        not are_comments
        and len(rows[0]) == len(rows[-1])
        and len([cell for cell in rows[0] if cell]) >= width - 1
    ):
        return 0
    for number, row in enumerate(rows[1:-1], 1):
        if row[0].startswith(_COMMENTS):
            continue
        are_names = [not is_written_value(cell) for cell in row]
        is_header = len(_filled(row)) == width > 1 and all(are_names) and all(row[1:width])
        below = rows[number + 1 :][:_MOST_BELOW_NAMES]
        if is_header and any(is_number(cell) for of_row in below for cell in of_row):
            return number
    return 0


def _filled(row: list[str]) -> list[str]:
    """Return the cells up to the last that is not empty."""
    return row[: max((place for place, cell in enumerate(row, 1) if cell), default=0)]


def number_rows(cells: Sequence[str]) -> bool:
    """Return whether these cells only number the rows.

    They are whole numbers that rise by one from 0 or 1, or all empty, as in InfluxDB's tables.
    """
    if cells and not any(cells):
        return True
    if len(cells) < 2 or not all(map(str.isdecimal, cells)):
        return False
    numbers = list(map(int, cells))
    return numbers[0] in (0, 1) and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def unit_rows(rows: list[list[str]]) -> int:
    """Return how many rows of units, such as kW, or the like stand between names and values.

    They hold no number and no date. No cell of the last such row occurs again below it, and at
    least one of its texts stands above numbers.
    """
    below = rows[1 : 2 + _MOST_BELOW_NAMES]
    count = next((n for n, row in enumerate(below) if any(map(is_written_value, row))), 0)
    columns = list(zip(rows[count], zip(*rows[count + 1 :], strict=False), strict=False))
    if any(unit not in MISSING and unit in column for unit, column in columns):
        return 0
    is_above_numbers = any(unit not in MISSING and _are_numbers(cells) for unit, cells in columns)
    return count if is_above_numbers else 0


def is_written_value(cell: str) -> bool:
    """Return whether the cell is a number or a date."""
    return is_number(cell) or is_date(cell)


def _are_numbers(cells: Sequence[str]) -> bool:
    present = [cell for cell in cells if cell not in MISSING]
    return bool(present) and all(map(is_number, present))


def has_names(rows: list[list[str]], decimal: Decimal) -> bool:
    """Return whether the first of these rows certainly holds the names of the columns.

    A date or a fraction is not a name. Whole numbers may be names, such as numbers of sensors. This
    is certain only if no number below is whole and each name is far larger than all numbers below.
    """
    first, below = rows[0], rows[1:]
    if not is_date(first[0]) and below and all(is_date(row[0]) for row in below):
        return True
    if any(is_date(cell) or is_fraction(cell) for cell in first):
        return False
    if not all(_is_value(cell) for cell in first):
        return True
    return _are_names_of_sensors(first, below, decimal)


def _are_names_of_sensors(first: list[str], below: list[list[str]], decimal: Decimal) -> bool:
    """Return whether these whole numbers are names: no value below is whole or nearly as large."""
    if len(set(first)) < len(first) or not all(map(str.isdecimal, first)):
        return False
    pairs = [pair for row in below for pair in zip(first, row, strict=False)]
    present = [(int(name), cell) for name, cell in pairs if cell not in MISSING]
    signs = {"auto": ".,", "point": ".", "comma": ","}[decimal]
    return bool(present) and all(
        is_fraction(cell)
        and any(sign in cell for sign in signs)
        and name > _FAR_LARGER * abs(float(cell.replace(",", ".")))
        for name, cell in present
    )


def is_date(cell: str) -> bool:
    """Return whether the cell looks like a period, or like a date in any order of its parts."""
    return _DATE.fullmatch(cell) is not None or is_period(cell)


def is_clock_time(cell: str) -> bool:
    """Return whether the cell is a time without a date, such as 17:20."""
    return _CLOCK_TIME.fullmatch(cell) is not None


def is_fraction(cell: str) -> bool:
    """Return whether the cell is a number with a decimal sign or an exponent."""
    return is_number(cell) and not set(cell).isdisjoint(".,eE")


def _is_value(cell: str) -> bool:
    """Return whether a cell is empty or a whole number, and so may be a value, not a name."""
    return cell in MISSING or (is_number(cell) and not is_fraction(cell))


def numbered(count: int) -> list[str]:
    """Return names for columns without names."""
    return [f"column-{number}" for number in range(1, count + 1)]
