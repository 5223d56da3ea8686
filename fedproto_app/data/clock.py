"""Read the times of a table, and turn them into positions on one clock.

A column of times holds dates, counts since 1970, or numbers of steps. A position is the number of
whole steps since 1970-01-01 00:00. Counted from one origin, equal wall-clock hours have equal phase
in every file and at every site, whenever recording began.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import require_room
from fedproto_app.settings.choice import TimeUnit

if TYPE_CHECKING:
    from pandas import Series

Times = NDArray[np.datetime64]
Matrix = NDArray[np.float64]

# A grid with more gaps than rows is a wrong step or a wrong year, not a few missing rows.
LARGEST_GRID_PER_ROW = 2
# The unit of a count since 1970 is guessed from its size, for dates between 1973 and 2030 in
# seconds, 2001 and 2030 in finer units. A date written as a number, as 2014013113, lies outside.
_OLDEST = {"s": 0.1e9, "ms": 1e12, "us": 1e15, "ns": 1e18}
_NEWEST = {"s": 1.9e9, "ms": 1.9e12, "us": 1.9e15, "ns": 1.9e18}
_ISO = re.compile(r"\d{4}-\d\d-\d\d")
_YEAR_LAST = re.compile(
    r"\d{1,2}(?P<sign>[./-])\d{1,2}(?P=sign)(?P<year>\d{4}|\d\d)"
    r"(?:[T ]+(?P<time>\d{1,2}(?::\d\d){1,2}(?: ?[aApP][mM])?))?$"
)
_QUARTER = re.compile(r"(?P<year>\d{4})[- ]?[qQ](?P<quarter>[1-4])")
EXCEL_EPOCH = np.datetime64("1899-12-30", "s")  # Excel's day 0
_EXCEL_DAYS = (20_000, 80_000)  # 1954 to 2119; other numbers are hardly Excel's days
_CALENDAR = {1: "months", 3: "quarters", 12: "years"}  # steps without an equal length, in months
_OFFSET = r"[T ]\d.*(?:[zZ]|[+-]\d\d(?::?\d\d)?)$"
_ZONE = r"([zZ]|[+-]\d\d(?::?\d\d)?)$"
_FARTHEST = 200_000  # years before or after 1970 that microseconds can count


@dataclass(frozen=True)
class Clock:
    """The meaning of a position: position k is the time offset + k · step after 1970-01-01 00:00.

    offset: less than a step, for times that are not a whole number of steps after 1970. utc: True
    if the source's times had an offset from UTC and were converted to UTC.
    """

    step: np.timedelta64
    offset: np.timedelta64
    utc: bool = False

    @property
    def step_seconds(self) -> float:
        """The step in seconds."""
        return float(self.step / np.timedelta64(1, "s"))

    @property
    def label(self) -> str:
        """A short text that is equal for equal clocks."""
        return f"{self.step} {self.offset}{' utc' if self.utc else ''}"

    def moments(self, positions: NDArray[np.int64]) -> Times:
        """Return the times at positions, in microseconds, without a zone."""
        return np.datetime64(0, "us") + self.offset + positions * self.step

    def first_at(self, time: datetime) -> int:
        """Return the first position whose time is not before this one.

        A time with an offset from UTC is converted to UTC; without one it is taken as written.
        """
        if time.tzinfo is not None:
            time = time.astimezone(UTC).replace(tzinfo=None)
        since = np.datetime64(time, "us") - np.datetime64(0, "us") - self.offset
        return int(-(-since // self.step))

    def seconds(self, positions: NDArray[np.int64]) -> Matrix:
        """Return the times at positions, in seconds since 1970."""
        return self.moments(positions).astype("datetime64[us]").astype(np.float64) / 1e6

    def time(self, position: int) -> str:
        """Return the time at a position in ISO 8601; only the date if steps are whole days."""
        time = np.datetime64(0, "us") + self.offset + position * self.step
        day = np.timedelta64(1, "D")
        if not self.utc and not self.step % day and not self.offset % day:
            return str(time.astype("datetime64[D]"))
        return _text(time) + ("+00:00" if self.utc else "")


def clock_of(times: Times, step: np.timedelta64 | None, *, utc: bool = False) -> Clock | None:
    """Return the clock of a file's times, None if their step is unknown."""
    if step is None or len(times) == 0:
        return None
    return Clock(step, (times[0] - np.datetime64(0, "us")) % step, utc)


def sampling_step(times: Times) -> np.timedelta64 | None:
    """Return the most common distance between neighbouring times; None for fewer than two times."""
    return common_step([times])


