"""Where numbers and times lie on an axis, and at which round ones of them it has ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fedproto_app.report.page.charts import Axis

_ROOM = 0.04  # of the values' span, beside the outermost ones
_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_TIME_STEPS = (
    *(1, 5, 15, 30, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE),
    *(_HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY),
)
_MONTHS = (1, 3, 6, 12, 24, 60, 120)
_SMALLEST, _LARGEST = 1e-100, 1e100  # beyond them values lie at an end, and sums stay finite
_WIDEST = 1e9  # a logarithmic axis; what is smaller still lies at its start
_MOST_DIGITS = 5  # behind the point
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))


@dataclass(frozen=True)
class Scale:
    """Values between low and high at pixels between start and end.

    zero: the pixel of 0 on a logarithmic axis, which has no place for it; None if nothing is there.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    zero: float | None = None

    def at(self, value: float) -> float:
        """The pixel of a value."""
        if self.log:
            if value <= 0:
                return self.start if self.zero is None else self.zero
            if value <= self.low:
                return self.start
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)


def scale_of(axis: Axis, values: Sequence[float], start: float, end: float) -> Scale:
    """The axis's scale for finite values (some of them, or none) between two pixels."""
    values = [0.0 if abs(value) < _SMALLEST else value for value in values]
    values = [min(max(value, -_LARGEST), _LARGEST) for value in values]
    if axis.log:
        high = max([value for value in values if value > 0], default=1.0)
        low = min([value for value in values if value > high / _WIDEST], default=1.0)
        low, high = (low / 2, high * 2) if low == high else (low / 1.15, high * 1.15)
        if any(value <= 0 for value in values):  # 0 gets a strip of its own
            return Scale(low, high, start + 0.14 * (end - start), end, True, start)
        return Scale(low, high, start, end, True)
    low, high = axis.limits or (min(values, default=0.0), max(values, default=1.0))
    if low == high:
        low, high = low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2
    room = 0.0 if axis.limits else _ROOM * (high - low)
    if low >= 0 > low - room:
        room = min(room, low)
    return Scale(low - room, high + (_ROOM * (high - low) if not axis.limits else 0), start, end)


def ticks(axis: Axis, scale: Scale, most: int) -> list[tuple[float, str]]:
    """Round values of the axis between the scale's ends, and their texts; about `most` of them."""
    if axis.times:
        return _time_ticks(scale.low, scale.high, most)
    if scale.log:
        found = [(value, number(value)) for value in _log_ticks(scale.low, scale.high, most)]
        return [*([(0.0, "0")] if scale.zero is not None else []), *found]
    factor = 100.0 if axis.percent else 1.0
    step = _round_step((scale.high - scale.low) * factor / most)
    step = max(1.0, round(step)) if axis.whole else step
    first = math.ceil(scale.low * factor / step - 1e-9)
    last = math.floor(scale.high * factor / step + 1e-9)
    values = [place * step for place in range(first, last + 1)]
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    unit = "%" if axis.percent else ""
    return [(value / factor, _tick_text(value, digits) + unit) for value in values]


def number(value: float) -> str:
    """In about three digits, large ones with a letter for thousands, millions, …"""
    for size, letter in _PREFIXES:
        if abs(value) >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:.3g}{letter}".replace("-", "−")
    return f"{value:.3g}".replace("-", "−")


def _tick_text(value: float, digits: int) -> str:
    if digits > _MOST_DIGITS or abs(value) >= _PREFIXES[-1][0]:
        return number(value)
    text = f"{value:.{digits}f}"
    return "0" if float(text) == 0 else text.replace("-", "−")


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is no smaller."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(one * power for one in (1, 2, 5, 10) if one * power >= least * (1 - 1e-9))


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 3, 4, 5, 6, 8), (1, 2, 5), (1, 3), (1,)):
        found = [one * 10.0**power for power in powers for one in digits]
        found = [value for value in found if low <= value <= high]
        if len(found) <= most:
            return found or [low, high]
    return found[:: math.ceil(len(found) / most)]


def _time_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    step = next((one for one in _TIME_STEPS if (high - low) / one <= most), None)
    if step is None:
        return _month_ticks(low, high, most)
    first = math.ceil(low / step) * step
    times = [first + number * step for number in range(int((high - first) // step) + 1)]
    return [(time, _time_text(time, step)) for time in times]


def _time_text(time: float, step: int) -> str:
    """A date at midnight, else the hour; seconds only where ticks lie so close."""
    at = _EPOCH + timedelta(seconds=time)
    if step >= _DAY or time % _DAY == 0:
        return f"{at:%b} {at.day}"
    return f"{at:%H:%M:%S}" if step < _MINUTE else f"{at:%H:%M}"


def _month_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    month = 30.44 * _DAY
    step = next((one for one in _MONTHS if (high - low) / (one * month) <= most), _MONTHS[-1])
    first, last = (_EPOCH + timedelta(seconds=one) for one in (low, high))
    found = []
    for months in range(first.year * 12, last.year * 12 + 12, step):
        at = datetime(months // 12, months % 12 + 1, 1, tzinfo=UTC)
        if first <= at <= last:
            year = step >= 12 or at.month == 1
            found.append(((at - _EPOCH).total_seconds(), f"{at:%Y}" if year else f"{at:%b}"))
    return found


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
