"""Train images that no client gets: as many of each class, put aside before anything is dealt."""

from __future__ import annotations

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.images.partition import Holding, Places, Stage
from fedproto_app.data.images.pool import ImagePool


def reserved_places(pool: ImagePool, per_class: int, seed: int) -> Places:
    """[C·n] places in the train split of n = `per_class` images of each class, ascending.

    They come from a stream of their own, so they are the same for every method and scheme. Raises
    `DataError` if a class would have no image left to deal.
    """
    if per_class == 0:
        return np.empty(0, dtype=np.int64)
    counts = np.bincount(pool.train.labels, minlength=len(pool.classes))
    if (counts <= per_class).any():
        poorest = int(counts.argmin())
        raise DataError(
            f"data.partition.reserve-per-class = {per_class}: class {pool.classes[poorest]!r} has "
            f"{counts[poorest]} train images, so none would be left to deal; at most "
            f"{max(0, counts[poorest] - 1)}"
        )
    rng = numpy_stream(seed, "partition", "reserve")
    places = [
        rng.choice(np.flatnonzero(pool.train.labels == label), per_class, replace=False)
        for label in range(len(pool.classes))
    ]
    reserved: Places = np.sort(np.concatenate(places))
    return reserved


def placed(holding: Holding, kept: Places) -> Holding:
    """A holding drawn among the train images at these places, in places of the whole split."""
    stages = (Stage(kept[one.train], kept[one.validation], one.test) for one in holding.stages)
    return Holding(holding.name, tuple(stages))
