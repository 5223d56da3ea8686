"""Decide how a table is read: which column holds the times, which names the clients, and which is
to be forecast.

What the first and last rows show for certain becomes settings. Anything else becomes a question to
the person, in one line, because a wrong guess would forecast something that nobody asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import (
    YEARS,
    are_years,
    counts_excel_days,
    look_like_times,
    sampling_step,
)
from fedproto_app.data.format import Answers, Changes, Reading
from fedproto_app.data.number_styles import Style, is_number, value_of
from fedproto_app.data.source_checks import require_available
from fedproto_app.data.table import (
    MISSING,
    PARTS_OF_TIME,
    TIME_NAMES,
    UNNAMED,
    is_clock_time,
    is_date,
    is_fraction,
    number_rows,
    read_times,
    time_of_parts,
)
from fedproto_app.data.table_source import CLIENT_NAMES, MOST_TEXTS, VALUE_NAMES
from fedproto_app.settings.choice import known_in, names_in, text_of


class Question(DataError):
    """Raised if a table can be read in several ways. text: the question without the table name."""

    def __init__(self, where: str, text: str) -> None:
        super().__init__(f"{where}: {text}")
        self.text = text


_MOST_NAMED = 12  # most columns listed in a line for a person
_NO_NUMBER = {text.lower() for text in MISSING} | {"inf", "-inf"}
_HOURS = {"hour", "hr", "hour_of_day", "stunde"}
# Names of columns that tell a row's time or place. Such a column is never a client.
_OF_TIME_OR_PLACE = (
    {*PARTS_OF_TIME, *YEARS, *_HOURS, "mnth", "quarter", "week", "weekday", "dayofweek", "dow"}
    | {"day_of_week", "dayofyear", "day_of_year", "doy", "holiday", "is_holiday", "weekend"}
    | {"monat", "tag", "quartal", "woche", "wochentag", "feiertag"}
    | {"lat", "lon", "lng", "long", "latitude", "longitude", "altitude", "elevation"}
)
# Names of columns that hardly ever are clients.
_NOT_CLIENTS = {*_OF_TIME_OR_PLACE, "label", "class", "id", "index", "no", "row", "nr"}
_LABELS = {"label", "labels", "class", "target", "y", "species", "outcome", "diagnosis"}
_FEWEST_RISING = 4  # rows needed to see that a column rises by one step
_FEWEST_NUMBERED = 12  # columns called hh_0, hh_1, … that suffice to look like parts of a day
_PARTS_OF_DAY = (24, 48, 96, 144, 288, 1440)  # usual numbers of such columns in a table of days
_MANY_TIMES = 1.5  # with more rows per step, several clients stand one below the other
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LIKE_A_YEAR = re.compile(r"1[89]\d\d|20\d\d")
_NUMBERED = re.compile(r"(?P<stem>.*?)(?P<number>\d+)")


@dataclass(frozen=True)
class Column:
    """The cells of a column in the first rows, and in the last rows if the table has more.

    name: the column's name, "" if it has none. parts: the names of columns joined into this one.
    """

    name: str
    cells: list[str]
    last: list[str] = field(default_factory=list)
    parts: tuple[str, ...] = ()

    @property
    def setting(self) -> str:
        """How a setting names the column."""
        return text_of(self.parts or [self.name])

    @property
    def is_number(self) -> bool:
        """Whether all cells are numbers."""
        return all(map(_is_number, self.cells))

    @property
    def has_numbers(self) -> bool:
        """Whether 90% of the cells are numbers. The reader reports the other cells as errors."""
        return 10 * sum(map(_is_number, self.cells)) >= 9 * len(self.cells)

    @property
    def has_few_texts(self) -> bool:
        """Whether the cells that were read hold few different texts."""
        return 0 < len({*self.cells, *self.last}) <= MOST_TEXTS

    @property
    def is_time(self) -> bool:
        """Whether the cells are dates or counts since 1970."""
        if not self.cells:
            return False
        if all(map(is_date, self.cells)):
            return True
        return len(self.cells) > 1 and look_like_times(sorted(set(self.cells)))

    @property
    def rise(self) -> float:
        """By how much the cells rise from row to row, 0.0 if that varies."""
        if len(self.cells) < _FEWEST_RISING:
            return 0.0
        step = _step_of(self.cells)
        agrees = len(self.last) < 2 or abs(_step_of(self.last) - step) <= 1e-6 * step
        return step if agrees else 0.0


def form_of(
    columns: Sequence[Column],
    answers: Answers | None = None,
    *,
    name: str = "csv",
    rows: int = 0,
    where: str = "the table",
    first_column_counts: bool = True,
) -> Reading:
    """Return the source, wide or long, and the settings that read the table.

    answers: settings that the person has made, with dotted keys. name: the format's name. rows: how
    many rows the table has, 0 if the columns hold all of them. where: the table's name in messages.
    first_column_counts: whether the reader, without a setting, takes the first column for times if
    it holds times. Raises `Question` for what only the person knows.
    """
    return _Decision(list(columns), answers or {}, name, rows, where, first_column_counts).form()


@dataclass
class _Decision:
    columns: list[Column]
    answers: Answers
    name: str
    rows: int
    where: str
    first_column_counts: bool
    settings: Changes = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first = self.columns[0]

    def ask(self, question: str) -> NoReturn:
        """Raise the question."""
        raise Question(self.where, question)

    def form(self) -> Reading:
        """Return the source and the settings (see `form_of`)."""
        self._leave_index_out()
        if unfold := names_in(str(self.answers.get("data.unfold", ""))):
            names = _names(self.columns)
            require_available(unfold, names, "unfold", "column", self.where)
            first, last = map(names.index, unfold)
            self.columns = self.columns[:first] + self.columns[last + 1 :]
        times = self._times() if self.columns else None
        client = self._client(times)
        if unfold:
            self._name(client, times)
            return self._reading("long")
        if client is not None and times is None:
            self._require_no_series_in_rows(self._except(client))
            self.ask(
                f"{client.name!r} names the clients, but which column holds the times? set "
                f"data.time-column to one of {self._listed(self._except(client))}"
            )
        if client is not None and times is not None:
            return self._long(client, times)
        return self._wide(times)

    def _reading(self, form: str, target: str = "", beside: Sequence[str] = ()) -> Reading:
        return Reading(
            f"{form}-{self.name}",
            self.settings,
            tuple(self.notes),
            tuple(self.left_out),
            target=target,
            beside=tuple(beside),
        )

    def _except(self, *used: Column | None) -> list[Column]:
        return [c for c in self.columns if all(c is not column for column in used)]

    def _chosen(self, key: str) -> Column | None:
        """Return the column that the person named in this setting, or None if it is not set.

        If it names several columns, one joined column takes their place.
        """
        if not (chosen := names_in(str(self.answers.get(key, "")))):
            return None
        names = [column.name for column in self.columns]
        require_available(chosen, names, key.removeprefix("data."), "column", self.where)
        columns = [self.columns[names.index(name)] for name in chosen]
        if len(columns) == 1:
            return columns[0]
        return self._join(columns, "/".join if "client" in key else time_of_parts)

    def _join(self, columns: Sequence[Column], join: Callable[[Sequence[str]], str]) -> Column:
        cells, last = (
            [join(row) for row in zip(*parts, strict=True)]
            for parts in ([c.cells for c in columns], [c.last for c in columns])
        )
        names = tuple(column.name for column in columns)
        joined = Column(text_of(names), cells, last, names)
        self.columns = [joined, *self._except(*columns)]
        self.first = self.columns[0]
        return joined

    def _leave_index_out(self) -> None:
        """Drop a first column that only numbers the rows, if another column holds the times."""
        remaining = self.columns[1:]
        if self.first.name.lower() not in UNNAMED or not number_rows(self.first.cells):
            return
        if self.answers.get("data.time-column") or (remaining and _usual_times(remaining)):
            self.columns = remaining
            reason = "numbers the rows" if any(self.first.cells) else "is empty"
            self.left_out.append(f"the first column has no name and {reason}: left out")

    def _times(self) -> Column | None:
        times = self._chosen("data.time-column")
        if times is None:
            times = self._joined_times() or _usual_times(self.columns)
        if times is None and not self.answers.get("data.clients"):
            times = self._counted_times()
        if times is None:
            return None
        is_usual = times.name.lower() in {*TIME_NAMES, ""}
        unit = str(self.answers.get("data.time-unit", ""))
        if times.is_time or times.parts or unit:
            return times
        looks_daily = is_usual or any(map(is_fraction, times.cells)) or _is_called_date(times)
        if looks_daily and counts_excel_days(times.cells):
            self.settings["data.time-unit"] = "excel"
        elif are_years(times.name, times.cells):
            self.settings["data.time-unit"] = "year"
            self.notes.append(f"the numbers in {times.name!r} are taken for years")
        elif _all_cells(_LIKE_A_YEAR.fullmatch, times.cells):
            self.ask(
                f"the numbers in {times.name!r}, such as {times.cells[0]}, may be years (--set "
                "data.time-unit=year) or numbers of steps (--set data.time-unit=step)"
            )
        elif all(map(str.isdecimal, times.cells)):
            self.settings["data.time-unit"] = "step"
            if not is_usual:
                self.notes.append(
                    f"the numbers in {times.name!r} are taken for numbers of the steps"
                )
        elif not is_usual:
            self.ask(
                f"column {times.name!r} rises by {times.rise:g} in each row: if it is the time, "
                "number the steps 1, 2, 3, … instead; if not, name the columns that are clients "
                "with --set data.clients=…"
            )
        return times

    def _counted_times(self) -> Column | None:
        """Return a column of years or of numbers that rise by one step."""
        parts = [column for column in self.columns if column.name.lower() in _NOT_CLIENTS]
        if (year := _first(parts, lambda c: are_years(c.name, c.cells))) is not None:
            return year
        numbers = [column for column in self.columns if column.has_numbers]
        rising = [column for column in numbers if column.rise]
        if _numbered(rising):  # series in rows, whose values happen to rise
            return None
        return rising[0] if rising and len(rising) < len(numbers) else None

    def _joined_times(self) -> Column | None:
        """Return the time joined from several columns, or None if it is not written so."""
        times = _usual_times(self.columns)
        clock = _first(self._except(times), _is_clock)
        has_days = times is not None and all(":" not in cell for cell in times.cells)
        if times and clock and has_days and len(set(times.cells)) < len(times.cells):
            return self._join([times, clock], time_of_parts)
        parts = _parts_of_time(self.columns)
        names = [column.name.lower() for column in parts]
        if times is not None or len(parts) < 2 or self.answers.get("data.clients"):
            return None
        if names != list(PARTS_OF_TIME[: len(names)]):
            listed = ", ".join(repr(column.name) for column in parts)
            self.ask(
                f"the time seems to stand in the columns {listed}, which lack a part of it; name "
                "its column with --set data.time-column=…"
            )
        return self._join(parts, time_of_parts)

    def _client(self, times: Column | None) -> Column | None:
        """Return the column of clients' names, or None if there is none.

        It has a usual name, or it holds texts or whole numbers that repeat while times repeat too.
        The first rows may all belong to one client. Then only a column of texts is taken.
        """
        if (column_set := self._chosen("data.client-column")) is not None:
            return column_set
        clients = names_in(str(self.answers.get("data.clients", "")))
        if clients and set(clients) <= set(_names(self.columns)):
            return None
        with_values = (*self._targets(), *self._known_names())
        candidates = [column for column in self._except(times) if column.name not in with_values]
        if usual := _first(candidates, lambda column: column.name.lower() in CLIENT_NAMES):
            return usual
        if times is None:
            return None
        repeated = [c for c in candidates if c.cells and len(set(c.cells)) <= len(c.cells) // 2]
        texts = [column for column in repeated if not column.is_number]
        if not self._times_repeat(times):
            alike = [column for column in texts if len(set(column.cells)) == 1]
            differs_at_the_end = _first(alike, lambda c: bool(c.last) and c.last[-1] != c.cells[0])
            return differs_at_the_end or (alike[0] if alike else None)
        integers = [
            column
            for column in repeated
            if _all_cells(str.isdecimal, column.cells)
            and column.name.lower() not in _OF_TIME_OR_PLACE
        ]
        constant: Column | None = None
        for of_kind in (texts, sorted(integers, key=lambda column: len(set(column.cells)))):
            apart = [column for column in of_kind if _tells_apart([times, column])]
            varied = _first(apart, lambda c: len(set(c.cells) | set(c.last)) > 1)
            if varied is not None:
                return varied
            if apart:
                constant = constant or apart[0]
                continue
            pair = next(
                ([a, b] for a in of_kind for b in of_kind if _tells_apart([times, a, b])), None
            )
            if pair is not None and of_kind is texts:
                return self._join(pair, "/".join)
            if of_kind:
                return constant or of_kind[0]
        return constant

    def _times_repeat(self, times: Column) -> bool:
        """Return whether times occur again, so that rows of several clients follow each other.

        In a table sorted by client, neither the first nor the last rows show this. But it then has
        more rows than there are steps between its first and its last time.
        """
        distinct_times = set(times.cells)
        if len(distinct_times) < len(times.cells):
            rows = set(zip(*(column.cells for column in self.columns), strict=True))
            return len(rows) > len(distinct_times)
        if not times.last or len(times.cells) < _FEWEST_RISING:
            return False
        import pandas as pd

        unit: Any = self.answers.get("data.time-unit") or self.settings.get("data.time-unit")
        cells = pd.Series([*times.cells, *times.last])
        try:
            stamps, _ = read_times(cells, unit or "auto", times.name, str, self.where)
        except DataError:
            return False
        first, last = stamps.times[: len(times.cells)], stamps.times[len(times.cells) :]
        step = sampling_step(np.unique(first))
        if step is None:
            return False
        return bool(self.rows > _MANY_TIMES * (abs(last[-1] - first[0]) / step + 1))

    def _name(self, client: Column | None, times: Column | None) -> None:
        """Add settings for the columns of clients and times if their names are not usual ones."""
        if client is not None and client.name.lower() not in CLIENT_NAMES:
            self.settings["data.client-column"] = client.setting
        if times is not None and times.name.lower() not in TIME_NAMES:
            self.settings["data.time-column"] = times.setting

    def _long(self, client: Column, times: Column) -> Reading:
        self._name(client, times)
        candidates = self._except(client, times)
        with_values = (*self._targets(), *self._known_names())
        numbering = [c for c in candidates if c.rise == 1 and c.name not in with_values]
        numbering = numbering if len(numbering) < len(candidates) else []
        remaining = [column for column in candidates if column not in numbering]
        values = [c for c in remaining if c.has_numbers and c.name not in self._known_names()]
        if not values or len(candidates) == 1:
            return self._reading("long", candidates[0].name if len(candidates) == 1 else "")
        target = self._target(values, client)
        if not _is_usual(target) or sum(_is_usual(c.name) for c in candidates) > 1:
            self.settings["data.columns"] = text_of([target])
        beside = [
            column.name
            for column in remaining
            if column.name != target
            and (column.has_numbers or column.has_few_texts or column.name in self._known_names())
        ]
        unread = [column for column in remaining if column.name not in beside]
        self.left_out += [*map(_numbers_rows, numbering), *_without_numbers(unread)]
        return self._reading("long", target, beside)

    def _targets(self) -> tuple[str, ...]:
        return names_in(str(self.answers.get("data.columns", "")))

    def _known_names(self) -> tuple[str, ...]:
        """Return the further columns that the person lists in ``data.known``."""
        columns = known_in(str(self.answers.get("data.known", "")))
        return tuple(column.name for column in columns if column.name not in self._targets())

    def _target(self, values: Sequence[Column], client: Column) -> str:
        """Return the column to forecast: the person's, one with a usual name, or the only one."""
        names = [column.name for column in values]
        if targets := self._targets():
            require_available(targets, names, "columns", "column of values", self.where)
            return targets[0]
        usual = [name for name in names if _is_usual(name)]
        if len(usual) == 1 or len(names) == 1:
            return (usual or names)[0]
        question = (
            f"which column is to be forecast: {self._listed(values)}? name it with --target COLUMN "
            "or --set data.columns=COLUMN"
        )
        if len({*client.cells, *client.last}) == 1 and client.name.lower() not in CLIENT_NAMES:
            clients = text_of(names[:_MOST_NAMED])
            question += f"; if every column is a client, --set data.clients={clients}"
        if numbered := _numbered(values):
            question = _whether_to_unfold(numbered)
        return self.ask(question)

    def _wide(self, times: Column | None) -> Reading:
        if times is not None:
            is_first = times is self.first
            is_named = times.name.lower() in {*TIME_NAMES, ""}
            if times.parts or not (
                is_first and (is_named or (self.first_column_counts and times.is_time))
            ):
                self.settings["data.time-column"] = times.setting
        candidates = [c for c in self._except(times) if c.name not in self._known_names()]
        values = [column for column in candidates if column.has_numbers]
        target = ""
        if not (names := names_in(str(self.answers.get("data.clients", ""))) or self._targets()):
            if times is None:
                self._require_times(candidates, values)
            else:
                numbering = [column for column in values if column.rise == 1 and column.name]
                if len(numbering) < len(values):
                    values = [column for column in values if column not in numbering]
                    self.left_out += map(_numbers_rows, numbering)
            is_daily = times is not None and not any(":" in cell for cell in times.cells)
            is_yearly = self.settings.get("data.time-unit") == "year"
            parts = _PARTS_OF_DAY if is_daily and not is_yearly else (12,) if is_yearly else ()
            if len(numbered := _numbered(values)) in parts:
                self.ask(_whether_to_unfold(numbered))
            if times is not None and times.name == "ds" and "y" in {c.name for c in values}:
                unused = [column for column in values if column.name != "y"]
                values = [column for column in values if column.name == "y"]
                if unused:
                    self.notes.append(f"not used: {self._listed(unused)}")
            self._require_clients(values)
            target = values[0].name if len(values) == 1 else ""
            if values and len(candidates) < len(self._except(times)):
                self.settings["data.clients"] = text_of(_names(values))
            elif values and len(values) < len(candidates):
                self._leave_out(candidates, values)
        else:
            target = names[0] if len(names) == 1 else ""
        self.left_out += _without_numbers(c for c in candidates if c.name not in names)
        return self._reading("wide", target)

    def _leave_out(self, candidates: Sequence[Column], values: Sequence[Column]) -> None:
        if len(values) <= _MOST_NAMED:
            self.settings["data.clients"] = text_of(column.name for column in values)
            return
        remaining = [column for column in candidates if column not in values and column.has_numbers]
        if remaining:
            self.ask(f"column {remaining[0].name!r} is no client; leave it out of the file")

    def _require_clients(self, values: Sequence[Column]) -> None:
        """If a column of numbers is named like a time, place or label, ask whether to read it."""
        doubtful = [column for column in values if column.name.lower() in _NOT_CLIENTS]
        if not doubtful or len(doubtful) == len(values):
            return
        clients = _names([column for column in values if column not in doubtful])
        self.ask(
            f"is {' or '.join(map(repr, _names(doubtful[:3])))} a client? name the columns to "
            f"forecast with --set data.clients={text_of(clients[:5])}"
            f"{', …' if len(clients) > 5 else ''}, or one of them with --target"
        )

    def _require_times(self, candidates: Sequence[Column], values: Sequence[Column]) -> None:
        """If there are columns of texts but no column of times, ask the person what they are."""
        texts = [column for column in candidates if not column.has_numbers]
        if not texts:
            return
        self._require_no_series_in_rows(candidates)
        label = _first([*candidates[::-1]], lambda column: column.name.lower() in _LABELS)
        if label is not None:
            self.ask(
                f"this looks like a table of features with a label, {label.name!r}, and a sample "
                "in each row, as no column holds times; fedproto forecasts series and classifies "
                "images and sequences, but not such rows"
            )
        self.ask(
            "no column holds times that can be read, such as 2014-01-31 13:00; "
            f"{texts[0].name!r} holds texts, such as {texts[0].cells[0]!r}. Name the columns with "
            "--set data.time-column=… and --set data.client-column=…, or, if rows are in the order "
            f"of time, those to forecast with --set data.clients={text_of(_names(values)[:5])}"
        )

    def _require_no_series_in_rows(self, candidates: Sequence[Column]) -> None:
        """If each row is a series, with a column for each time, ask the person to unfold it."""
        values = [column for column in candidates if column.has_numbers]
        if numbered := _numbered(values):
            self.ask(
                "its rows look like series: --set "
                f"data.unfold={text_of([numbered[0], numbered[-1]])} reads the values of a row one "
                f"after the other, and --clients-from {candidates[0].setting} names the series"
            )

    def _listed(self, columns: Sequence[Column]) -> str:
        names = [column.name for column in columns]
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return ", ".join(names[:_MOST_NAMED]) + more


