"""Prediction intervals of a client's forecasts, and their coverage.

For each step ahead, half widths start from the errors of the validation part. Then they follow the
errors of the test part as these become known. The half widths after the test part stay at the node,
with the kept model. Coverage and mean width over the test part are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.metrics import Metric
from fedproto_app.tasks.forecasting.metrics import COVERAGES, LEVELS, WIDTHS

if TYPE_CHECKING:
    from torch import Tensor

# A score is the size of an error, |forecast - truth|, so an interval is the forecast ± a half
# width. The first half width is a quantile of the validation part's scores. A short validation part
# has few forecasts of each step ahead, and forecasts that begin one step apart share all their
# target times but one, so their errors repeat each other. Therefore the errors of all steps ahead
# are pooled, each divided by the scale of its step, and the quantile is widened according to the
# number of independent errors (`first_half_widths`).
#
# Later errors differ from the validation part's. So later half widths follow the errors by
# quantile tracking (Angelopoulos et al. 2023, Conformal PID control for time series prediction) on
# the logarithm of the score. A value outside its interval widens the next one, and a value inside
# narrows it, by amounts that balance at the nominal coverage. The score of a forecast h steps ahead
# is used only h steps later.

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]

# The levels that are tracked and kept, in percent. Any other level lies between two of them, or
# between 0 and the first.
KEPT_LEVELS = (50, *LEVELS, 99)

GAIN = 0.1  # gain of the tracking
_LONGEST_DELAY = 24  # steps; with longer delays, a smaller gain keeps the widths from swinging
_SMALLEST = 1e-6  # a width of 0 could not grow
_SMALLEST_SHARE = 0.01  # least mean square of a step, relative to all: a few errors may be near 0
_NARROWEST = 0.01  # least share of the first width: a sensor that stood still may start again


class Tracked(NamedTuple):
    """Half widths for L levels, K series, n forecasts in time order, H steps ahead.

    at: [L, K, n, H] float32, for each forecast. after: [L, K, H], for a forecast after all of them.
    """

    at: NDArray[np.float32]
    after: Floats


def first_half_widths(errors: Floats, present: Bools, levels: Sequence[int]) -> Floats:
    """Return the first half widths, [L, K, H], from the errors of validation forecasts [K, n, H].

    present: [K, n, H]. Sample i + 1 begins a step after sample i. levels: percent.

    Let v_h be the mean square of the n errors at step h, and v the mean square of all errors. The
    scale s_h of a step has log s_h² = (n log v_h + H log v) / (n + H): n forecasts that overlap
    hold about n / H separate observations of how errors grow with the step, and v counts as one
    more. Of the errors divided by s_h, let q be the quantile of the level and r the root mean
    square. The shape is shrunk from q towards the normal distribution's z · r. The latter has the
    weight of m = level / (100 - level) errors, which are the fewest that show such a quantile,
    against N independent errors (`independent_errors`). The half width is s_h · (N · q + m · z · r)
    / (N + m) · t / z, where t is the quantile of Student's distribution with N degrees of freedom.
    t / z makes up for a scale that is estimated from N errors, exactly so for normal errors. A
    client without any present error has the widths of normal errors with the deviation of its
    series, 1.
    """
    from scipy.special import ndtri, stdtrit  # slow to import, and training alone does without it

    errors = np.where(present, errors, 0.0)
    counts = present.sum(axis=1)  # (K, H)
    horizon, count = counts.shape[1], counts.sum(axis=1)  # (K)
    squares = _sum(errors**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = squares.sum(axis=1) / count
    of_step = np.maximum(squares / np.maximum(counts, 1), _SMALLEST_SHARE * mean[:, None])
    steps_part = counts * np.log(np.maximum(of_step, _SMALLEST**2))
    part_of_all = horizon * np.log(np.maximum(mean, _SMALLEST**2))
    scales = np.exp((steps_part + part_of_all[:, None]) / (counts + horizon) / 2)
    scaled = errors / scales[:, None]
    number = independent_errors(scaled, present)
    root = np.sqrt(_sum(scaled**2).sum(axis=1) / np.maximum(count, 1))
    ordered = np.sort(np.where(present, np.abs(scaled), np.inf).reshape(len(errors), -1), axis=1)
    widths = []
    for level in levels:
        z, t = ndtri(0.5 + level / 200), stdtrit(number, 0.5 + level / 200)
        fewest = level / (100 - level)
        shape = (number * _quantile(ordered, count, level) + fewest * z * root) / (number + fewest)
        widths.append(np.where(count[:, None] > 0, (shape * t / z)[:, None] * scales, z))
    first: Floats = np.maximum(np.stack(widths), _SMALLEST)
    return first


def independent_errors(errors: Floats, present: Bools) -> Floats:
    """Return how many independent errors [K] tell as much as these dependent ones [K, n, H].

    Errors of the same target time count once, which leaves T errors. Let errors at neighbouring
    times have correlation ρ, which falls off as in a first-order autoregression. Squared errors
    then correlate by ρ², and T of them tell as much about the spread as T · (1 - ρ²) / (1 + ρ²)
    independent ones. Even independent errors have a mean squared correlation of 1 / (T - 1), which
    is subtracted from ρ². The result is at least 1.
    """
    clients, samples, horizon = errors.shape
    times = np.zeros((clients, samples + horizon - 1), dtype=bool)
    for ahead in range(horizon):
        times[:, ahead : ahead + samples] |= present[:, :, ahead]
    number = np.maximum(times.sum(axis=1), 1)
    products, squares = np.zeros((2, clients))
    for earlier, later in (
        (np.s_[:, :, :-1], np.s_[:, :, 1:]),  # of one forecast
        (np.s_[:, :-1], np.s_[:, 1:]),  # of two forecasts, equally far ahead
    ):
        pairs = present[earlier] & present[later]
        products += _sum(pairs * errors[earlier] * errors[later]).sum(axis=1)
        squares += _sum(pairs * (errors[earlier] ** 2 + errors[later] ** 2) / 2).sum(axis=1)
    square = (products / np.maximum(squares, _SMALLEST**2)) ** 2 - 1 / np.maximum(number - 1, 1)
    square = np.maximum(square, 0.0)
    independent: Floats = np.maximum(number * (1 - square) / (1 + square), 1.0)
    return independent


def _sum(values: Floats) -> Floats:
    """Return the sums over samples, [K, n, H] → [K, H], added in the order of time.

    So a client's sums are the same in every cohort, whatever the length n of its longest series.
    """
    return np.add.accumulate(values, axis=1)[:, -1] if values.shape[1] else values.sum(axis=1)


def _quantile(ordered: Floats, count: NDArray[np.integer], level: int) -> Floats:
    """Return the level's quantile [K] of each row's first `count` scores, interpolated.

    The k-th smallest of n stands for the share k / (n + 1), and the largest for all shares above.
    """
    place = np.clip(level / 100 * (count + 1) - 1, 0, np.maximum(count - 1, 0))
    lower = place.astype(np.intp)
    upper = np.minimum(lower + 1, np.maximum(count - 1, 0))
    rows = np.arange(len(ordered))
    share = place - lower
    with np.errstate(invalid="ignore"):
        quantile = (1 - share) * ordered[rows, lower] + share * ordered[rows, upper]
    return np.where(count > 0, quantile, np.nan)


def tracked(first: Floats, scores: Floats, judged: Bools, levels: Sequence[int]) -> Tracked:
    """Update half widths by the scores of forecasts. Sample i + 1 begins a step after sample i.

    first: [L, K, H], the half widths of the first judged forecast. scores, judged: [K, n, H]. Only
    judged values count. levels: percent, rising. The widths rise with the levels.
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


