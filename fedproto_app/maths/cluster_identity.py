"""Match the clusters of one round with the clusters of another.

A "cluster c" has a head over the rounds (Fed-REACT, Algorithm 2, lines 10 to 12), but each
clustering numbers its clusters from scratch. Shapes: N clients, one label each.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedproto_app.maths.clustering import Labels, by_first_appearance

ABSENT = -1  # the label of an absent client


def match_labels(previous: Labels, current: Labels, clusters: int) -> Labels:
    """Renumber `current` to agree with `previous` on as many clients as possible: [N].

    previous, current: [N], ABSENT for an absent client. clusters: the available numbers are
    0 … clusters−1, with clusters = C, or MOST_CLUSTERS if the silhouette chooses. Raises ValueError
    if they do not suffice. The matching is one to one. A cluster without shared clients is new: it
    takes the lowest number that `previous` does not have, or else the lowest free number. Only the
    groups in `current` matter, not its numbers.
    """
    present = current != ABSENT
    labels = by_first_appearance(current[present])
    count = int(labels.max(initial=-1)) + 1
    if count > clusters or previous.max(initial=-1) >= clusters:
        raise ValueError(f"{count} clusters and labels {np.unique(previous)} in {clusters} numbers")

    shared = np.zeros((count, clusters), np.int64)
    returning = previous[present] != ABSENT
    np.add.at(shared, (labels[returning], previous[present][returning]), 1)
    numbers = np.full(count, ABSENT, np.int64)
    rows, columns = linear_sum_assignment(shared, maximize=True)
    matches = shared[rows, columns] > 0
    numbers[rows[matches]] = columns[matches]

    new = numbers == ABSENT
    free = np.setdiff1d(np.arange(clusters), numbers)
    free = free[np.argsort(np.isin(free, previous), kind="stable")]  # never used ones first
    numbers[new] = free[: int(new.sum())]
    matched = np.full(len(current), ABSENT, np.int64)
    matched[present] = numbers[labels]
    return matched


def clusters_of_before(labels: Sequence[int]) -> Labels:
    """Return the clusters of the previous round, numbered 0, 1, …, for a round's clients: [N].

    labels: ABSENT for an absent client. Such a client forms a cluster alone, so that it does not
    affect the other clusters.
    """
    before = np.array(labels, np.int64)
    newcomers = before == ABSENT
    before[newcomers] = before.max(initial=ABSENT) + 1 + np.arange(newcomers.sum())
    return by_first_appearance(before)
