"""Agglomerative clustering with average linkage: which clusters merge, nearest first.

The nearest-neighbour chain of scipy's ``linkage(…, method="average")``: the same sums in the same
order, the same choice between equally near clusters. But the distances stand in a whole square,
not in its upper triangle. So what is searched lies side by side, numpy searches it, and the square
shrinks with the clusters: 10,000 clients take half of scipy's time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Square = NDArray[np.float64]
Pairs = NDArray[np.int64]


def merges(similar: NDArray[np.float32], room: Square | None = None) -> Pairs:
    """Merges by average linkage on 1 − similar: [N, N], symmetric, finite → [N − 1, 2].

    A merge names one client of each of its two clusters; the nearest come first.
    room: [N, N] that is overwritten; whoever clusters again and again pays for its memory once.
    Raises ValueError if a similarity is not finite.
    """
    clients = len(similar)
    apart = np.empty((clients, clients)) if room is None else room
    np.subtract(1, similar, out=apart)
    if not np.isfinite(apart.sum(axis=1)).all():
        raise ValueError("similarities must be finite")
    clusters = _Clusters(apart)
    pairs = np.empty((max(clients - 1, 0), 2), np.int64)
    heights = np.empty(len(pairs))
    for number in range(len(pairs)):
        pairs[number], heights[number] = clusters.merge()
    order = np.argsort(heights, kind="stable")
    return pairs[order]


class _Clusters:
    """The clusters that are left, in the order of their last clients, and their distances."""

    def __init__(self, apart: Square) -> None:
        """apart: [n, n], overwritten."""
        np.fill_diagonal(apart, np.inf)
        self._apart = apart
        self._clients = np.arange(len(apart))  # that stand for the clusters
        self._sizes = np.ones(len(apart), np.int64)
        self._gone = np.zeros(len(apart))  # inf: merged into another, its row and column are old
        self._left = len(apart)
        self._chain: list[int] = []  # each the nearest to the one before

    def merge(self) -> tuple[tuple[int, int], float]:
        """Merge two that are each other's nearest; returns clients that stand for them, and how
        far apart they were."""
        if 2 * self._left <= len(self._gone):
            self._shrink()
        first, second, height = self._nearest_pair()
        sizes, apart = self._sizes, self._apart
        both = sizes[first] + sizes[second]
        row = (sizes[first] * apart[first] + sizes[second] * apart[second]) / both
        apart[second] = row
        apart[:, second] = row
        sizes[second] = both
        self._gone[first] = np.inf
        self._left -= 1
        return (int(self._clients[first]), int(self._clients[second])), height

    def _nearest_pair(self) -> tuple[int, int, float]:
        """Two clusters, the earlier first, and their distance; the chain ends before them."""
        chain = self._chain
        if not chain:
            chain.append(int(self._gone.argmin()))
        while True:
            row = self._apart[chain[-1]] + self._gone
            nearest = int(row.argmin())
            if len(chain) > 1 and row[nearest] == row[chain[-2]]:
                # Of equally near ones the one before, so that the chain cannot go in circles.
                first, second = sorted(chain[-2:])
                height = float(row[nearest])
                del chain[-2:]
                return first, second, height
            chain.append(nearest)

    def _shrink(self) -> None:
        """Drop the rows and columns of those that are gone, within the same memory."""
        left = np.flatnonzero(self._gone == 0)
        place_of = {cluster: place for place, cluster in enumerate(left.tolist())}
        memory = self._apart.reshape(-1)
        for place, cluster in enumerate(left):  # ends before the row that it reads, or in it
            memory[place * len(left) : (place + 1) * len(left)] = self._apart[cluster][left]
        self._apart = memory[: len(left) ** 2].reshape(len(left), len(left))
        self._clients, self._sizes = self._clients[left], self._sizes[left]
        self._gone = np.zeros(len(left))
        self._chain = [place_of[cluster] for cluster in self._chain]