def _names(columns: Sequence[Column]) -> list[str]:
    return [column.name for column in columns]


def _first(columns: Sequence[Column], fits: Callable[[Column], bool]) -> Column | None:
    return next((column for column in columns if fits(column)), None)


def _all_cells(fits: Callable[[str], object], cells: Sequence[str]) -> bool:
    return bool(cells) and all(map(fits, cells))


def _is_number(cell: str) -> bool:
    return is_number(cell) or cell.lower() in _NO_NUMBER


def _is_usual(name: str) -> bool:
    return name.lower() in VALUE_NAMES


def _step_of(cells: Sequence[str]) -> float:
    """Return by how much the cells rise from one to the next, 0.0 if that varies."""
    style: Style = "comma" if any("," in cell for cell in cells) else "plain"
    numbers = [value_of(cell, style) for cell in cells]
    present = [number for number in numbers if number is not None]
    if len(present) < len(cells):
        return 0.0
    steps = np.diff(present)
    # MATLAB writes days with six decimals, so an hour is 0.041667 or 0.041666.
    is_single = steps.min() > 0 and np.ptp(steps) <= 2e-6 * max(steps.max(), 1.0)
    return float(np.median(steps)) if is_single else 0.0


def _is_called_date(column: Column) -> bool:
    return any(part in column.name.lower() for part in ("date", "dat", "zeit", "time", "tag"))


