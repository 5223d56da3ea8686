"""Hold out a share of a client's images or sequences, class by class."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Places = NDArray[np.int64]  # in the pool, or in one split of it


def held_out_counts(counts: Counts, share: float, rng: Generator) -> Counts:
    """Return how many samples of each class to hold out, [C], for a share of all samples.

    The total is rounded once, and the largest remainders get the rest, ties at random. (Rounding
    each class alone could hold out nothing if there are many small classes.) At least one sample
    of each class stays.
    """
    exact = share * counts
    held_out: Counts = np.floor(exact + 1e-9).astype(np.int64)
    remainders = np.where(held_out + 1 < counts, exact - held_out, 0.0).round(9)
    order = np.lexsort([rng.random(len(counts)), -remainders])
    more = int(np.floor(exact.sum() + 0.5)) - int(held_out.sum())
    held_out[order[: min(more, int((remainders > 0).sum()))]] += 1
    return held_out


def split_off(
    places: Places, labels: NDArray[np.int64], share: float, rng: Generator
) -> tuple[Places, Places]:
    """Return the places that stay and the places held out, class by class, both ascending.

    places: [n]. labels: [n], the class at each place.
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
