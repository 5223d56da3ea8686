"""Which cluster of one round is which of another.

A "cluster c" has a head over the rounds (Fed-REACT, Algorithm 2, lines 10 to 12), but a clustering
numbers its clusters anew each time. Shapes: N clients, one label each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedproto_app.maths.clustering import Labels, by_first_appearance

ABSENT = -1  # the label of a client that was not there


def match_labels(previous: Labels, current: Labels, clusters: int) -> Labels:
    """`current` renumbered after the clusters of `previous` with which it shares most clients: [N].

    previous, current: [N], ABSENT for a client that was not there. clusters: how many numbers
    there are, 0 … clusters−1: C, or MOST_CLUSTERS where the silhouette chooses. ValueError if
    they do not suffice. The matching is one to one and shares the most clients in total. A cluster
    left without shared clients is new: it takes the lowest number that `previous` does not have,
    or else the lowest that is free now. Only the groups in `current` matter, not its
    numbers.
    """
    there = current != ABSENT
    found = by_first_appearance(current[there])
    count = int(found.max(initial=-1)) + 1
    if count > clusters or previous.max(initial=-1) >= clusters:
        raise ValueError(f"{count} clusters and labels {np.unique(previous)} in {clusters} numbers")

    shared = np.zeros((count, clusters), np.int64)
    both = previous[there] != ABSENT
    np.add.at(shared, (found[both], previous[there][both]), 1)
    numbers = np.full(count, ABSENT, np.int64)
    rows, columns = linear_sum_assignment(shared, maximize=True)
    same = shared[rows, columns] > 0
    numbers[rows[same]] = columns[same]

    new = numbers == ABSENT
    free = np.setdiff1d(np.arange(clusters), numbers)
    free = free[np.argsort(np.isin(free, previous), kind="stable")]  # never used ones first
    numbers[new] = free[: int(new.sum())]
    matched = np.full(len(current), ABSENT, np.int64)
    matched[there] = numbers[found]
    return matched


def clusters_of_before(labels: Sequence[int]) -> Labels:
    """Clusters of the round before, numbered 0, 1, …, for a round's clients: [N] → [N].

    labels: ABSENT for a client that was not there, which becomes a cluster of its own: so it says
    nothing about the clusters of others.
    """
    before = np.array(labels, np.int64)
    newcomers = before == ABSENT
    before[newcomers] = before.max(initial=ABSENT) + 1 + np.arange(newcomers.sum())
    return by_first_appearance(before)
