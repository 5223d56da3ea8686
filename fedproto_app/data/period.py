"""Find the period of series in steps, from their clock or from their autocorrelation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.clock import DAY, WEEK, Clock
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings

# A lag with a weaker autocorrelation is not a period. In T values of noise, the strongest
# autocorrelation is about 3 / √T.
FAINTEST_PERIOD = 0.2
NOISE_PEAK = 4.0
# A shorter lag is preferred if it is nearly as strong as the strongest, for instance 24 over 168.
NEARLY = 0.75
FEWEST_VALUES = 12
# The ratio in `weeks_repeat` is 0.72 to 0.93 where the weekday as an input lowers validation errors
# (electricity, milano, m4), and 0.98 to 1.06 where it raises them (wind, PM2.5).
LIKE_A_WEEK_AGO = 0.95

Vector = NDArray[np.float64]


def step_of(series: Sequence[ClientSeries]) -> Clock | None:
    """Return a clock with the step that all clients share, or None if they differ.

    It is also None if the step is not a whole number of seconds.
    """
    clock = series[0].clock
    rhythms = {client.clock.rhythm if client.clock else "" for client in series}
    is_whole = clock is not None and (
        clock.is_of_calendar or not clock.step % np.timedelta64(1, "s")
    )
    return clock if is_whole and len(rhythms) == 1 else None


def period_of(series: Sequence[ClientSeries]) -> tuple[int, str]:
    """Return the period in steps, and a text that says where it comes from.

    The clock decides if its step divides a day, a week or a year. Otherwise the period is the most
    frequent result of `find_period`, or the default if no series has any.
    """
    if (clock := step_of(series)) is not None:
        if clock.cycle:
            shorter = "a day" if clock.steps_in(DAY) > 1 else "a week"
            return clock.cycle, "a year" if clock.months else shorter
        if clock.months:
            return 1, "a step, as none is shorter"
        if clock.step == WEEK:
            return 52, "a year"
    periods = [period for client in series if (period := find_period(client.values))]
    if periods:
        values, counts = np.unique(periods, return_counts=True)
        best = int(values[counts.argmax()])
        return best, f"by autocorrelation, of {counts.max()} of {len(series)} series"
    default = DataSettings().period
    return default, "the default, as the series have no clock and repeat nothing"


def weeks_repeat(series: Sequence[ClientSeries], period: int) -> bool:
    """Return whether values resemble those a week before, for series whose period is a day.

    For each client, the mean squared difference of values seven days apart is divided by the
    average of this figure for six and for eight days. The median of the clients' ratios must be
    less than `LIKE_A_WEEK_AGO`. Only the train parts are used.
    """
    share = DataSettings().train_share
    trained = [client.values[: int(len(client.values) * share)] for client in series]
    ratios = []
    for values in trained:
        six, seven, eight = (_difference(values, days * period) for days in (6, 7, 8))
        if six + eight > 0 and np.isfinite(seven):
            ratios.append(2 * seven / (six + eight))
    return bool(ratios) and float(np.median(ratios)) < LIKE_A_WEEK_AGO


def _difference(values: Vector, lag: int) -> float:
    """Return the mean squared difference of values [T] that are `lag` steps apart.

    Return NaN if no such pair is present.
    """
    squares = np.square(values[lag:] - values[:-lag])
    squares = squares[np.isfinite(squares)]
    return float(squares.mean()) if squares.size else np.nan


def find_period(values: Vector) -> int | None:
    """Return the period in steps according to the autocorrelation, or None if no lag stands out.

    The strongest lag is sought between the first negative autocorrelation and a third of the
    series' length. A shorter lag that is nearly as strong is preferred, because every multiple of a
    period is also a period. values: [T], NaN where missing.
    """
    present = np.isfinite(values)
    if present.sum() < FEWEST_VALUES or np.ptp(values[present]) == 0:
        return None
    correlation = _autocorrelation(_without_trend(values, present))
    candidates = correlation[: len(values) // 3 + 1].copy()
    negative = np.flatnonzero(candidates < 0)
    if not negative.size:
        return None
    candidates[: negative[0]] = 0.0  # neighbouring values are similar, which is not a period
    strongest = candidates.max()
    if strongest < max(FAINTEST_PERIOD, NOISE_PEAK / np.sqrt(len(values))):
        return None
    first = int(np.argmax(candidates >= NEARLY * strongest))
    hill = int(np.argmax(np.append(candidates[first:], -1.0) < 0))
    return _sharpened(first + int(np.argmax(candidates[first : first + hill])), correlation)


def _without_trend(values: Vector, present: NDArray[np.bool_]) -> Vector:
    """Return the values [T] with gaps interpolated and a cubic trend removed."""
    steps = np.arange(len(values), dtype=np.float64)
    filled = np.interp(steps, steps[present], values[present])
    trend = np.polynomial.Polynomial.fit(steps, filled, 3)
    return np.asarray(filled - trend(steps), dtype=np.float64)


def _autocorrelation(values: Vector) -> Vector:
    """Return the autocorrelation at each lag, [T // 2], averaged over the overlapping values."""
    length = len(values)
    spectrum = np.fft.rfft(values, 2 * length)  # twice the length: no wrap-around
    products = np.fft.irfft(spectrum * spectrum.conj(), 2 * length)[: length // 2]
    products /= np.arange(length, length - length // 2, -1)
    variance = float(products[0])
    return products / variance if variance > 0 else np.zeros_like(products)


def _sharpened(lag: int, correlation: Vector) -> int:
    """Return the lag, within 5% of this one, whose multiples have the highest mean correlation.

    Noise can shift the peak at one lag, but hardly the peaks at all of its multiples.
    """
    reach = lag // 20
    near = np.arange(lag - reach, lag + reach + 1)
    multiples = np.arange(1, max(1, (len(correlation) - 1) // (lag + reach)) + 1)
    return int(near[np.argmax(correlation[np.outer(near, multiples)].mean(axis=1))])
