"""The weekdays and times of day at which a client never has a value, such as a shop's Sundays.

A forecast for them would be of something that does not happen, so it is left empty.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.series import ClientSeries

# A time of the week is empty if it came at least so often, and never with a value.
FEWEST_TIMES = 5
# With values missing at random, this is the largest probability that it never had one by chance.
_LARGEST_CHANCE = 1e-6
_DAY, _WEEK = 86_400_000_000, 7 * 86_400_000_000  # microseconds
_MONDAY = 4 * _DAY  # after 1970-01-01, a Thursday
_WEEKDAYS = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")

Positions = NDArray[np.int64]


def is_empty_time(series: ClientSeries, positions: Positions, period: int) -> NDArray[np.bool_]:
    """Return whether the client never has a value at the times of these positions, [n].

    A position is looked up by its time of day and by its time of the week. Without a clock these
    are its places in one period and in seven. The whole series decides, in which a time must have
    come `FEWEST_TIMES` times. period: in steps.
    """
    present = np.isfinite(series.values)
    empty = np.zeros(len(positions), dtype=bool)
    if present.all():
        return empty
    history = series.start + np.arange(len(present))
    cycles = zip(_cycles(series, history, period), _cycles(series, positions, period), strict=True)
    for places_of_history, places in cycles:
        size = int(max(places_of_history.max(), places.max(initial=0))) + 1
        times = np.bincount(places_of_history, minlength=size)
        values = np.bincount(places_of_history, weights=present, minlength=size)
        has_values = values > 0
        missing_share = 1 - values[has_values].sum() / max(times[has_values].sum(), 1)
        by_chance = missing_share**times > _LARGEST_CHANCE
        empty |= (~has_values & (times >= FEWEST_TIMES) & ~by_chance)[places]
    return empty


def empty_times_text(series: ClientSeries, period: int) -> str:
    """Return the empty times of a week in words, such as "on Sundays"; "" if there are none."""
    week = series.start + np.arange(_week(series, period))
    empty = is_empty_time(series, week, period)
    if not empty.any():
        return ""
    step = 0 if series.clock is None else _step(series)
    if not step or step > _DAY or _DAY % step:
        unit = f"{len(week) // period} periods" if not step else "a week"
        return f"at {empty.sum()} of the {len(week)} steps of {unit}"
    since_monday = (_microseconds(series, week) - _MONDAY) % _WEEK
    order = np.argsort(since_monday)
    by_day = empty[order].reshape(7, -1)  # a row per weekday, a column per time of day
    times = since_monday[order][: by_day.shape[1]] % _DAY
    closed = np.logical_and.reduce(by_day, axis=1)
    nightly = np.logical_and.reduce(by_day[~closed], axis=0)
    further = int((by_day[~closed] & ~nightly).sum())
    days = " and ".join(_WEEKDAYS[number] for number in np.flatnonzero(closed))
    parts = {
        f"on {days}": closed.any(),
        _hours(times, nightly): nightly.any(),
        f"at {further} time{'s' * (further > 1)} of the week": further > 0,
    }
    zone = " (UTC)" if series.clock and series.clock.utc else ""
    return " and ".join(words for words, apply in parts.items() if apply) + zone


def _cycles(series: ClientSeries, positions: Positions, period: int) -> tuple[Positions, Positions]:
    """Return each position's place in the day and in the week, or in one and in seven periods."""
    if series.clock is None:
        return positions % period, positions % (7 * period)
    microseconds = _microseconds(series, positions) - _MONDAY
    step = _step(series)
    return microseconds % _DAY // step, microseconds % _WEEK // step


def _week(series: ClientSeries, period: int) -> int:
    """Return how many steps a week has, or seven periods without a clock."""
    return 7 * period if series.clock is None else max(1, _WEEK // _step(series))


def _step(series: ClientSeries) -> int:
    first, second = _microseconds(series, np.arange(2))
    return int(second - first)


def _microseconds(series: ClientSeries, positions: Positions) -> Positions:
    assert series.clock is not None  # the callers need one
    return series.clock.moments(positions).astype("datetime64[us]").astype(np.int64)


def _hours(times: Positions, is_empty: NDArray[np.bool_]) -> str:
    """Return the empty times of day in words, such as "from 22:00 to 05:00", both ends empty."""
    first = times[is_empty & ~np.roll(is_empty, 1)]
    last = times[is_empty & ~np.roll(is_empty, -1)]
    if len(first) != 1:
        return f"at {is_empty.sum()} times of the day"
    if first[0] == last[0]:
        return f"at {_clock_text(first[0])}"
    return f"from {_clock_text(first[0])} to {_clock_text(last[0])}"


def _clock_text(microseconds: np.int64) -> str:
    minutes = int(microseconds) // 60_000_000
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
