"""How far off a forecast may be: quantiles of past errors that follow the newest ones.

A score is the size of an error, |forecast - truth|, so an interval is the forecast ± a half width.
The first half width is split conformal (Vovk et al. 2005; Lei et al. 2018): a quantile of the
scores of a validation part, which would cover as often as asked if later errors were like those.
Later errors of series are not, so from there on it follows them: quantile tracking (Angelopoulos
et al. 2023, Conformal PID control for time series prediction) on the logarithm of the score. A
value outside widens the next interval, a value inside narrows it, by amounts that balance at the
coverage asked for. Nothing is used before it is known: a forecast h steps ahead teaches h steps
later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]

GAIN = 0.1  # of the tracking
_LONGEST_DELAY = 24  # with answers so late or later, a smaller gain keeps the widths from swinging
_SMALLEST = 1e-6  # a width of 0 could not grow
_NARROWEST = 0.01  # of the first: a sensor that stood still for long begins again some day


class Tracked(NamedTuple):
    """Half widths for L levels, K series, n forecasts in time order, H steps ahead.

    at: [L, K, n, H] float32, of each forecast. after: [L, K, H], of one made after all of them.
    """

    at: NDArray[np.float32]
    after: Floats


def conformal_quantile(scores: Floats, present: Bools, level: int) -> Floats:
    """The ⌈(n + 1) · level / 100⌉-th smallest of the n present scores.

    scores, present: [K, n, H] → [K, H]. level: percent. Where n is below level / (100 - level) no
    score is large enough for the level, and the largest is taken; NaN where n = 0.
    """
    ordered = np.sort(np.where(present, scores, np.inf), axis=1)
    count = present.sum(axis=1)
    rank = np.minimum(-(-(count + 1) * level // 100), count)
    found = np.take_along_axis(ordered, np.maximum(rank - 1, 0)[:, None], axis=1)[:, 0]
    return np.where(count > 0, found, np.nan)


def first_half_widths(scores: Floats, present: Bools, levels: Sequence[int]) -> Floats:
    """[K, n, H] → [L, K, H], of validation forecasts.

    A step ahead without any score gets the largest half width of the other steps.
    """
    widths = np.stack([conformal_quantile(scores, present, level) for level in levels])
    largest = np.fmax.reduce(widths, axis=2, keepdims=True)
    return np.maximum(np.where(np.isnan(widths), largest, widths), _SMALLEST)


def tracked(first: Floats, scores: Floats, judged: Bools, levels: Sequence[int]) -> Tracked:
    """Follow the scores of forecasts of which sample i + 1 begins one step after sample i.

    first: [L, K, H], the half widths of the first judged forecast. scores, judged: [K, n, H]; only
    judged values count. levels: percent, rising, as their widths then are.
    """
    clients, samples, horizon = scores.shape
    ahead = np.arange(horizon)
    gain = GAIN * np.minimum(1, _LONGEST_DELAY / (ahead + 1))
    allowed = 1 - np.array(levels)[:, None, None] / 100  # how often a value may lie outside
    wider, narrower = np.exp(gain * (1 - allowed)), np.exp(-gain * allowed)

    # H rows on either side, so that every place has an answer h + 1 rows before it.
    counts = np.pad(judged, ((0, 0), (horizon, horizon), (0, 0)))
    missed = np.zeros((len(levels), *counts.shape), dtype=bool)
    at = np.empty((len(levels), clients, samples, horizon), dtype=np.float32)
    now = first
    for place in range(samples + horizon):
        known = place + horizon - 1 - ahead  # (H) the forecasts whose value ahead is newly known
        factor = np.where(missed[:, :, known, ahead], wider, narrower)
        now = np.where(counts[:, known, ahead], now * factor, now)
        now = np.maximum(np.maximum.accumulate(now, axis=0), first * _NARROWEST)
        if place < samples:
            at[:, :, place] = now
            missed[:, :, place + horizon] = scores[:, place] > now
    return Tracked(at, now)
