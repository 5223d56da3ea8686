"""The share of a client's images or sequences that is held out, class by class."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Places = NDArray[np.int64]  # in the pool, or in one split of it


def held_out_counts(counts: Counts, share: float, rng: Generator) -> Counts:
    """[C] how many of each class to hold out: the share of all, spread over the classes.

    Rounded as a whole, largest remainders first and chance among equals: rounded class by class, a
    few of each of many classes would be none in all. The last one of a class stays.
    """
    exact = share * counts
    whole: Counts = np.floor(exact + 1e-9).astype(np.int64)
    remainders = np.where(whole + 1 < counts, exact - whole, 0.0).round(9)
    order = np.lexsort([rng.random(len(counts)), -remainders])
    more = int(np.floor(exact.sum() + 0.5)) - int(whole.sum())
    whole[order[: min(more, int((remainders > 0).sum()))]] += 1
    return whole


def split_off(
    places: Places, labels: NDArray[np.int64], share: float, rng: Generator
) -> tuple[Places, Places]:
    """What stays of these, and what is held out, class by class, places ascending.

    places: [n]. labels: [n], of these.
    """
    if not places.size:
        return places, places
    counts = np.bincount(labels)
    shuffled = rng.permutation(len(places))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    first = np.cumsum(counts) - counts
    turn = np.arange(len(places)) - first[labels[by_class]]  # within its class
    held_out = turn < held_out_counts(counts, share, rng)[labels[by_class]]
    return np.sort(places[by_class[~held_out]]), np.sort(places[by_class[held_out]])
