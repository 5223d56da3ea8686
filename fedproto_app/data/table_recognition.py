"""Which settings read a table: told from its first rows.

What is told here is an offer to a person, who sees it; a run reads what its settings say.
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
_MOST_NAMED = 12  # columns in a line that a person shall read
_COMMA = re.compile(r"-?\d+,\d+")
_NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
_NO_NUMBER = {one.lower() for one in MISSING} | {"inf", "-inf"}

Settings = dict[str, str | bool]


@dataclass(frozen=True)
class Reading:
    """What reads a path: the source, and other settings that it needs, by their keys.

    notes: what a person should know of it, a line each. is_guess: whether nothing in the file told
    it.
    """

    source: str
    settings: Settings = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_guess: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """All settings by the fields of `DataSettings`, as it holds them.

        Raises `DataError` for columns that no setting can name, as two of one name.
        """
        told = {key.removeprefix("data."): value for key, value in self.all_settings.items()}
        try:
            held = DataSettings.model_validate(told)
        except ValidationError as error:
            faults = "; ".join(one["msg"] for one in error.errors())
            raise DataError(f"what was found in it cannot be set: {faults}") from None
        names = (key.replace("-", "_") for key in told)
        return {name: getattr(held, name) for name in names}

    @property
    def all_settings(self) -> Settings:
        """With the source."""
        return {"data.source": self.source, **self.settings}


@dataclass(frozen=True)
class Column:
    """One column of the first rows. name: "" if it has none. cells: of these rows."""

    name: str
    cells: list[str]

    @property
    def is_number(self) -> bool:
        """Whether all that is there are numbers."""
        return all(map(_is_number, self.cells))

    @property
    def has_numbers(self) -> bool:
        """Whether nine of ten cells are numbers: the others are slips, which its reader refuses."""
        return 10 * sum(map(_is_number, self.cells)) >= 9 * len(self.cells)

    @property
    def is_time(self) -> bool:
        """Whether these are dates, or counts since 1970."""
        if not self.cells:
            return False
        if all(map(is_date, self.cells)):
            return True
        return len(self.cells) > 1 and look_like_times(sorted(set(self.cells)))


def _is_number(cell: str) -> bool:
    return _NUMBER.fullmatch(cell) is not None or cell.lower() in _NO_NUMBER


def reading_of_text(path: Path) -> Reading:
    """Of a CSV file and its like; what is damaged is left to the reader of ``wide-csv``."""
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
    """Of a Parquet file; what is damaged is left to the reader of ``wide-parquet``."""
    try:
        head, rows = first_rows(path)
    except DataError:
        return Reading("wide-parquet", is_guess=True)
    columns = [Column(name, its) for name, its in zip(head.names, rows, strict=True)]
    form = form_of(columns)
    if head.times is not None:  # its type tells
        form.settings.pop("data.time-column", None)
    return Reading(f"{form.source}-parquet", form.settings, form.notes)


def _sample(path: Path) -> list[str]:
    """The first lines, whole ones."""
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
        # Where commas cut evenly as well, they are decimal ones.
        sign = delimiter_of(lines, str(path), "comma")
        settings["data.delimiter"] = next(k for k, value in DELIMITERS.items() if value == sign)
        return sign


def form_of(columns: Sequence[Column], *, first_column_counts: bool = True) -> Reading:
    """Whether the table is ``wide`` or ``long``, and what must be set to read it so.

    first_column_counts: whether times in the first column are found without its name.
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
        others = [one for one in columns if one is not client and one is not times]
        values = [one for one in others if one.has_numbers]
        if len(others) > 1 and values and VALUE_NAME not in [one.name for one in others]:
            settings["data.columns"] = values[0].name
            rest = ", ".join(one.name for one in values[1 : _MOST_NAMED + 1])
            notes = (f"other columns of values: {rest}",) if rest else ()
            return Reading("long", settings, notes)
        return Reading("long", settings)
    if times is not None:
        is_first = times is columns[0]
        is_named = times.name.lower() in TIME_NAMES or times.name == ""
        if not (is_first and (is_named or first_column_counts)):
            settings["data.time-column"] = times.name
        if is_named:
            _count_steps(times, settings)
    values = [one for one in columns if one is not times and one.has_numbers]
    texts = [one for one in columns if one is not times and not one.has_numbers]
    if texts and values and len(values) <= _MOST_NAMED:
        settings["data.clients"] = ",".join(one.name for one in values)
        names = ", ".join(one.name for one in texts[:_MOST_NAMED])
        return Reading("wide", settings, (f"columns that are no numbers are left out: {names}",))
    return Reading("wide", settings)


def _count_steps(times: Column, settings: Settings) -> None:
    """Small whole numbers in a column of times are numbers of steps."""
    if not times.is_time and all(map(str.isdecimal, times.cells)):
        settings["data.time-unit"] = "step"


def _times(columns: Sequence[Column]) -> Column | None:
    """The column of times: named like one, or else the first that looks like one."""
    named = [one for one in columns if one.name.lower() in TIME_NAMES]
    if columns[0].name == "" and columns[0].is_time:
        return columns[0]
    return next((one for one in [*named, *columns] if one in named or one.is_time), None)


def _client(columns: Sequence[Column], times: Column | None) -> Column | None:
    """The column that tells whose row it is, if there is one.

    It is named so, or holds texts or whole numbers that come again while times repeat; in the first
    rows there may be only one client, whose name is a text.
    """
    others = [one for one in columns if one is not times]
    for one in others:
        if one.name.lower() in CLIENT_NAMES:
            return one
    if times is None:
        return None
    repeated = [one for one in others if 0 < len(set(one.cells)) < len(one.cells)]
    texts = [one for one in repeated if not one.is_number]
    if len(set(times.cells)) == len(times.cells):
        return next((one for one in texts if len(set(one.cells)) == 1), None)
    if texts:
        return texts[0]
    whole = [one for one in repeated if all(map(str.isdecimal, one.cells))]
    return whole[0] if whole else None
