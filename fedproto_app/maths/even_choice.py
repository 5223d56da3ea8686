"""Some of many clients, for what would be too much of all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def evenly(groups: NDArray[np.str_], most: int) -> NDArray[np.intp]:
    """[min(N, most)] clients, ascending, every true group by its share of all N.

    groups: [N] text, "" where unknown.
    """
    by_group = np.argsort(groups, kind="stable")
    count = min(len(groups), most)
    return np.sort(by_group[np.arange(count) * len(groups) // max(count, 1)])
