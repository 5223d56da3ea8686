"""Which cluster of one round is which of another, and how alike two clusterings are.

Fed-REACT keeps a model for "cluster c" over the rounds (section 3.3), but a clustering numbers its
clusters anew each time. Shapes: N clients, one label each.
"""

from __future__ import annotations

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
    or else the lowest that is free now. Only who is with whom in `current` matters, not its
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


def rand_index(labels: Labels, truth: Labels) -> float:
    """(TP + TN) / TOT, the share of pairs of clients on which two clusterings agree (sec. 4.1.2).

    labels, truth: [N]. 1.0 for fewer than two clients, where there is no pair.
    """
    total = len(labels) * (len(labels) - 1) // 2
    if total == 0:
        return 1.0
    both = _pairs(np.stack([labels, truth]))
    apart = total - _pairs(labels[None]) - _pairs(truth[None]) + both
    return (both + apart) / total


def _pairs(labels: Labels) -> int:
    """How many pairs of the clients [·, N] are alike in every row."""
    _, counts = np.unique(labels, axis=1, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())
