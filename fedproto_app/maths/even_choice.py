"""An even choice of clients, for outputs that would be too large with all clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def evenly(groups: NDArray[np.str_], limit: int) -> NDArray[np.intp]:
    """Return min(N, limit) clients in ascending order. Each true group keeps its share of all N.

    groups: the true group of each client, [N] text, "" if unknown.
    """
    by_group = np.argsort(groups, kind="stable")
    count = min(len(groups), limit)
    return np.sort(by_group[np.arange(count) * len(groups) // max(count, 1)])
