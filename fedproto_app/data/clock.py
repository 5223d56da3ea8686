"""Read the times of a table, and turn them into positions on one clock.

A column of times holds dates, periods such as 1998Q1, years, counts since 1970, or numbers of
steps. A position is the number of whole steps since 1970. Steps may follow the calendar, such
as months or business days. Because all positions count from 1970, the same hour of the day has the
same phase in every file and at every site, whenever recording began.
"""

from __future__ import annotations

import re
from calendar import month_name
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import require_room
from fedproto_app.settings.choice import TimeUnit

if TYPE_CHECKING:
    from pandas import Series

Times = NDArray[np.datetime64]
Matrix = NDArray[np.float64]

SECONDS_OF_MONTH = 365.2425 * 86_400 / 12  # on average
# A time never has rows if the probability that they are missing by chance is smaller than this.
LARGEST_CHANCE = 1e-6
WEEKDAYS = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")
_EVERY_DAY, _BUSINESS_DAYS = "1111111", "1111100"  # from Monday on, as numpy writes weeks
DAY, WEEK = np.timedelta64(86_400_000_000, "us"), np.timedelta64(7 * 86_400_000_000, "us")
_MICROSECOND = np.timedelta64(1, "us")
_MONDAY = np.datetime64("1970-01-05", "D")
_SHORTEST_MONTH = 28 * DAY
_FEWEST_MONTHS, _FEWEST_WEEKS = 3, 3  # needed to recognise a step of the calendar
_UNITS = {1: "month", 3: "quarter", 12: "year"}  # keys: numbers of months
# The units of the calendar's steps, by mean length in seconds. Days lack some weekdays.
CALENDAR_UNITS = {
    **{months * SECONDS_OF_MONTH: unit for months, unit in _UNITS.items()},
    **{7 * 86_400 / days: "day" for days in range(2, 7)},
}
_LENGTHS = {86_400_000_000: "day", 3_600_000_000: "h", 60_000_000: "min", 1_000_000: "s"}
# A grid with more gaps than rows indicates a wrong step or a wrong year, not a few missing rows.
LARGEST_GRID_PER_ROW = 2
# The unit of a count since 1970 is guessed from its size. This covers dates from 1973 to 2030 in
# seconds, and from 2001 to 2030 in finer units. A date written as a number, such as 2014013113,
# lies outside.
_OLDEST = {"s": 0.1e9, "ms": 1e12, "us": 1e15, "ns": 1e18}
_NEWEST = {"s": 1.9e9, "ms": 1.9e12, "us": 1.9e15, "ns": 1.9e18}
_ISO = re.compile(r"\d{4}-\d\d-\d\d")
_YEAR_LAST = re.compile(
    r"\d{1,2}(?P<sign>[./-])\d{1,2}(?P=sign)(?P<year>\d{4}|\d\d)"
    r"(?:[T ]+(?P<time>\d{1,2}(?::\d\d){1,2}(?: ?[aApP][mM])?))?$"
)
_MONTH_IN_LETTERS = re.compile(r"\d{1,2}[- ][A-Za-z]{3,9}[- ]\d{4}")
_ISO_MONTH = r"\d{4}-\d\d"
_PERIOD = re.compile(r"(?P<year>\d{4})[-: ]?(?P<unit>[QMW])(?P<number>\d\d?)", re.IGNORECASE)
_QUARTER_FIRST = re.compile(r"(Q\d)[-: ]?(\d{4})", re.IGNORECASE)  # Q1 1998
YEARS = frozenset({"year", "yr", "jahr", "season"})  # usual names of columns that hold years
EXCEL_EPOCH = np.datetime64("1899-12-30", "s")  # Excel's day 0
_EXCEL_DAYS = (20_000, 80_000)  # 1954 to 2119; other numbers are hardly Excel's days
_OFFSET = r"[T ]\d.*(?:[zZ]|[+-]\d\d(?::?\d\d)?)$"
_ZONE = r"([zZ]|[+-]\d\d(?::?\d\d)?)$"
_FARTHEST = 200_000  # years before or after 1970 that microseconds can count


