"""Whether two methods differ over the same clients, beyond what chance does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# With five clients even five equal signs have p = 2 / 2⁵ = 0.06: no outcome could tell anything.
FEWEST = 6


def signed_rank(differences: NDArray[np.float64]) -> float | None:
    """p of Wilcoxon's signed-rank test (1945), two-sided, of paired differences [K].

    Differences of 0 say nothing for either side and are left out. None with fewer than `FEWEST`
    others.
    """
    from scipy.stats import wilcoxon  # slow to import

    telling = differences[differences != 0]
    if len(telling) < FEWEST:
        return None
    return float(wilcoxon(telling).pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for being several (Holm 1979), in the order given.

    The smallest of m is multiplied by m, the next by m − 1, …; none is smaller than one before it,
    nor larger than 1.
    """
    corrected = [0.0] * len(values)
    so_far = 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        so_far = max(so_far, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = so_far
    return corrected