def kept_half_widths(
    stored: Mapping[str, float], steps: int, levels: Sequence[int] = LEVELS
) -> NDArray[np.float64]:
    """Return the half widths that a node has stored, [L, steps], or NaN if missing.

    levels: percent, from 1 to 99. Between two stored levels the half width rises in proportion to
    the normal distribution's quantile, and below the first stored level from 0.
    """
    from scipy.special import ndtri

    widths_by_step = [
        [stored.get(half_width(level, ahead), np.nan) for level in KEPT_LEVELS]
        for ahead in range(steps)
    ]
    z_stored, z = (ndtri(0.5 + np.array(shares) / 200) for shares in ((0, *KEPT_LEVELS), levels))
    return np.stack([np.interp(z, z_stored, (0.0, *ws)) for ws in widths_by_step], axis=1)


def follow(error: Tensor, validation: Tensor, test: Tensor) -> Tracked:
    """Return the half widths of all forecasts from their errors [K, n, H].

    validation, test: [K, n, H], not 0 for the present values of the part. Returns `at` for
    `LEVELS` and `after` for `KEPT_LEVELS`.
    """
    errors = error.double().cpu().numpy()
    of_validation, of_test = (part.bool().cpu().numpy() for part in (validation, test))
    # Tracking starts at the first test sample of any client, as series may differ in length.
    begin = int(of_test.any(axis=(0, 2)).argmax())
    end = int(np.flatnonzero(of_validation.any(axis=(0, 2))).max(initial=0)) + 1
    first = first_half_widths(errors[:, :end], of_validation[:, :end], KEPT_LEVELS)
    later = tracked(first, np.abs(errors[:, begin:]), of_test[:, begin:], KEPT_LEVELS)
    before = np.repeat(first[:, :, None].astype(np.float32), begin, axis=2)
    shown = [KEPT_LEVELS.index(level) for level in LEVELS]
    return Tracked(np.concatenate([before, later.at], axis=2)[shown], later.after)


def interval_metrics(error: Tensor, validation: Tensor, test: Tensor) -> dict[Metric, list[float]]:
    """Return `COVERAGES` and `WIDTHS` over the test part and the half widths after it, by client.

    Coverage is the share of values inside. Width is the mean of upper minus lower limit on the
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
    for level, after in zip(KEPT_LEVELS, widths.after, strict=True):
        for ahead in range(after.shape[1]):
            metrics[Metric(half_width(level, ahead))] = after[:, ahead].tolist()
    return metrics
