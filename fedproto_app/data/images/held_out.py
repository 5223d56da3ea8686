"""Images held out for validation, and a client's validation and test images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Places = NDArray[np.int64]  # of images in one split of the pool


def validation_counts(counts: Counts, share: float, rng: Generator) -> Counts:
    """[C] how many images of each class to hold out: the share of all, spread over the classes.

    Rounded as a whole, largest remainders first and chance among equals: rounded class by class, a
    few images of each of many classes would be none in all. The last image of a class stays.
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
    """The train and the validation part of these images, class by class, places ascending.

    places: [n]. labels: [n], of these images.
    """
    if not places.size:
        return places, places
    counts = np.bincount(labels)
    shuffled = rng.permutation(len(places))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    first = np.cumsum(counts) - counts
    turn = np.arange(len(places)) - first[labels[by_class]]  # within its class
    held_out = turn < validation_counts(counts, share, rng)[labels[by_class]]
    return np.sort(places[by_class[~held_out]]), np.sort(places[by_class[held_out]])


def images_of_the_same_mix(
    pool: Sequence[Places], shares: Counts, ratio: float, rng: Generator
) -> list[Places]:
    """Evaluation images of one client's stages in the proportions of its train images.

    pool: [C] lists of images. shares: [M, C] train images. ratio: evaluation images a train image;
    fewer of all classes where one class of the stage has too few, but one of each at least, as
    long as there is any. A stage repeats images of the last ones only when all have had a turn.
    """
    sizes = np.array([len(places) for places in pool])
    turns = [rng.permutation(places) for places in pool]
    first = np.zeros_like(sizes)
    drawn = []
    for share in shares:
        there = (share > 0) & (sizes > 0)
        fitting = min(ratio, *(sizes[there] / share[there])) if there.any() else ratio
        wanted = np.floor(fitting * share + 0.5 + 1e-9).astype(np.int64)
        wanted = np.where(there, np.clip(wanted, 1, sizes), 0)
        own = [
            turn[(k + np.arange(n)) % max(len(turn), 1)]
            for turn, k, n in zip(turns, first, wanted, strict=True)
        ]
        first += wanted
        drawn.append(np.sort(np.concatenate(own)))
    return drawn