def _parts_of_time(columns: Sequence[Column]) -> list[Column]:
    by_name = {column.name.lower(): column for column in columns if column.is_number}
    return [by_name[part] for part in PARTS_OF_TIME if part in by_name]


def _usual_times(columns: Sequence[Column]) -> Column | None:
    """Return the column with a usual name for times, or the first that looks like times."""
    if columns[0].name == "" and columns[0].is_time:
        return columns[0]
    usual = _first(columns, lambda column: column.name.lower() in TIME_NAMES)
    times = [column for column in columns if column.is_time]
    changing = _first(times, lambda column: len(set(column.cells)) > 1)
    return usual or changing or (times[0] if times else None)


def _tells_apart(columns: Sequence[Column]) -> bool:
    """Return whether these columns tell all of the first rows apart."""
    rows = list(zip(*(column.cells for column in columns), strict=True))
    return len(set(rows)) == len(rows)


def _is_clock(column: Column) -> bool:
    """Return whether a column holds times of the day, or hours."""
    are_hours = _all_cells(lambda cell: cell.isdecimal() and int(cell) <= 24, column.cells)
    is_named = are_hours and column.name.lower() in _HOURS
    return is_named or _all_cells(is_clock_time, column.cells)


def _whether_to_unfold(names: Sequence[str]) -> str:
    ends = text_of([names[0], names[-1]])
    return (
        f"each row holds {len(names)} values: do they follow each other in time? --set "
        f"data.unfold={ends} reads them so, and --target {names[0]} forecasts that column alone"
    )