@dataclass(frozen=True)
class Clock:
    """Gives positions their times. Steps have one length, or are steps of the calendar.

    step: the length of a step. For steps of the calendar, a number of months or a day. offset: how
    long after the beginning of its step a time lies. If the offset is below 0, the time lies that
    long before the end of the step's first month. utc: True if the source's times had an offset
    from UTC and were converted to UTC. month: for steps of several months, how many months after
    January 1970 the step at position 0 begins. week: which weekdays have steps, from Monday on. If
    the time of a step of months is on another day, it moves to the next of these, or to the last
    one before if the offset is below 0. form: how the source writes times: Y, Q or M as pandas
    names these periods, or "".
    """

    step: np.timedelta64
    offset: np.timedelta64
    utc: bool = False
    month: int = 0
    week: str = _EVERY_DAY
    form: str = field(default="", compare=False)

    @property
    def months(self) -> int:
        """How many months a step has. It is 0 for days and for steps of one length."""
        is_months = np.datetime_data(self.step.dtype)[0] == "M"
        return int(self.step.astype(np.int64)) if is_months else 0

    @property
    def is_of_calendar(self) -> bool:
        """Whether steps are months, or days without certain weekdays."""
        return self.months > 0 or self.week != _EVERY_DAY

    @property
    def step_seconds(self) -> float:
        """The length of a step in seconds. For steps of the calendar, it is the mean."""
        if self.months:
            return self.months * SECONDS_OF_MONTH
        return float(self.step / np.timedelta64(1, "s")) * len(self.week) / self.week.count("1")

    @property
    def label(self) -> str:
        """A short text that identifies the clock."""
        calendar = f" {self.month} {self.week}" if self.is_of_calendar else ""
        return f"{self.step} {self.offset}{calendar}{' utc' if self.utc else ''}"

    @property
    def rhythm(self) -> str:
        """The step in words, such as "1 h" or "1 month"."""
        if self.months:
            unit = _UNITS.get(self.months)
            return f"1 {unit}" if unit else f"{self.months} months"
        if self.week != _EVERY_DAY:
            return "1 business day" if self.week == _BUSINESS_DAYS else f"1 day {self._weekdays}"
        microseconds = int(self.step / _MICROSECOND)
        for size, unit in _LENGTHS.items():
            if microseconds % size == 0:
                number = microseconds // size
                return f"{number} {unit}{'s' * (unit == 'day' and number > 1)}"
        return f"{microseconds / 1e6:g} s"

    @property
    def words(self) -> str:
        """The clock in words, such as "monthly, at the month's start"."""
        if not self.is_of_calendar:
            return f"every {self.rhythm}"
        if not self.months:
            is_business = self.week == _BUSINESS_DAYS
            return "business days, Monday to Friday" if is_business else f"days {self._weekdays}"
        unit = _UNITS.get(self.months)
        often = f"{unit}ly" if unit else f"every {self.months} months"
        if self.form:
            return often
        if self.months > 1:
            month = month_name[1 + self.month % 12]
            often += f" from {month} on" if self.months % 12 else f" in {month}"
        days = int(self.offset // DAY)
        side = "start" if days >= 0 else "end"
        if self.week != _EVERY_DAY:
            where = f"on the {'first' if days >= 0 else 'last'} business day of the month"
        elif days in (0, -1):
            where = f"at the month's {side}"
        else:
            where = f"on day {days + 1}" if days > 0 else f"{-1 - days} days before the month's end"
        return f"{often}, {where}"

    @property
    def _weekdays(self) -> str:
        """The weekdays that have steps, in words, such as "but Sundays" or "on Tuesdays"."""
        has_few = self.week.count("1") < 4
        days = [WEEKDAYS[n] for n, digit in enumerate(self.week) if (digit == "1") is has_few]
        return f"{'on' if has_few else 'but'} {' and '.join(days)}"

    def steps_in(self, duration: np.timedelta64) -> int:
        """Return how many steps a day or a week has, or 0 if the number varies or is not whole."""
        if self.months:
            return 0
        if self.week != _EVERY_DAY:
            return 0 if duration % WEEK else int(duration // WEEK) * self.week.count("1")
        return 0 if duration % self.step else int(duration // self.step)

    @property
    def cycle(self) -> int:
        """The number of steps in a day, in a week if they are days, in a year if months, else 0."""
        if self.months:
            return 0 if 12 % self.months or self.months == 12 else 12 // self.months
        of_day = self.steps_in(DAY)
        is_daily = of_day == 1 or self.week != _EVERY_DAY
        return of_day if of_day > 1 else self.steps_in(WEEK) * is_daily

    @property
    def year(self) -> int:
        """How many steps a year has: at least 1 if steps last a week or longer, else 0."""
        weeks = self.step_seconds / float(WEEK / np.timedelta64(1, "s"))
        if weeks < 1 or self.months:
            return (self.cycle or 1) if self.months else 0
        return max(1, int(52 / weeks))

    def positions(self, times: Times) -> NDArray[np.int64]:
        """Return the positions of the steps that hold times [n], or of the last steps before."""
        if self.months:
            return (times.astype("datetime64[M]").astype(np.int64) - self.month) // self.months
        if self.week == _EVERY_DAY:
            return (times - np.datetime64(0, "us") - self.offset) // self.step
        has_step = np.array([digit == "1" for digit in self.week])
        days = ((times - self.offset).astype("datetime64[D]") - _MONDAY).astype(np.int64)
        return np.asarray(days // 7 * has_step.sum() + has_step.cumsum()[days % 7] - 1)

    def moments(self, positions: NDArray[np.int64]) -> Times:
        """Return the times at positions, in microseconds, without a zone."""
        if self.months:
            is_from_end = self.offset < np.timedelta64(0)
            months = positions * self.months + self.month + is_from_end
            days: Times = months.astype("datetime64[M]").astype("datetime64[D]")
            days = np.asarray(days + self.offset // DAY)
            if self.week != _EVERY_DAY:
                roll: Literal["backward", "forward"] = "backward" if is_from_end else "forward"
                days = np.busday_offset(days, 0, roll=roll, weekmask=self.week)
            return np.asarray(days.astype("datetime64[us]") + self.offset % DAY)
        if self.week == _EVERY_DAY:
            return np.datetime64(0, "us") + self.offset + positions * self.step
        weekdays = np.flatnonzero([digit == "1" for digit in self.week])
        days = _MONDAY + 7 * (positions // len(weekdays)) + weekdays[positions % len(weekdays)]
        return np.asarray(days.astype("datetime64[us]") + self.offset)

    def holds(self, times: Times) -> NDArray[np.bool_]:
        """Return which of these times [n] are times of the clock."""
        return np.asarray(self.moments(self.positions(times)) == times)

    def shifted_to(self, times: Times) -> Clock:
        """Return the clock with the offset of a client's times [n]. Not all of them need to fit."""
        if self.months:
            return self if self.holds(times).all() else _monthly(times, self) or self
        return replace(self, offset=(times[0] - np.datetime64(0, "us")) % self.step)

    def first_at(self, time: datetime) -> int:
        """Return the first position whose time is not before this one.

        A time with an offset from UTC is converted to UTC. Other times are taken as written.
        """
        if time.tzinfo is not None:
            time = time.astimezone(UTC).replace(tzinfo=None)
        moment = np.array([time], dtype="datetime64[us]")
        position = self.positions(moment)
        return int(position[0]) + int(self.moments(position)[0] < moment[0])

    def seconds(self, positions: NDArray[np.int64]) -> Matrix:
        """Return the times at positions, in seconds since 1970."""
        return self.moments(positions).astype("datetime64[us]").astype(np.float64) / 1e6

    def time(self, position: int) -> str:
        """Return the time at a position as text.

        Periods are written as in the source, other times in ISO 8601. If steps are whole days, only
        the date is given.
        """
        time = self.moments(np.array([position]))[0]
        if self.form:
            import pandas as pd

            return str(pd.Period(time, freq=self.form))
        is_daily = self.is_of_calendar or not self.step % DAY
        if not self.utc and is_daily and not self.offset % DAY:
            return str(time.astype("datetime64[D]"))
        return _text(time) + ("+00:00" if self.utc else "")

    def numbers(self) -> tuple[int, ...]:
        """Return the clock as numbers for `from_numbers`. The form is left out."""
        step = self.months or int(self.step / _MICROSECOND)
        offset, is_months = int(self.offset / _MICROSECOND), int(self.months > 0)
        return step, offset, int(self.utc), self.month, int(self.week, 2), is_months

    @classmethod
    def from_numbers(cls, numbers: Iterable[float]) -> Clock:
        """Return the clock that these numbers describe. Raises `ValueError` if there is none."""
        step, offset, utc, month, week, is_months = map(int, numbers)
        if step <= 0 or not 0 < week < 2**7 or not 0 <= month < max(1, step * is_months):
            raise ValueError("no clock")
        length = np.timedelta64(step, "M") if is_months else np.timedelta64(step, "us")
        return cls(length, np.timedelta64(offset, "us"), bool(utc), month, f"{week:07b}")


def sampling_step(times: Times) -> np.timedelta64 | None:
    """Return the most common distance between neighbouring times, or None without two times."""
    return _common_step([times])


def _common_step(
    all_times: Sequence[Times], *, may_lack_rows: bool = False
) -> np.timedelta64 | None:
    if may_lack_rows:
        all_times = [np.unique(np.concatenate(all_times))] if all_times else []
    distances = [np.diff(times) for times in all_times if len(times) > 1]
    if not distances:
        return None
    first = distances[0][0]
    if all((of_client == first).all() for of_client in distances):  # the usual case, and quicker
        return np.timedelta64(first)
    steps, counts = np.unique(np.concatenate(distances), return_counts=True)
    if may_lack_rows:
        return np.timedelta64(int(np.gcd.reduce(steps.astype(np.int64))), "us")
    return np.timedelta64(steps[np.argmax(counts)])


def common_clock(clients: Iterable[Stamps], *, may_lack_rows: bool = False) -> Clock | None:
    """Return the common clock of several clients' increasing times, or None if they show no step.

    If all times lie on one day of a month, counted from its start or its end, the steps are months.
    If all times are days but some weekdays never occur, the steps are the other weekdays. Otherwise
    the step is the most common distance. may_lack_rows: whether most rows may be missing. If so,
    the step is the largest that divides all distances, and days without rows still count as days.
    """
    stamps = [of_client for of_client in clients if len(of_client.times)]
    all_times = [of_client.times for of_client in stamps]
    step = _common_step(all_times, may_lack_rows=may_lack_rows)
    if step is None:
        return None
    clock = Clock(step, np.timedelta64(0, "us"), stamps[0].utc, form=stamps[0].form)
    if stamps[0].is_count:
        return clock
    return _of_months(all_times, clock) or _of_weekdays(all_times, clock, may_lack_rows) or clock


def _of_months(all_times: Sequence[Times], clock: Clock) -> Clock | None:
    """Return the clock if each step is one or several months, else None."""
    if min(np.diff(times).min() for times in all_times if len(times) > 1) < _SHORTEST_MONTH:
        return None
    pooled = np.unique(np.concatenate(all_times))
    if len(pooled) < _FEWEST_MONTHS and not clock.form:
        return None
    months = [np.diff(times.astype("datetime64[M]").astype(np.int64)) for times in all_times]
    step = int(np.gcd.reduce(np.concatenate(months)))
    if not step:
        return None
    monthly = replace(clock, step=np.timedelta64(step, "M"))
    if (of_all := _monthly(pooled, monthly)) is not None:
        return of_all
    clocks = [_monthly(times, monthly) for times in all_times]
    return None if None in clocks else clocks[0]


def _monthly(times: Times, clock: Clock) -> Clock | None:
    """Return a clock of months that contains all these times, or None if there is none.

    The times must all lie on one day counted from the month's start or its end, or on its first or
    its last business day, always at the same time of day.
    """
    first = times[0].astype("datetime64[M]")
    since, until = times[0] - first, times[0] - (first + 1)
    offsets = [(since, _EVERY_DAY)] if since < _SHORTEST_MONTH else []
    offsets += [(until, _EVERY_DAY), (since % DAY, _BUSINESS_DAYS)]
    offsets += [(since % DAY - DAY, _BUSINESS_DAYS)]
    month = int(first.astype(np.int64)) % clock.months
    clocks = [replace(clock, offset=offset, month=month, week=week) for offset, week in offsets]
    return next((monthly for monthly in clocks if monthly.holds(times).all()), None)


def _of_weekdays(all_times: Sequence[Times], clock: Clock, may_lack_rows: bool) -> Clock | None:
    """Return the clock if the times are days but certain weekdays never occur, else None.

    The times must span at least `_FEWEST_WEEKS` weeks. Chance must not explain the missing
    weekdays: if their rows were missing only as often as the other weekdays' rows, the
    probability that all are missing must be below `LARGEST_CHANCE`.
    """
    if may_lack_rows or any(((times - times[0]) % DAY).any() for times in all_times):
        return None
    if clock.step > DAY and all(clock.shifted_to(times).holds(times).all() for times in all_times):
        return None
    days = np.unique(np.concatenate(all_times).astype("datetime64[D]"))
    has_row = np.bincount((days - _MONDAY).astype(np.int64) % 7, minlength=7) > 0
    week = "".join(str(int(weekday)) for weekday in has_row)
    span = int((days[-1] - days[0]) // DAY) + 1
    if not 1 < has_row.sum() < 7 or span < 7 * _FEWEST_WEEKS:
        return None
    weekdays = replace(clock, step=DAY, week=week)
    first, last = weekdays.positions(days[[0, -1]])
    steps = int(last - first) + 1
    chance = (1 - len(days) / steps) ** (span - steps)
    return weekdays if chance < LARGEST_CHANCE else None


def on_the_clock(
    times: Times,
    values: Matrix,
    clock: Clock | None,
    where: object,
    row: Callable[[int], str] = lambda place: f"row {place + 1}",
    *,
    may_lack_rows: bool = False,
) -> tuple[Matrix, int]:
    """Put rows on the regular grid of their clock, with NaN for missing rows.

    times: [T] strictly increasing, all on the clock. values: [T, N].
    clock: None only if there is at most one row, which then has position 0.
    where: the file's name in messages. row: returns the name of a row in messages from its place.
    may_lack_rows: whether there may be more gaps than rows.

    Returns the values [T', N], T' >= T, and the position of the first row. Raises `DataError` for
    times that are irregular or mostly gaps.
    """
    if clock is None or len(times) == 0:
        return values, 0
    positions = clock.positions(times)
    irregular = np.flatnonzero(clock.moments(positions) != times)
    if irregular.size:
        late = int(irregular[0])
        raise DataError(
            f"{where}: irregular times: {_text(times[late])} in {row(late)} "
            f"{_why_irregular(times, late, clock)}"
        )
    start = int(positions[0])
    rows = positions - start
    length = int(rows[-1]) + 1
    require_room(values.itemsize * values.shape[1] * length, where)
    if length == len(times):
        return values, start
    if length > LARGEST_GRID_PER_ROW * len(times) and not may_lack_rows:
        step = clock.rhythm if clock.is_of_calendar else _text(clock.step)
        raise DataError(
            f"{where}: {len(times)} rows in {length} steps of {step}: more gaps than rows; "
            "is a time wrong, or does the step change?"
        )
    grid = np.full((length, values.shape[1]), np.nan)
    grid[rows] = values
    return grid, start


def _why_irregular(times: Times, late: int, clock: Clock) -> str:
    if clock.is_of_calendar:
        return f"is no step of the other rows, which are {clock.words}"
    is_monthly = np.median(np.diff(times).astype(np.int64)) >= 28 * 86_400e6
    months = (
        "; months are read if all rows lie on one day up to the 28th, at the month's end, or on "
        "its first or last business day"
    )
    return (
        f"lies {_text(times[late] - times[0])} after the first, which is no multiple of the step "
        f"{_text(clock.step)}; bring all rows to one step"
        f"{months if is_monthly else ''}"
    )


def _text(time: np.datetime64 | np.timedelta64) -> str:
    """Return a time as people write it. A duration is written as days and hh:mm:ss."""
    return str(time.item())  # in microseconds, these are Python's datetime and timedelta


@dataclass(frozen=True)
class Stamps:
    """Times [T], as read from a column.

    utc: whether they were converted to UTC. is_count: whether they are numbers of steps, not times.
    Each step is then stored as one second. notes: what a person should know of how the times
    were read. form: as in `Clock`.
    """

    times: Times
    utc: bool = False
    is_count: bool = False
    notes: tuple[str, ...] = ()
    form: str = ""


def stamps_of(
    column: Series, unit: TimeUnit, title: str, row: Callable[[int], str], where: str
) -> Stamps:
    """Return the times in a column of texts, numbers or times.

    title: the column's name in messages. row: returns the name of a row in messages from its place.
    If a cell is not a time, raises a `DataError` that names the row.
    """
    import pandas as pd

    where = f"{where}: {title}"
    if (missing := column.isna().to_numpy()).any():
        place = int(missing.argmax())
        raise DataError(f"{where}, {row(place)}: expected a time, got nothing")
    if column.dtype.kind == "M":
        utc = isinstance(column.dtype, pd.DatetimeTZDtype)
        naive = column.dt.tz_convert("UTC").dt.tz_localize(None) if utc else column
        return Stamps(naive.to_numpy(dtype="datetime64[us]"), utc)
    if column.dtype.kind not in "iuf":
        column = column.astype(str)
    if unit not in ("auto", "iso") or (unit == "auto" and _is_number(column.iloc[0])):
        return _counts(column, unit, row, where)
    return _dates(column, row, where)


def is_period(cell: str) -> bool:
    """Return whether the cell is a quarter, month or week, such as 1998Q1, 2010M01, 2024-W05."""
    return bool(_PERIOD.fullmatch(cell) or _QUARTER_FIRST.fullmatch(cell))


def are_years(name: str, cells: Sequence[str]) -> bool:
    """Return whether these cells are years. name: the name of their column."""
    return name.lower() in YEARS and all(len(cell) == 4 and cell.isdecimal() for cell in cells)


def counts_excel_days(cells: Sequence[str]) -> bool:
    """Return whether these texts are days as Excel counts them. Fractions are times of day."""
    if not all(map(_is_number, cells)):
        return False
    days = np.array(cells, dtype=np.float64)
    oldest, newest = _EXCEL_DAYS
    return bool(((days > oldest) & (days < newest)).all())


def look_like_times(cells: Sequence[str]) -> bool:
    """Return whether these texts are increasing dates, or increasing counts since 1970."""
    if all(_ISO.match(cell) for cell in cells):
        return list(cells) == sorted(set(cells))
    if not all(map(_is_number, cells)):
        return False
    values = np.array(cells, dtype=np.float64)
    return bool((np.diff(values) > 0).all()) and _unit_of(values) is not None


def _is_number(cell: object) -> bool:
    """Return whether a cell is a number and not a date such as 20140131."""
    text = str(cell)
    return text.replace(".", "", 1).lstrip("-").isdecimal() and not (
        len(text) == len("20140131") and text.isdecimal()
    )


def _dates(column: Series, row: Callable[[int], str], where: str) -> Stamps:
    import pandas as pd

    texts = column.astype(str)
    if is_period(texts.iloc[0]):
        return _periods(texts, row, where)
    form = _year_last_form(texts, where) if _YEAR_LAST.match(texts.iloc[0]) else "ISO8601"
    if _MONTH_IN_LETTERS.match(texts.iloc[0]):
        form = "mixed"
    parsed = pd.to_datetime(texts, format=form, utc=True, errors="coerce")
    if form == "mixed":
        parsed = parsed.where(texts.str.match(_MONTH_IN_LETTERS))
    if (wrong := parsed.isna().to_numpy()).any():
        place = int(wrong.argmax())
        raise DataError(
            f"{where}, {row(place)}: expected a date such as 2014-01-31 13:00, got "
            f"{texts.iloc[place]!r}; write all dates alike, best with the year first"
        )
    offset: NDArray[np.bool_] = texts.str.contains(_OFFSET, regex=True).to_numpy(dtype=bool)
    if offset.any() and not offset.all():
        place = int(np.argmax(offset != offset[0]))
        had, lacks = (place, 0) if offset[place] else (0, place)
        raise DataError(
            f"{where}: {row(had)} has an offset from UTC, {row(lacks)} has none "
            f"({texts.iloc[lacks]!r}); write it in all rows or in none"
        )
    times = parsed.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    notes: tuple[str, ...] = ()
    if offset.any() and (zones := sorted(set(texts.str.extract(_ZONE)[0]))) and len(zones) > 1:
        notes = (
            f"the offset from UTC changes ({', '.join(zones[:4])}); times and days are counted in "
            "UTC, so daily habits shift by this change",
        )
    is_month = texts.str.fullmatch(_ISO_MONTH).all()
    return Stamps(times, bool(offset.any()), notes=notes, form="M" if is_month else "")


def _periods(texts: Series, row: Callable[[int], str], where: str) -> Stamps:
    """Return the times at which the quarters, months or weeks begin."""
    import pandas as pd

    texts = texts.str.replace(_QUARTER_FIRST, r"\2\1", regex=True).str.upper()
    parts = texts.str.extract(_PERIOD)
    unit = str(parts["unit"].iloc[0])
    if unit == "W":
        times = pd.to_datetime(
            parts["year"] + parts["number"] + "1", format="%G%V%u", errors="coerce"
        )
    else:
        number = pd.to_numeric(parts["number"])
        month = (3 * number - 2 if unit == "Q" else number).map("{:02.0f}".format)
        times = pd.to_datetime(parts["year"] + month, format="%Y%m", errors="coerce")
    wrong = (times.isna() | (parts["unit"] != unit) | ~texts.str.fullmatch(_PERIOD)).to_numpy()
    if wrong.any():
        place = int(wrong.argmax())
        raise DataError(
            f"{where}, {row(place)}: expected a period such as {texts.iloc[0]!r}, got "
            f"{texts.iloc[place]!r}"
        )
    return Stamps(times.to_numpy(dtype="datetime64[us]"), form=unit.replace("W", ""))


def _year_last_form(texts: Series, where: str) -> str:
    """Return the form of dates whose year comes last, such as 31.01.2014 13:00 or 1/31/14 1:00 PM.

    With dots, the day comes first. Otherwise the day or the month comes first: whichever order
    makes every cell a date and lets the dates increase. Raises `DataError` if both orders do.
    """
    import pandas as pd

    match = _YEAR_LAST.match(texts.iloc[0])
    assert match is not None
    sign, year, time = match["sign"], "%Y" if len(match["year"]) == 4 else "%y", match["time"] or ""
    has_half = time[-2:].lower() in ("am", "pm")
    parts = ["%I" if has_half else "%H", "%M", "%S"][: time.count(":") + 1]
    clock = ":".join(parts) + (" %p" if " " in time else "%p") * has_half
    between = texts.iloc[0][match.end("year") : match.start("time")] if time else ""
    forms = {
        order: sign.join((*days, year)) + (f"{between}{clock}" if time else "")
        for order, days in {"day": ("%d", "%m"), "month": ("%m", "%d")}.items()
    }
    if sign == ".":
        return forms["day"]
    parsed = {
        order: pd.to_datetime(texts, format=form, errors="coerce") for order, form in forms.items()
    }
    fitting = [order for order, dates in parsed.items() if not dates.isna().any()]
    if len(fitting) == 2:
        increasing = [order for order in fitting if parsed[order].is_monotonic_increasing]
        fitting = increasing if len(increasing) == 1 else fitting
    differ = (parsed["day"] != parsed["month"]).to_numpy()
    if len(fitting) == 2 and differ.any():
        place = int(differ.argmax())
        readings = " or ".join(str(parsed[order].iloc[place]) for order in fitting)
        raise DataError(
            f"{where}: {texts.iloc[place]!r} may be {readings}, and so may all other dates; write "
            "the year first, then month and day"
        )
    return forms[fitting[0] if fitting else "day"]


def _counts(column: Series, unit: TimeUnit, row: Callable[[int], str], where: str) -> Stamps:
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    values = numbers.to_numpy()
    wrong = ~np.isfinite(values)
    if unit == "year":
        wrong |= ~((values >= 1) & (values <= 9999))
    if unit in ("step", "year"):
        wrong |= values != np.floor(values)
    if wrong.any():
        place = int(wrong.argmax())
        expected = {
            "auto": "a number as in the rows before",
            "step": "a whole number of steps",
            "excel": "a number of days",
            "year": "a year from 1 to 9999",
        }
        raise DataError(
            f"{where}, {row(place)}: expected "
            f"{expected.get(unit, f'a number of {unit} since 1970')}, got {column.iloc[place]!r}"
        )
    if unit == "year":
        years = (values.astype(np.int64) - 1970).astype("datetime64[Y]")
        return Stamps(years.astype("datetime64[us]"), form="Y")
    if unit == "step":
        unit_used = "s"
    elif unit == "excel":
        values, unit_used = np.rint(values * 86_400) + EXCEL_EPOCH.astype(np.int64), "s"
    else:
        unit_used = _unit_by_size(values, f"{where}, {row(0)}") if unit == "auto" else unit
    scale = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}[unit_used]
    if (far := np.abs(values.astype(np.float64)) * scale > _FARTHEST * 3.2e13).any():
        place = int(far.argmax())
        raise DataError(
            f"{where}, {row(place)}: {column.iloc[place]!r} in {unit} since 1970 is no "
            "time; set data.time-unit to the unit of these times"
        )
    if values.dtype.kind in "iu" and unit_used == "ns":
        microseconds = values.astype(np.int64) // 1000
    elif values.dtype.kind in "iu":
        microseconds = values.astype(np.int64) * int(scale)
    else:
        microseconds = np.rint(values * scale).astype(np.int64)
    is_since_1970 = unit not in ("step", "excel")
    return Stamps(microseconds.astype("datetime64[us]"), utc=is_since_1970, is_count=unit == "step")


def _unit_by_size(values: Matrix, where: str) -> str:
    if unit := _unit_of(values):
        return unit
    first = values[0]
    shown = int(first) if first == np.floor(first) else first
    raise DataError(
        f"{where}: expected a date such as 2014-01-31 13:00, got "
        f"{str(shown)!r}, whose size does not tell what it counts; set data.time-unit to s, ms, "
        "us or ns since 1970, to excel for Excel's days, to year for years, or to step if these "
        "are numbers of steps"
    )


def _unit_of(values: NDArray[np.float64]) -> str | None:
    """Return the unit that makes all values plausible dates, or None if there is none."""
    for unit, oldest in _OLDEST.items():
        if ((values >= oldest) & (values < _NEWEST[unit])).all():
            return unit
    return None
