"""A client's validation and test images: of the classes that it trains on, in their proportions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Places = NDArray[np.int64]  # of images in one split of the pool


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
