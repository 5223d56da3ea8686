"""Recognise which settings read a table, from its first rows.

The result is a proposal to a person, who sees it; a run follows only its settings.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedproto_app.core.errors import DataError
from fedproto_app.data.parquet_table import first_rows
from fedproto_app.data.stamps import look_like_times
from fedproto_app.data.table import TIME_NAMES
from fedproto_app.data.table_source import CLIENT_NAMES, VALUE_NAME
from fedproto_app.data.text_table import (
    MISSING,
    cells,
    decoded,
    delimiter_of,
    first_lines,
    has_names,
    is_date,
    numbered,
)
from fedproto_app.settings import DataSettings
from fedproto_app.settings.choice import DELIMITERS

_SAMPLE = 1 << 18  # bytes to look at
_MOST_NAMED = 12  # columns listed in a line for a person
_COMMA = re.compile(r"-?\d+,\d+")
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
_NO_NUMBER = {text.lower() for text in MISSING} | {"inf", "-inf"}

Settings = dict[str, str | bool]


@dataclass(frozen=True)
class Reading:
    """The settings that read a path: the source, and other settings by their keys.

    notes: remarks for a person, a line each. is_guess: whether the file's content gave no evidence.
    """

    source: str
    settings: Settings = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_guess: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """All settings by their fields in `DataSettings`, validated.

        Raises `DataError` if a setting cannot name the columns, for example two of one name.
        """
        values = {key.removeprefix("data."): value for key, value in self.all_settings.items()}
        try:
            data_settings = DataSettings.model_validate(values)
        except ValidationError as error:
            faults = "; ".join(fault["msg"] for fault in error.errors())
            raise DataError(f"the recognised settings are not valid: {faults}") from None
        names = (key.replace("-", "_") for key in values)
        return {name: getattr(data_settings, name) for name in names}

    @property
    def all_settings(self) -> Settings:
        """All settings, including the source."""
        return {"data.source": self.source, **self.settings}


@dataclass(frozen=True)
class Column:
    """The cells of a column in the first rows. name: "" if it has none."""

    name: str
    cells: list[str]

    @property
    def is_number(self) -> bool:
        """Whether all cells are numbers."""
        return all(map(_is_number, self.cells))

    @property
    def has_numbers(self) -> bool:
        """Whether 90% of the cells are numbers; the others are errors that the reader reports."""
        return 10 * sum(map(_is_number, self.cells)) >= 9 * len(self.cells)

    @property
    def is_time(self) -> bool:
        """Whether the cells are dates or counts since 1970."""
        if not self.cells:
            return False
        if all(map(is_date, self.cells)):
            return True
        return len(self.cells) > 1 and look_like_times(sorted(set(self.cells)))


def _is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None or cell.lower() in _NO_NUMBER


def reading_of_text(path: Path) -> Reading:
    """Return the settings that read a CSV file; if it is damaged, its reader reports the fault."""
    try:
        lines = _sample(path)
        settings: Settings = {}
        delimiter = _delimiter(lines, path, settings)
    except (DataError, OSError, EOFError, zlib.error):
        return Reading("wide-csv", is_guess=True)
    rows = [cells(line, delimiter) for line in lines]
    if len({len(row) for row in rows}) > 1 or len(rows) < 2:
        return Reading("wide-csv", settings, is_guess=True)
    if delimiter != "," and any(_COMMA.fullmatch(cell) for row in rows for cell in row):
        settings["data.decimal"] = "comma"
    notes: tuple[str, ...] = ()
    names = rows[0]
    if has_names(rows, "data.decimal" in settings):
        rows = rows[1:]
    else:
        names = numbered(len(rows[0]))
        settings["data.header"] = False
        notes = ("line 1 is read as values; if it has names, set data.header = true",)
    columns = [Column(name, [row[place] for row in rows]) for place, name in enumerate(names)]
    form = form_of(columns, first_column_counts="data.header" in settings)
    return Reading(f"{form.source}-csv", settings | form.settings, (*notes, *form.notes))


def reading_of_parquet(path: Path) -> Reading:
    """Return the settings that read a Parquet file; if it is damaged, its reader reports it."""
    try:
        head, rows = first_rows(path)
    except DataError:
        return Reading("wide-parquet", is_guess=True)
    columns = [
        Column(name, column_cells) for name, column_cells in zip(head.names, rows, strict=True)
    ]
    form = form_of(columns)
    if head.times is not None:  # the reader recognises it by its type
        form.settings.pop("data.time-column", None)
    return Reading(f"{form.source}-parquet", form.settings, form.notes)


def _sample(path: Path) -> list[str]:
    """Return the first complete lines."""
    with path.open("rb") as file:
        start = file.read(2)
        file.seek(0)
        if start == b"\x1f\x8b":
            with gzip.open(file) as unpacked:
                content = unpacked.read(_SAMPLE)
        else:
            content = file.read(_SAMPLE)
    if len(content) == _SAMPLE:  # the last line is cut, perhaps in a character
        content = content[: content.rfind(b"\n") + 1]
    if not (lines := first_lines(decoded(content, str(path)))):
        raise DataError(f"{path}: the file is empty")
    return lines


def _delimiter(lines: list[str], path: Path, settings: Settings) -> str:
    try:
        return delimiter_of(lines, str(path))
    except DataError:
        # Several delimiters fit; if the comma is among them, take it as the decimal comma.
        sign = delimiter_of(lines, str(path), "comma")
        settings["data.delimiter"] = next(k for k, value in DELIMITERS.items() if value == sign)
        return sign


def form_of(columns: Sequence[Column], *, first_column_counts: bool = True) -> Reading:
    """Return whether the table is ``wide`` or ``long``, and the settings that read it.

    first_column_counts: whether the reader takes times in the first column without a setting.
    """
    settings: Settings = {}
    times = _times(columns)
    client = _client(columns, times)
    if client is not None and times is not None:
        if client.name.lower() not in CLIENT_NAMES:
            settings["data.client-column"] = client.name
        if times.name.lower() not in TIME_NAMES:
            settings["data.time-column"] = times.name
        _count_steps(times, settings)
        other_columns = [
            column for column in columns if column is not client and column is not times
        ]
        values = [column for column in other_columns if column.has_numbers]
        if (
            len(other_columns) > 1
            and values
            and VALUE_NAME not in [column.name for column in other_columns]
        ):
            settings["data.columns"] = values[0].name
            other_names = ", ".join(column.name for column in values[1 : _MOST_NAMED + 1])
            notes = (f"other columns of values: {other_names}",) if other_names else ()
            return Reading("long", settings, notes)
        return Reading("long", settings)
    if times is not None:
        is_first = times is columns[0]
        is_named = times.name.lower() in TIME_NAMES or times.name == ""
        if not (is_first and (is_named or first_column_counts)):
            settings["data.time-column"] = times.name
        if is_named:
            _count_steps(times, settings)
    values = [column for column in columns if column is not times and column.has_numbers]
    texts = [column for column in columns if column is not times and not column.has_numbers]
    if texts and values and len(values) <= _MOST_NAMED:
        settings["data.clients"] = ",".join(column.name for column in values)
        names = ", ".join(column.name for column in texts[:_MOST_NAMED])
        return Reading("wide", settings, (f"columns that are no numbers are left out: {names}",))
    return Reading("wide", settings)


def _count_steps(times: Column, settings: Settings) -> None:
    """Set the time unit to steps if the time column holds small whole numbers."""
    if not times.is_time and all(map(str.isdecimal, times.cells)):
        settings["data.time-unit"] = "step"


def _times(columns: Sequence[Column]) -> Column | None:
    """Return the time column: one with a usual name, or the first that looks like times."""
    named_columns = [column for column in columns if column.name.lower() in TIME_NAMES]
    if columns[0].name == "" and columns[0].is_time:
        return columns[0]
    return next(
        (
            column
            for column in [*named_columns, *columns]
            if column in named_columns or column.is_time
        ),
        None,
    )


def _client(columns: Sequence[Column], times: Column | None) -> Column | None:
    """Return the column of clients' names, None without one.

    It has a usual name, or holds texts or whole numbers that repeat while times repeat too. The
    first rows may be of a single client, whose name must then be a text.
    """
    candidates = [column for column in columns if column is not times]
    for column in candidates:
        if column.name.lower() in CLIENT_NAMES:
            return column
    if times is None:
        return None
    repeated = [column for column in candidates if 0 < len(set(column.cells)) < len(column.cells)]
    texts = [column for column in repeated if not column.is_number]
    if len(set(times.cells)) == len(times.cells):
        return next((column for column in texts if len(set(column.cells)) == 1), None)
    if texts:
        return texts[0]
    whole_numbers = [column for column in repeated if all(map(str.isdecimal, column.cells))]
    return whole_numbers[0] if whole_numbers else None