def _numbered(columns: Sequence[Column]) -> list[str]:
    """Return the names of columns that follow each other like the parts of a day or a year.

    They are numbered, such as hh_0, hh_1, …, or called 00:00, 00:30, …, or named after the months.
    """
    clocks = [column.name for column in columns if is_clock_time(column.name)]
    if len(clocks) >= _FEWEST_NUMBERED:
        return clocks
    months = [column.name for column in columns if column.name[:3].lower() in _MONTHS]
    if [name[:3].lower() for name in months] == list(_MONTHS):
        return months
    matches = [_NUMBERED.fullmatch(column.name) for column in columns]
    names = [match.string for match in matches if match is not None]
    stems = [match["stem"] for match in matches if match is not None]
    numbers = [int(match["number"]) for match in matches if match is not None]
    is_run = len(set(stems)) == 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    return names if is_run and len(names) >= _FEWEST_NUMBERED else []


def _numbers_rows(column: Column) -> str:
    return f"column {column.name!r} rises by 1 in each row, as row numbers do: left out"


def _without_numbers(columns: Iterable[Column]) -> tuple[str, ...]:
    """Return a line about each column that is not read because its cells are no numbers."""
    texts = [column for column in columns if not column.has_numbers]
    lines = [
        f"column {column.name!r} is left out, as it holds no numbers, such as "
        f"{next(cell for cell in column.cells if not _is_number(cell))!r}"
        for column in texts[:_MOST_NAMED]
    ]
    more = len(texts) - len(lines)
    return (*lines, f"and {more} more columns") if more else tuple(lines)
