"""Prediction intervals of a client's forecasts, and their coverage.

For each step ahead, half widths start from the validation part's errors and then follow the test
part's errors as they become available. The half widths after the test part stay at the node, with
the kept model; coverage and mean width over the test part are reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.metrics import Metric
from fedproto_app.tasks.forecasting.metrics import COVERAGES, LEVELS, WIDTHS

if TYPE_CHECKING:
    from torch import Tensor
from collections.abc import Sequence
from typing import NamedTuple

# A score is the size of an error, |forecast - truth|, so an interval is the forecast ± a half
# width. The first half width is split conformal (Vovk et al. 2005; Lei et al. 2018): a quantile of
# the scores of the validation part, which has the nominal coverage if later errors are alike. In
# series they are not, so later half widths follow the errors by quantile tracking (Angelopoulos et
# al. 2023, Conformal PID control for time series prediction) on the logarithm of the score. A value
# outside widens the next interval, a value inside narrows it, by amounts that balance at the
# nominal coverage. The score of a forecast h steps ahead is used only h steps later.

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]

GAIN = 0.1  # of the tracking
_LONGEST_DELAY = 24  # steps; with longer delays, a smaller gain keeps the widths from swinging
_SMALLEST = 1e-6  # a width of 0 could not grow
_NARROWEST = 0.01  # share of the first width: a sensor that stood still may start again


class Tracked(NamedTuple):
    """Half widths for L levels, K series, n forecasts in time order, H steps ahead.

    at: [L, K, n, H] float32, of each forecast. after: [L, K, H], of one made after all of them.
    """

    at: NDArray[np.float32]
    after: Floats


def conformal_quantile(scores: Floats, present: Bools, level: int) -> Floats:
    """Return the ⌈(n + 1) · level / 100⌉-th smallest of the n present scores, [K, H].

    scores, present: [K, n, H]. level: percent. If n is below level / (100 - level), no score is
    large enough for the level and the largest is returned; NaN if n = 0.
    """
    ordered = np.sort(np.where(present, scores, np.inf), axis=1)
    count = present.sum(axis=1)
    rank = np.minimum(-(-(count + 1) * level // 100), count)
    quantiles = np.take_along_axis(ordered, np.maximum(rank - 1, 0)[:, None], axis=1)[:, 0]
    return np.where(count > 0, quantiles, np.nan)


def first_half_widths(scores: Floats, present: Bools, levels: Sequence[int]) -> Floats:
    """Return the first half widths, [L, K, H], from scores of validation forecasts [K, n, H].

    A step ahead without any score gets the largest half width of the other steps.
    """
    widths = np.stack([conformal_quantile(scores, present, level) for level in levels])
    largest = np.fmax.reduce(widths, axis=2, keepdims=True)
    return np.maximum(np.where(np.isnan(widths), largest, widths), _SMALLEST)


def tracked(first: Floats, scores: Floats, judged: Bools, levels: Sequence[int]) -> Tracked:
    """Update half widths by the scores of forecasts; sample i + 1 begins a step after sample i.

    first: [L, K, H], the half widths of the first judged forecast. scores, judged: [K, n, H]; only
    judged values count. levels: percent, rising; the widths rise with them.
    """
    clients, samples, horizon = scores.shape
    ahead = np.arange(horizon)
    gain = GAIN * np.minimum(1, _LONGEST_DELAY / (ahead + 1))
    allowed = 1 - np.array(levels)[:, None, None] / 100  # how often a value may lie outside
    wider, narrower = np.exp(gain * (1 - allowed)), np.exp(-gain * allowed)

    # H rows of padding on either side, so that index h + 1 rows earlier is always valid.
    counts = np.pad(judged, ((0, 0), (horizon, horizon), (0, 0)))
    missed = np.zeros((len(levels), *counts.shape), dtype=bool)
    widths_at = np.empty((len(levels), clients, samples, horizon), dtype=np.float32)
    widths = first
    for place in range(samples + horizon):
        revealed = place + horizon - 1 - ahead  # (H) the forecasts whose value ahead is newly known
        factor = np.where(missed[:, :, revealed, ahead], wider, narrower)
        widths = np.where(counts[:, revealed, ahead], widths * factor, widths)
        widths = np.maximum(np.maximum.accumulate(widths, axis=0), first * _NARROWEST)
        if place < samples:
            widths_at[:, :, place] = widths
            missed[:, :, place + horizon] = scores[:, place] > widths
    return Tracked(widths_at, widths)


_HALF_WIDTH = "half-width-"


def half_width(level: int, ahead: int) -> str:
    """Return the name under which a node stores the half width after the end of the data."""
    return f"{_HALF_WIDTH}{level}/step-{ahead + 1}"


def is_half_width(name: str) -> bool:
    """Return whether the name is a result of `half_width`."""
    return name.startswith(_HALF_WIDTH)


def kept_half_widths(stored: Mapping[str, float], steps: int) -> NDArray[np.float64]:
    """Return the half widths that a node has stored, [L, steps]; NaN if missing."""
    return np.array(
        [
            [stored.get(half_width(level, ahead), np.nan) for ahead in range(steps)]
            for level in LEVELS
        ]
    )


def follow(error: Tensor, validation: Tensor, test: Tensor) -> Tracked:
    """Return the half widths of all forecasts from their errors [K, n, H].

    validation, test: [K, n, H], not 0 for the present values of the part.
    """
    scores = error.abs().double().cpu().numpy()
    of_validation, of_test = (part.bool().cpu().numpy() for part in (validation, test))
    # Tracking starts at the first test sample of any client, as series may differ in length.
    begin = int(of_test.any(axis=(0, 2)).argmax())
    first = first_half_widths(scores, of_validation, LEVELS)
    later = tracked(first, scores[:, begin:], of_test[:, begin:], LEVELS)
    before = np.repeat(first[:, :, None].astype(np.float32), begin, axis=2)
    return Tracked(np.concatenate([before, later.at], axis=2), later.after)


def interval_metrics(error: Tensor, validation: Tensor, test: Tensor) -> dict[Metric, list[float]]:
    """Return `COVERAGES` and `WIDTHS` over the test part and the half widths after it, by client.

    Coverage is the share of values inside; width is the mean of upper minus lower limit on the
    standardised scale. The arguments are the same as for `follow`.
    """
    widths = follow(error, validation, test)
    scores, judged = error.abs().double().cpu().numpy(), test.bool().cpu().numpy()
    count = judged.sum(axis=(1, 2))
    metrics: dict[Metric, list[float]] = {}
    for metric, values in zip(COVERAGES, widths.at, strict=True):
        inside = (scores <= values) & judged
        metrics[metric] = (inside.sum(axis=(1, 2)) / count).tolist()
    for metric, values in zip(WIDTHS, widths.at, strict=True):
        mean = np.where(judged, values, 0).sum(axis=(1, 2), dtype=np.float64) / count
        metrics[metric] = (2 * mean).tolist()
    for level, after in zip(LEVELS, widths.after, strict=True):
        for ahead in range(after.shape[1]):
            metrics[Metric(half_width(level, ahead))] = after[:, ahead].tolist()
    return metrics