def common_step(files: Iterable[Times], *, may_lack_rows: bool = False) -> np.timedelta64 | None:
    """Return the `sampling_step` over the times of several clients.

    may_lack_rows: whether most rows may be left out, so that the step is the largest that divides
    the distances of all times.
    """
    all_times = list(files)
    if may_lack_rows:
        all_times = [np.unique(np.concatenate(all_times))] if all_times else []
    distances = [np.diff(times) for times in all_times if len(times) > 1]
    if not distances:
        return None
    steps, counts = np.unique(np.concatenate(distances), return_counts=True)
    if may_lack_rows:
        return np.timedelta64(int(np.gcd.reduce(steps.astype(np.int64))), "us")
    return np.timedelta64(steps[np.argmax(counts)])


def on_the_clock(
    times: Times,
    values: Matrix,
    step: np.timedelta64 | None,
    where: object,
    row: Callable[[int], str] = lambda place: f"row {place + 1}",
    *,
    may_lack_rows: bool = False,
) -> tuple[Matrix, int]:
    """Put rows on the regular grid of their step; missing rows become NaN.

    times: [T] strictly increasing, whole steps apart. values: [T, N].
    step: None only if there is at most one row, which then starts at 0.
    where: the file's name in messages. row: the name of a row in messages, by its place.
    may_lack_rows: whether there may be more gaps than rows.

    Returns the values [T', N], T' >= T, and the position of the first row. Raises `DataError` for
    times that are missing, unordered, repeated, irregular or mostly gaps.
    """
    _require_increasing(times, where, row)
    if step is None or len(times) == 0:
        return values, 0
    offsets = times - times[0]
    irregular = np.flatnonzero(offsets % step)
    if irregular.size and (unit := calendar_unit(times)):
        raise DataError(
            f"{where}: the times are {unit[:-1]}ly, from {_text(times[0])} on, and {unit} are not "
            "equally long; --set data.time-unit=step counts them"
        )
    if irregular.size:
        if name := _calendar_step(times):
            raise DataError(
                f"{where}: its rows are a {name} apart; steps of the calendar differ in length and "
                "are not supported yet; write the numbers of the steps, 0, 1, 2, …, in place of "
                "the times (in a file with data.time-unit = 'step')"
            )
        late = int(irregular[0])
        raise DataError(
            f"{where}: irregular times: {_text(times[late])} in {row(late)} lies "
            f"{_text(times[late] - times[0])} after the first, which is no multiple of the step "
            f"{_text(step)}; bring all rows to one step"
        )
    rows = (offsets // step).astype(np.int64)
    length = int(rows[-1]) + 1
    require_room(values.itemsize * values.shape[1] * length, where)
    if length == len(times):
        return values, int((times[0] - np.datetime64(0, "us")) // step)
    if length > LARGEST_GRID_PER_ROW * len(times) and not may_lack_rows:
        raise DataError(
            f"{where}: {len(times)} rows in {length} steps of {_text(step)}: more gaps than rows; "
            "is a time wrong, or the step longer in a part of them?"
        )
    grid = np.full((length, values.shape[1]), np.nan)
    grid[rows] = values
    origin = np.datetime64(0, "us")
    return grid, int((times[0] - origin) // step)


def _calendar_step(times: Times) -> str:
    """Return the step of the calendar by which most of the times differ, or ""."""
    days = float(np.median(np.diff(times) / np.timedelta64(1, "D")))
    steps = {"month": (28, 31), "quarter": (90, 92), "year": (365, 366)}
    return next((name for name, (low, high) in steps.items() if low <= days <= high), "")


def _require_increasing(times: Times, where: object, row: Callable[[int], str]) -> None:
    if np.isnat(times).any():
        raise DataError(f"{where}: {row(int(np.argmax(np.isnat(times))))} has no time")
    disorder = np.flatnonzero(np.diff(times) <= np.timedelta64(0))
    if disorder.size:
        place = int(disorder[0]) + 1
        before, after = times[place - 1], times[place]
        if before == after:
            raise DataError(
                f"{where}: the time {_text(after)} comes twice, again in {row(place)}; keep one of "
                "the rows"
            )
        raise DataError(
            f"{where}: times must increase, but in {row(place)} {_text(after)} follows "
            f"{_text(before)}; sort the rows by time"
        )


def _text(time: np.datetime64 | np.timedelta64) -> str:
    """Return a time as people write it, or a duration as days and hh:mm:ss."""
    return str(time.item())  # in microseconds, these are Python's datetime and timedelta


@dataclass(frozen=True)
class Stamps:
    """Times [T]. utc: whether they were converted to UTC.

    is_count: whether they are numbers of steps, stored as one second per step, instead of times.
    notes: what a person should know of how they were read.
    """

    times: Times
    utc: bool = False
    is_count: bool = False
    notes: tuple[str, ...] = ()


def stamps_of(
    column: Series, unit: TimeUnit, title: str, row: Callable[[int], str], where: str
) -> Stamps:
    """Return the times in a column of texts, numbers or times.

    title: the column's name in messages. row: the name of a row in messages, by its place.
    Raises `DataError` naming the row for a cell that is not a time.
    """
    import pandas as pd

    where = f"{where}: {title}"
    if (missing := column.isna().to_numpy()).any():
        place = int(missing.argmax())
        raise DataError(f"{where}, {row(place)}: expected a time, got nothing")
    if unit == "step" and (stamps := _calendar_steps(column)) is not None:
        return stamps
    if column.dtype.kind == "M":
        utc = isinstance(column.dtype, pd.DatetimeTZDtype)
        naive = column.dt.tz_convert("UTC").dt.tz_localize(None) if utc else column
        return Stamps(naive.to_numpy(dtype="datetime64[us]"), utc)
    if column.dtype.kind not in "iuf":
        column = column.astype(str)
    if unit not in ("auto", "iso") or (unit == "auto" and _is_number(column.iloc[0])):
        return _counts(column, unit, row, where)
    return _dates(column, row, where)


def calendar_unit(times: Times) -> str:
    """Return months, quarters or years if the times are such steps, else ""."""
    unique = np.unique(times)
    if len(unique) < 3 or np.isnat(unique).any():
        return ""
    months = unique.astype("datetime64[M]")
    since = unique - months
    is_last_day = ((unique + np.timedelta64(1, "D")).astype("datetime64[M]") - months).astype(int)
    alike = (since == since[0]).all() or (is_last_day == 1).all()
    numbers = months.astype(np.int64)
    if not alike or (np.diff(numbers) < 1).any():
        return ""
    distance = int(np.gcd.reduce(np.diff(numbers)))
    return _CALENDAR[max(size for size in _CALENDAR if distance % size == 0)]


def is_quarter(cell: str) -> bool:
    """Return whether the cell is a quarter such as 1998Q1."""
    return _QUARTER.fullmatch(cell) is not None


def counts_excel_days(cells: Sequence[str]) -> bool:
    """Return whether these texts are days as Excel counts them, with the time as a fraction."""
    if not all(map(_is_number, cells)):
        return False
    days = np.array(cells, dtype=np.float64)
    oldest, newest = _EXCEL_DAYS
    return bool(((days > oldest) & (days < newest)).all() and (np.diff(days) >= 0).all())


def _calendar_steps(column: Series) -> Stamps | None:
    """Return numbers of months, quarters or years since 1970, None if the dates are none of them.

    A step of the calendar has no length, so its number is counted instead.
    """
    import pandas as pd

    texts = column.astype(str)
    if texts.str.fullmatch(_QUARTER.pattern).all():
        parts = texts.str.extract(_QUARTER.pattern).astype(int)
        unit, numbers = "quarters", (4 * (parts["year"] - 1970) + parts["quarter"] - 1).to_numpy()
    else:
        if column.dtype.kind != "M" and _is_number(texts.iloc[0]):
            return None
        dates = pd.to_datetime(texts, format="ISO8601", errors="coerce", utc=True)
        times = dates.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
        if not (unit := calendar_unit(times)):
            return None
        size = next(months for months, name in _CALENDAR.items() if name == unit)
        numbers = times.astype("datetime64[M]").astype(np.int64) // size
    first = int(numbers.argmin())
    note = f"times are counted in {unit} since 1970: {texts.iloc[first]} is {numbers[first]}"
    steps = (numbers.astype(np.int64) * 1_000_000).astype("datetime64[us]")
    return Stamps(steps, is_count=True, notes=(note,))


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
    if is_quarter(texts.iloc[0]):
        raise DataError(
            f"{where}: the times are quarterly, such as {texts.iloc[0]!r}, and quarters are not "
            "equally long; --set data.time-unit=step counts them"
        )
    form = _year_last_form(texts, where) if _YEAR_LAST.match(texts.iloc[0]) else "ISO8601"
    parsed = pd.to_datetime(texts, format=form, utc=True, errors="coerce")
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
            "UTC, so people's habits move by that within the day",
        )
    return Stamps(times, bool(offset.any()), notes=notes)


def _year_last_form(texts: Series, where: str) -> str:
    """Return the form of dates whose year comes last, such as 31.01.2014 13:00 or 1/31/14 1:00 PM.

    With dots the day comes first. Otherwise the day or the month comes first, whichever makes every
    cell a date and the dates increase; raises `DataError` if both do.
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
    if unit == "step":
        wrong |= values != np.floor(values)
    if wrong.any():
        place = int(wrong.argmax())
        expected = {
            "auto": "a number as in the rows before",
            "step": "a whole number of steps",
            "excel": "a number of days",
        }
        raise DataError(
            f"{where}, {row(place)}: expected "
            f"{expected.get(unit, f'a number of {unit} since 1970')}, got {column.iloc[place]!r}"
        )
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
        "us or ns since 1970, to excel for Excel's days, or to step if these are numbers of steps"
    )


def _unit_of(values: NDArray[np.float64]) -> str | None:
    """Return the unit that puts all values into the range of dates, None if there is none."""
    for unit, oldest in _OLDEST.items():
        if ((values >= oldest) & (values < _NEWEST[unit])).all():
            return unit
    return None
