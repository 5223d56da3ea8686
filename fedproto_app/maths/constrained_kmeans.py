"""k-means whose clusters have a smallest size (Bradley, Bennett and Demiriz, MSR-TR-2000-65).

To assign points to given centres is a problem of transport, here of places: each cluster has as
many as it must have points, and whoever gets none of these goes to the nearest centre.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

Points = NDArray[np.float64]
Labels = NDArray[np.int64]

STARTS, MOST_STEPS = 10, 100


def constrained_kmeans(
    points: Points, clusters: int, smallest: int, rng: np.random.Generator
) -> Labels:
    """[n, k] → [n] the cluster of each point, numbered by their first points.

    The best of `STARTS` runs, by the sum of squared distances. ValueError for fewer points than
    the clusters must have.
    """
    if len(points) < clusters * smallest:
        raise ValueError(f"{len(points)} points for {clusters} clusters of {smallest}")
    runs = [_run(points, clusters, smallest, rng) for _ in range(STARTS)]
    labels, _ = min(runs, key=lambda run: run[1])
    firsts = {label: number for number, label in enumerate(dict.fromkeys(labels.tolist()))}
    return np.array([firsts[label] for label in labels.tolist()], np.int64)


def _run(
    points: Points, clusters: int, smallest: int, rng: np.random.Generator
) -> tuple[Labels, float]:
    centres = points[rng.choice(len(points), clusters, replace=False)]
    labels, cost = _assigned(points, centres, smallest)
    for _ in range(MOST_STEPS):
        centres = np.stack([points[labels == one].mean(axis=0) for one in range(clusters)])
        moved, less = _assigned(points, centres, smallest)
        if less >= cost:
            break
        labels, cost = moved, less
    return labels, cost


def _assigned(points: Points, centres: Points, smallest: int) -> tuple[Labels, float]:
    """Each point's cluster, and the sum of squared distances, the least that the sizes allow."""
    squared = ((points[:, None] - centres) ** 2).sum(axis=2)
    nearest = squared.argmin(axis=1)
    owner = np.repeat(np.arange(len(centres)), smallest)
    free = len(points) - len(owner)
    costs = np.concatenate(
        [squared[:, owner], np.tile(squared.min(axis=1)[:, None], (1, free))], axis=1
    )
    rows, places = linear_sum_assignment(costs)  # rows are 0 … n − 1
    in_place = places < len(owner)
    labels = nearest.astype(np.int64)
    labels[in_place] = owner[places[in_place]]
    return labels, float(costs[rows, places].sum())
