"""Prediction intervals of a client's forecasts: what they are, and how well they hold.

Half widths begin with the validation part's errors and follow those of the test part as they become
known (`maths.conformal`), for each step ahead. Those for the time after the test part stay at the
node, with the kept model; coverage and mean width over the test part are told.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.metrics import Metric
from fedproto_app.tasks.forecasting.intervals import Tracked, first_half_widths, tracked

if TYPE_CHECKING:
    from torch import Tensor

LEVELS = (80, 95)  # percent
COVERAGES = tuple(f"coverage-{level}" for level in LEVELS)
WIDTHS = tuple(f"width-{level}" for level in LEVELS)
NAMES = (*COVERAGES, *WIDTHS)

_HALF_WIDTH = "half-width-"


def half_width(level: int, ahead: int) -> str:
    """The name under which a node keeps a half width, standardised, for the time after all data."""
    return f"{_HALF_WIDTH}{level}/step-{ahead + 1}"


def is_half_width(name: str) -> bool:
    """Whether `half_width` made the name."""
    return name.startswith(_HALF_WIDTH)


def kept_half_widths(kept: Mapping[str, float], steps: int) -> NDArray[np.float64]:
    """[L, steps] of what a node has kept under these names; NaN where it has not."""
    return np.array(
        [[kept.get(half_width(level, ahead), np.nan) for ahead in range(steps)] for level in LEVELS]
    )


def follow(error: Tensor, validation: Tensor, test: Tensor) -> Tracked:
    """The half widths of all forecasts, from their errors [K, n, H] and what of these is in a part.

    validation, test: [K, n, H], not 0 for the part's values that are present.
    """
    scores = error.abs().double().cpu().numpy()
    of_validation, of_test = (part.bool().cpu().numpy() for part in (validation, test))
    # Nothing before a test part is followed, and no two series need be of one length.
    begin = int(of_test.any(axis=(0, 2)).argmax())
    first = first_half_widths(scores, of_validation, LEVELS)
    later = tracked(first, scores[:, begin:], of_test[:, begin:], LEVELS)
    before = np.repeat(first[:, :, None].astype(np.float32), begin, axis=2)
    return Tracked(np.concatenate([before, later.at], axis=2), later.after)


def interval_metrics(error: Tensor, validation: Tensor, test: Tensor) -> dict[Metric, list[float]]:
    """`NAMES` over the test part, a list over the clients each, and the half widths after it.

    Coverage is the share of values inside, width the mean of upper minus lower limit on the
    standardised scale. See `follow` for what it takes.
    """
    widths = follow(error, validation, test)
    scores, judged = error.abs().double().cpu().numpy(), test.bool().cpu().numpy()
    count = judged.sum(axis=(1, 2))
    told: dict[Metric, list[float]] = {}
    for name, values in zip(COVERAGES, widths.at, strict=True):
        inside = (scores <= values) & judged
        told[Metric(name)] = (inside.sum(axis=(1, 2)) / count).tolist()
    for name, values in zip(WIDTHS, widths.at, strict=True):
        mean = np.where(judged, values, 0).sum(axis=(1, 2), dtype=np.float64) / count
        told[Metric(name)] = (2 * mean).tolist()
    for level, after in zip(LEVELS, widths.after, strict=True):
        for ahead in range(after.shape[1]):
            told[Metric(half_width(level, ahead))] = after[:, ahead].tolist()
    return told
