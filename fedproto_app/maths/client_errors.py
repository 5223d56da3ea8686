"""Summaries of the errors of many clients, where one may outweigh all others.

The largest terms dominate a mean of squared errors: one client with a spike in its test part can
make up most of it. So tables also give the median, and the mean over the worst tenth.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

WORST_SHARE = 0.1


def worst_tenth(errors: NDArray[np.float64]) -> float:
    """Return the mean of the ⌈K / 10⌉ largest of the errors [K], K ≥ 1."""
    count = math.ceil(len(errors) * WORST_SHARE - 1e-9)
    return float(np.sort(errors)[-count:].mean())


def largest_share(errors: NDArray[np.float64]) -> tuple[int, float]:
    """Return which error [K] ≥ 0 is the largest, and its share of their sum, 0 if that is 0."""
    worst = int(np.argmax(errors))
    total = float(errors.sum())
    return worst, float(errors[worst]) / total if total > 0 else 0.0
