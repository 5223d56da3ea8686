"""How many images of each class every client gets at every stage, before any image is chosen."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.images.long_tail import (
    class_quotas,
    draw_classes,
    draw_fair_classes,
    equal_share,
)
from fedproto_app.data.mixes import spread
from fedproto_app.settings import PartitionSettings

Counts = NDArray[np.int64]

_LEAST_WEIGHT = 1e-9  # Dirichlet shares can be so small that they are 0


def draw_shares(counts: Counts, rows: int, settings: PartitionSettings, rng: Generator) -> Counts:
    """[R, C] train images of each class for each row (a client at a stage).

    counts: [C] images to deal. All rows sum to the same number, the largest there can be if
    ``samples`` = 0. Raises `DataError` if there are too few images or classes.
    """
    if settings.scheme == "dirichlet":
        drawn = rng.dirichlet(np.full(len(counts), settings.alpha), rows)
        weights = np.maximum(drawn, _LEAST_WEIGHT)
        least = np.zeros(weights.shape, dtype=np.int64)
    else:
        held = _draw_classes(counts, rows, settings, rng)
        least = held.astype(np.int64)
        if settings.class_draw == "uniform":
            weights = held * counts.astype(np.float64)
        else:  # sizes have had their say in the draw: each row has a mix of its own
            weights = held * rng.exponential(size=held.shape).clip(min=_LEAST_WEIGHT)
    if settings.samples > 0:
        return _shared(weights, least, counts, settings.samples)
    if settings.scheme == "dirichlet":
        images = int(counts.sum()) // rows
        _require(images >= 1, counts, rows, settings)
    else:
        images = equal_share(held, counts)
    return spread(weights, least, images, counts)


def _draw_classes(
    counts: Counts, rows: int, settings: PartitionSettings, rng: Generator
) -> NDArray[np.bool_]:
    """[R, C] the S classes of each row."""
    classes = settings.classes
    if classes > len(counts):
        raise DataError(
            f"data.partition.classes = {classes}: the images have only {len(counts)} classes "
            "(--classes-per-stage of fedproto data check)"
        )
    if settings.samples > 0:
        if settings.samples < classes:
            raise DataError(
                f"data.partition.samples = {settings.samples}: fewer than one image for each of "
                f"data.partition.classes = {classes}"
            )
        # Rows may share images, so a class may be held by more rows than it has images.
        return draw_classes(
            class_quotas(counts * rows, rows, classes)
            if settings.class_draw == "by-size"
            else np.full_like(counts, rows),
            rows,
            classes,
            rng,
        )
    _require(np.minimum(counts, rows).sum() >= rows * classes, counts, rows, settings)
    by_size = settings.class_draw == "by-size"
    limits = class_quotas(counts, rows, classes) if by_size else counts
    return draw_fair_classes(limits, counts, rows, classes, rng)


def _require(
    enough: bool | np.bool_, counts: Counts, rows: int, settings: PartitionSettings
) -> None:
    if enough:
        return
    classes = f"classes = {settings.classes}, " if settings.scheme == "long-tail" else ""
    raise DataError(
        f"data.partition: too few images: {counts.sum()} ({counts.min()} … {counts.max()} a "
        f"class) cannot give each of {rows} client stages an image of each of its classes; "
        f"clients = {settings.clients}, {classes}stages = {settings.stages}, "
        f"imbalance-factor = {settings.imbalance_factor:g}"
    )


def _shared(weights: NDArray[np.float64], least: Counts, counts: Counts, samples: int) -> Counts:
    """[R, C] as if each row were alone; fewer than `samples` if its classes have no more."""
    rows = []
    for weight, lowest in zip(weights[:, None], least[:, None], strict=True):
        images = min(samples, int(counts[weight[0] > 0].sum()))
        rows.append(spread(weight, lowest, images, counts))
    return np.concatenate(rows)
