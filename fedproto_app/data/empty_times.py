"""Find the weekdays and times of day at which a client never has a value.

For instance, a shop that is closed on Sundays has no value on a Sunday. Its forecast for a Sunday
is left empty, because nothing will be sold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.clock import LARGEST_CHANCE, WEEKDAYS
from fedproto_app.data.series import ClientSeries

# A time of the day or the week counts as empty only if it has occurred this often without a value.
FEWEST_TIMES = 5
_DAY, _WEEK = 86_400_000_000, 7 * 86_400_000_000  # microseconds
_MONDAY = 4 * _DAY  # after 1970-01-01, a Thursday

Positions = NDArray[np.int64]


def is_empty_time(series: ClientSeries, positions: Positions, period: int) -> NDArray[np.bool_]:
    """Return for each of these positions [n] whether the client never has a value at such a time.

    This is so if the series never has a value at this time of day, or of the week. The time must
    have occurred at least `FEWEST_TIMES` times, and so often that chance does not explain the
    missing values. For steps of months, the place in the year is compared instead. Without a clock,
    the places in one period and in seven periods are compared. period: in steps.
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
        by_chance = missing_share**times > LARGEST_CHANCE
        empty |= (~has_values & (times >= FEWEST_TIMES) & ~by_chance)[places]
    return empty


def empty_times_text(series: ClientSeries, period: int) -> str:
    """Return in words when in the week the client never has values, such as "on Sundays".

    Return "" if there is no such time.
    """
    week = series.start + np.arange(_week(series, period))
    empty = is_empty_time(series, week, period)
    if not empty.any():
        return ""
    clock = series.clock
    if clock is None or clock.months or not clock.cycle:
        unit = f"{len(week) // period} periods" if clock is None else "a week"
        unit = "a year" if clock is not None and clock.months else unit
        return f"at {empty.sum()} of the {len(week)} steps of {unit}"
    since_monday = (_microseconds(series, week) - _MONDAY) % _WEEK
    order = np.argsort(since_monday)
    weekdays = np.unique(since_monday // _DAY)
    by_day = empty[order].reshape(len(weekdays), -1)  # one column per time of day
    times = since_monday[order][: by_day.shape[1]] % _DAY
    closed = np.logical_and.reduce(by_day, axis=1)
    nightly = np.logical_and.reduce(by_day[~closed], axis=0)
    further = int((by_day[~closed] & ~nightly).sum())
    days = " and ".join(WEEKDAYS[number] for number in weekdays[closed])
    parts = {
        f"on {days}": closed.any(),
        _hours(times, nightly): nightly.any(),
        f"at {further} time{'s' * (further > 1)} of the week": further > 0,
    }
    zone = " (UTC)" if series.clock and series.clock.utc else ""
    return " and ".join(words for words, apply in parts.items() if apply) + zone


def _cycles(series: ClientSeries, positions: Positions, period: int) -> tuple[Positions, Positions]:
    """Return the place of each position in its day and in its week.

    For steps of months, both are the place in the year. Without a clock, they are the places in one
    period and in seven periods.
    """
    if series.clock is None:
        return positions % period, positions % (7 * period)
    if series.clock.months:
        return positions % _week(series, period), positions % _week(series, period)
    microseconds = _microseconds(series, positions) - _MONDAY
    step = int(series.clock.step / np.timedelta64(1, "us"))
    return microseconds % _DAY // step, microseconds % _WEEK // step


def _week(series: ClientSeries, period: int) -> int:
    """Return the number of steps in a week, in a year for months, without a clock in 7 periods."""
    if series.clock is None:
        return 7 * period
    weekly = round(_WEEK / 1e6 / series.clock.step_seconds)
    return max(1, 12 // series.clock.months if series.clock.months else weekly)


def _microseconds(series: ClientSeries, positions: Positions) -> Positions:
    assert series.clock is not None  # the callers need one
    return series.clock.moments(positions).astype("datetime64[us]").astype(np.int64)


def _hours(times: Positions, is_empty: NDArray[np.bool_]) -> str:
    """Return in words the first and the last empty time of day, as "from 22:00 to 05:00"."""
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
