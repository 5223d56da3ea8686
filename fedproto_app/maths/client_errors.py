"""What the errors of many clients come to, where one client may outweigh all others.

A mean of squared errors belongs to its largest terms: one client with a spike in its test part can
carry most of it. So tables also have the median, and the mean of those who are worst off.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

WORST_SHARE = 0.1


def worst_tenth(errors: NDArray[np.float64]) -> float:
    """The mean of the largest tenth of the errors [K], K ≥ 1: of ⌈K / 10⌉ of them."""
    count = math.ceil(len(errors) * WORST_SHARE - 1e-9)
    return float(np.sort(errors)[-count:].mean())


def largest_share(errors: NDArray[np.float64]) -> tuple[int, float]:
    """Which of the errors [K], all ≥ 0, is the largest, and its share of their sum (0 of 0)."""
    worst = int(np.argmax(errors))
    total = float(errors.sum())
    return worst, float(errors[worst]) / total if total > 0 else 0.0
