"""Bring the rows of a client, or of a file of clients, into the order of time.

Rows may come in any order. Local times may have an hour twice, when clocks went back: with
``data.time-zone`` times are converted to UTC; without it, the two values of an hour are averaged,
so that the time of day stays the time of people's day. An hour left out in spring is a missing
value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError, did_you_mean
from fedproto_app.data.clock import Matrix, Stamps, Times, sampling_step

RowName = Callable[[int], str]

SORTED = "rows were not in the order of time and are sorted"
_HOUR = np.timedelta64(1, "h")
# Clocks go back on a Sunday night in these months: April in the south, the others in the north.
_MONTHS_BACK = (4, 9, 10, 11)
_SUNDAY = 6
_LAST_HOUR_BACK = 3  # the latest hour of the day that comes twice


@dataclass(frozen=True)
class TimedRows:
    """Rows in the order of time.

    stamps: [T]. values: [T, N]. places: the place of each row in the file, [T]. notes: what a
    person should know of how they were put in order.
    """

    stamps: Stamps
    values: Matrix
    places: NDArray[np.intp]
    notes: tuple[str, ...] = ()


def row_number(place: int) -> str:
    """Return the name of a row in messages, by its place in the file."""
    return f"row {place + 1}"


def in_order(
    stamps: Stamps,
    values: Matrix,
    where: object,
    zone: str = "",
    row: RowName = row_number,
    notes: tuple[str, ...] = (),
    places: NDArray[np.intp] | None = None,
) -> TimedRows:
    """Return the rows of a client, or of a file of clients, in the order of time.

    stamps: [T] in the order of the file. values: [T, N]. places: of these rows in the file, [T];
    None: they are all of its rows. zone: of local times, such as Europe/Berlin, or "".
    where, row: names of the file and, by its place, of a row in messages. notes: on how the file
    was read. Times that come twice for another reason than a change of clocks stay, and so do
    missing times, for the clock to refuse.

    Raises `DataError` for an unknown zone, and for a local time that the zone does not have, or has
    twice without a sign which of them it is.
    """
    if places is None:
        places = np.arange(len(stamps.times))
    if zone:
        stamps = _in_utc(stamps, zone, where, lambda place: row(int(places[place])))
    times = stamps.times
    if np.isnat(times).any() or (np.diff(times) > np.timedelta64(0)).all():
        return TimedRows(stamps, values, places, notes)
    unique, first, groups, counts = np.unique(
        times, return_index=True, return_inverse=True, return_counts=True
    )
    notes = (*notes, SORTED) if (np.diff(first) < 0).any() else notes
    is_local = not stamps.utc and not stamps.is_count
    if (counts == 1).all() or not is_local or (nights := _hours_twice(unique, counts)) is None:
        order = np.argsort(times, kind="stable")
        return TimedRows(_at(stamps, times[order]), values[order], places[order], notes)
    note = (
        f"the hour from {nights[0].item():%Y-%m-%d %H:%M} comes twice, as clocks went back"
        f"{f', and so on {len(nights) - 1} other nights' if len(nights) > 1 else ''}: its values "
        "are averaged (data.time-zone keeps both)"
    )
    means = _means(values, groups, len(unique))
    return TimedRows(_at(stamps, unique), means, places[first], (*notes, note))


def _at(stamps: Stamps, times: Times) -> Stamps:
    return Stamps(times, stamps.utc, stamps.is_count)


def _means(values: Matrix, groups: NDArray[np.intp], count: int) -> Matrix:
    """Return the mean of the present values of each group of rows, [count, N]."""
    present = np.isfinite(values)
    sums, numbers = np.zeros((2, count, values.shape[1]))
    np.add.at(sums, groups, np.where(present, values, 0.0))
    np.add.at(numbers, groups, present)
    return np.divide(sums, numbers, out=np.full_like(sums, np.nan), where=numbers > 0)


def _hours_twice(unique: Times, counts: NDArray[np.intp]) -> Times | None:
    """Return the begins of the hours that come twice; None unless these are changes of clocks.

    unique: increasing times. counts: how often each of them comes. In such an hour, on a Sunday
    night, all times come twice, and no other time does.
    """
    step = sampling_step(unique)
    if step is None or step > _HOUR or counts.max() > 2:
        return None
    hours = unique.astype("datetime64[h]")
    begins = np.unique(hours[counts == 2])
    inside = np.isin(hours, begins)
    days = begins.astype("datetime64[D]")
    if (inside != (counts == 2)).any() or len(np.unique(days)) < len(days):
        return None
    are_nights = all(
        begin.weekday() == _SUNDAY and begin.hour <= _LAST_HOUR_BACK and begin.month in _MONTHS_BACK
        for begin in begins.tolist()
    )
    return begins if are_nights else None


def _in_utc(stamps: Stamps, zone: str, where: object, row: RowName) -> Stamps:
    """Return local times in UTC.

    Of a local time that comes twice, the first row is summer time, also in a file that runs
    backwards.
    """
    import pandas as pd

    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        near = did_you_mean(zone, sorted(available_timezones()))
        raise DataError(
            f"data.time-zone = {zone!r}: unknown; {near}expected a name such as Europe/Berlin"
        ) from None
    if stamps.utc or stamps.is_count:
        kind = "numbers of steps" if stamps.is_count else "an offset or count from 1970"
        raise DataError(f"{where}: data.time-zone is for local times, but its times are {kind}")
    local = pd.DatetimeIndex(stamps.times)
    count = len(local)
    summer, winter = (
        local.tz_localize(zone, ambiguous=np.full(count, is_summer), nonexistent="NaT")
        for is_summer in (True, False)
    )
    has_time = ~np.isnat(stamps.times)
    if (never := np.asarray(summer.isna()) & has_time).any():
        place = int(never.argmax())
        raise DataError(
            f"{where}: {local[place]} in {row(place)} does not exist in {zone}, as clocks went "
            "forward; leave data.time-zone out if times are of another zone"
        )
    is_summer: NDArray[np.bool_] | None = np.ones(count, dtype=np.bool_)
    if (twice := np.asarray(summer != winter) & has_time).any():
        is_summer = _is_first_of_two(stamps.times, twice)
        if (alone := twice & ~_comes_twice(stamps.times)).any() or is_summer is None:
            place = int((alone if alone.any() else twice).argmax())
            why = "and comes once" if alone.any() else "and rows are in no order"
            readings = (str(times[place].tz_convert("UTC")) for times in (summer, winter))
            raise DataError(
                f"{where}: {local[place]} in {row(place)} may be {' or '.join(readings)}, as "
                f"clocks went back in {zone}, {why}; write times with an offset, or leave "
                "data.time-zone out to take them as written"
            )
    times = pd.DatetimeIndex(summer.where(is_summer, winter)).tz_convert("UTC").tz_localize(None)
    return Stamps(times.to_numpy(dtype="datetime64[us]"), utc=True)


def _comes_twice(times: Times) -> NDArray[np.bool_]:
    """Return which of these times [T] come exactly twice."""
    _, groups, counts = np.unique(times, return_inverse=True, return_counts=True)
    return np.asarray(counts[groups] == 2)


def _is_first_of_two(times: Times, twice: NDArray[np.bool_]) -> NDArray[np.bool_] | None:
    """Return which rows [T] come first in time among two rows of equal time.

    twice: the rows whose hour comes twice. Rows may run backwards in the file; None if they are in
    no order, so that nothing shows which of two is first.
    """
    is_backward = 2 * (np.diff(times) < np.timedelta64(0)).sum() > len(times) - 1
    direction = slice(None, None, -1 if is_backward else 1)
    forward, inside = times[direction], twice[direction]
    jumps = np.flatnonzero(np.diff(forward) < np.timedelta64(0))
    if not (inside[jumps] & inside[jumps + 1]).all():
        return None
    is_first = np.zeros(len(times), dtype=np.bool_)
    is_first[np.unique(forward, return_index=True)[1]] = True
    return is_first[direction]
