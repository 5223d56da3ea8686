"""Find the weekdays and times of day at which a client never has a value.

A shop that is closed on Sundays has none then. Its forecast for a Sunday is left empty, because
nothing will be sold.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.clock import LARGEST_CHANCE, WEEKDAYS
from fedproto_app.data.series import ClientSeries

# A time of the day or the week counts as empty if it has come this often without any value.
FEWEST_TIMES = 5
_DAY, _WEEK = 86_400_000_000, 7 * 86_400_000_000  # microseconds
_MONDAY = 4 * _DAY  # after 1970-01-01, a Thursday

Positions = NDArray[np.int64]


def is_empty_time(series: ClientSeries, positions: Positions, period: int) -> NDArray[np.bool_]:
    """Return whether the client never has a value at the times of these positions [n].

    A position is empty if the series has no value at the same time of any day, or of any week. The
    time must have come at least `FEWEST_TIMES` times, and so often that missing values by chance
    are no explanation. Steps of months are compared by their place in the year. A series without a
    clock is compared by the place in one period and in seven. period: in steps.
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
    """Return when in the week the client has no values, such as "on Sundays", or "" if it always
    has some."""
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
    by_day = empty[order].reshape(len(weekdays), -1)  # a column per time of day
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

    For steps of months both are the place in the year. Without a clock they are the places in one
    period and in seven.
    """
    if series.clock is None:
        return positions % period, positions % (7 * period)
    if series.clock.months:
        return positions % _week(series, period), positions % _week(series, period)
    microseconds = _microseconds(series, positions) - _MONDAY
    step = int(series.clock.step / np.timedelta64(1, "us"))
    return microseconds % _DAY // step, microseconds % _WEEK // step


def _week(series: ClientSeries, period: int) -> int:
    """Return the number of steps in a week, in a year of months, or in seven periods without a
    clock."""
    if series.clock is None:
        return 7 * period
    weekly = round(_WEEK / 1e6 / series.clock.step_seconds)
    return max(1, 12 // series.clock.months if series.clock.months else weekly)


def _microseconds(series: ClientSeries, positions: Positions) -> Positions:
    assert series.clock is not None  # the callers need one
    return series.clock.moments(positions).astype("datetime64[us]").astype(np.int64)


def _hours(times: Positions, is_empty: NDArray[np.bool_]) -> str:
    """Return the empty times of day in words, such as "from 22:00 to 05:00".

    The first and the last empty time are named.
    """
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
