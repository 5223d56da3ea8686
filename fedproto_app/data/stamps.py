"""Read the time column of a table: dates, counts since 1970, or numbers of steps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Times
from fedproto_app.settings.choice import TimeUnit

if TYPE_CHECKING:
    from pandas import Series

# The unit of a count since 1970 is guessed from its size, for dates between 1973 and 2030 in
# seconds, 2001 and 2030 in finer units. A date written as a number, as 2014013113, lies outside.
_OLDEST = {"s": 0.1e9, "ms": 1e12, "us": 1e15, "ns": 1e18}
_NEWEST = {"s": 1.9e9, "ms": 1.9e12, "us": 1.9e15, "ns": 1.9e18}
_ISO = re.compile(r"\d{4}-\d\d-\d\d")
_OFFSET = r"[T ]\d.*(?:[zZ]|[+-]\d\d(?::?\d\d)?)$"
_FARTHEST = 200_000  # years before or after 1970 that microseconds can count


@dataclass(frozen=True)
class Stamps:
    """Times [T]. utc: whether they were converted to UTC.

    is_count: whether they are numbers of steps, stored as one second per step, instead of times.
    """

    times: Times
    utc: bool = False
    is_count: bool = False


def stamps_of(
    column: Series, unit: TimeUnit, title: str, row: Callable[[int], str], where: str
) -> Stamps:
    """Return the times in a column of texts, numbers or times.

    title: the column's name in messages. row: the name of a row in messages, by its place.
    Raises `DataError` naming the row for a cell that is not a time.
    """
    import pandas as pd

    if (missing := column.isna().to_numpy()).any():
        place = int(missing.argmax())
        raise DataError(f"{where}: {title}, {row(place)}: expected a time, got nothing")
    if column.dtype.kind == "M":
        utc = isinstance(column.dtype, pd.DatetimeTZDtype)
        naive = column.dt.tz_convert("UTC").dt.tz_localize(None) if utc else column
        return Stamps(naive.to_numpy(dtype="datetime64[us]"), utc)
    if column.dtype.kind not in "iuf":
        column = column.astype(str)
    if unit not in ("auto", "iso") or (unit == "auto" and _is_number(column.iloc[0])):
        return _counts(column, unit, title, row, where)
    return _dates(column, title, row, where)


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


def _dates(column: Series, title: str, row: Callable[[int], str], where: str) -> Stamps:
    import pandas as pd

    texts = column.astype(str)
    parsed = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")
    if (wrong := parsed.isna().to_numpy()).any():
        place = int(wrong.argmax())
        raise DataError(
            f"{where}: {title}, {row(place)}: expected a date such as 2014-01-31 13:00, got "
            f"{texts.iloc[place]!r}; write the year first, then month and day"
        )
    offset: NDArray[np.bool_] = texts.str.contains(_OFFSET, regex=True).to_numpy(dtype=bool)
    if offset.any() and not offset.all():
        place = int(np.argmax(offset != offset[0]))
        had, lacks = (place, 0) if offset[place] else (0, place)
        raise DataError(
            f"{where}: {title}: {row(had)} has an offset from UTC, {row(lacks)} has none "
            f"({texts.iloc[lacks]!r}); write it in all rows or in none"
        )
    times = parsed.dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    return Stamps(times, bool(offset.any()))


def _counts(
    column: Series, unit: TimeUnit, title: str, row: Callable[[int], str], where: str
) -> Stamps:
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    values = numbers.to_numpy()
    wrong = ~np.isfinite(values)
    if unit == "step":
        wrong |= values != np.floor(values)
    if wrong.any():
        place = int(wrong.argmax())
        expected = {"auto": "a number as in the rows before", "step": "a whole number of steps"}
        raise DataError(
            f"{where}: {title}, {row(place)}: expected "
            f"{expected.get(unit, f'a number of {unit} since 1970')}, got {column.iloc[place]!r}"
        )
    if unit == "step":
        unit_used = "s"
    else:
        unit_used = _unit_by_size(values, title, row, where) if unit == "auto" else unit
    scale = {"s": 1e6, "ms": 1e3, "us": 1.0, "ns": 1e-3}[unit_used]
    if (far := np.abs(values.astype(np.float64)) * scale > _FARTHEST * 3.2e13).any():
        place = int(far.argmax())
        raise DataError(
            f"{where}: {title}, {row(place)}: {column.iloc[place]!r} in {unit} since 1970 is no "
            "time; set data.time-unit to the unit of these times"
        )
    if values.dtype.kind in "iu" and unit_used == "ns":
        microseconds = values.astype(np.int64) // 1000
    elif values.dtype.kind in "iu":
        microseconds = values.astype(np.int64) * int(scale)
    else:
        microseconds = np.rint(values * scale).astype(np.int64)
    is_step_count = unit == "step"
    return Stamps(
        microseconds.astype("datetime64[us]"), utc=not is_step_count, is_count=is_step_count
    )


def _unit_by_size(
    values: NDArray[np.float64], title: str, row: Callable[[int], str], where: str
) -> str:
    if unit := _unit_of(values):
        return unit
    first = values[0]
    shown = int(first) if first == np.floor(first) else first
    raise DataError(
        f"{where}: {title}, {row(0)}: expected a date such as 2014-01-31 13:00, got "
        f"{str(shown)!r}, whose size does not tell what it counts; set data.time-unit to s, ms, "
        "us or ns since 1970, or to step if these are numbers of steps"
    )


def _unit_of(values: NDArray[np.float64]) -> str | None:
    """Return the unit that puts all values into the range of dates, None if there is none."""
    for unit, oldest in _OLDEST.items():
        if ((values >= oldest) & (values < _NEWEST[unit])).all():
            return unit
    return None
