"""An even choice among many clients, for outputs that would be too large for all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def evenly(groups: NDArray[np.str_], limit: int) -> NDArray[np.intp]:
    """Return min(N, limit) clients, ascending. Each true group keeps its share of all N.

    groups: [N] text, "" if unknown.
    """
    by_group = np.argsort(groups, kind="stable")
    count = min(len(groups), limit)
    return np.sort(by_group[np.arange(count) * len(groups) // max(count, 1)])
