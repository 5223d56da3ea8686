"""Draw how many images of each class a client trains on at a stage.

A *row* is one client at one stage. The long tail, S classes a row and equal sample counts are the
setting of GLDP (docs/gldp.md); Dirichlet mixes are drawn as by Hsu et al. 2019.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.mixes import spread
from fedproto_app.settings import PartitionSettings

Counts = NDArray[np.int64]
ClassMask = NDArray[np.bool_]

_LEAST_WEIGHT = 1e-9  # Dirichlet shares can be so small that they are 0


def long_tail_counts(available: Counts, imbalance_factor: float) -> Counts:
    """Return n_c = ⌊n_max · IF^(−c/(C−1))⌋, at least 1, the images kept of each class, [C].

    available: [C] images of each class. n_max is the smallest of them, so that every class can
    follow the profile. Class 0 is the largest.
    """
    largest, classes = int(available.min()), len(available)
    exponents = np.arange(classes) / max(classes - 1, 1)
    counts = np.floor(largest * imbalance_factor**-exponents + 1e-9)  # 27 may come out as 26.99…
    return np.maximum(counts, 1).astype(np.int64)


def draw_shares(counts: Counts, rows: int, settings: PartitionSettings, rng: Generator) -> Counts:
    """Draw the train images of each class for each row, [R, C].

    counts: [C] images to deal. All rows sum to the same number, the largest possible if
    ``samples`` = 0; else to ``samples``, or to all images of the row's classes if these are fewer.
    Raises `DataError` if there are too few images or classes.
    """
    if settings.scheme == "dirichlet":
        drawn = rng.dirichlet(np.full(len(counts), settings.alpha), rows)
        weights = np.maximum(drawn, _LEAST_WEIGHT)
        least = np.zeros(weights.shape, dtype=np.int64)
    else:
        mask = _draw_classes(counts, rows, settings, rng)
        least = mask.astype(np.int64)
        if settings.class_draw == "uniform":
            weights = mask * counts.astype(np.float64)
        else:  # the draw has followed the class sizes already; each row's mix is drawn separately
            weights = mask * rng.exponential(size=mask.shape).clip(min=_LEAST_WEIGHT)
    if settings.samples > 0:  # rows may share images, so each is dealt as if it were alone
        sizes = [min(settings.samples, int(counts[weight > 0].sum())) for weight in weights]
        parts = zip(weights[:, None], least[:, None], sizes, strict=True)
        return np.concatenate([spread(*part, counts) for part in parts])
    if settings.scheme == "dirichlet":
        images = int(counts.sum()) // rows
        _require(images >= 1, counts, rows, settings)
    else:
        images = equal_share(mask, counts)
    return spread(weights, least, images, counts)


def _draw_classes(
    counts: Counts, rows: int, settings: PartitionSettings, rng: Generator
) -> ClassMask:
    """Draw the S classes of each row, [R, C], after checking that there are enough."""
    classes, limits = settings.classes, counts
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
        limits = counts * rows  # rows may share images, so each image counts for every row
    _require(np.minimum(limits, rows).sum() >= rows * classes, counts, rows, settings)
    if settings.class_draw == "by-size":
        limits = class_quotas(limits, rows, classes)
    return draw_classes(limits, rows, classes, rng)


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


def class_quotas(counts: Counts, rows: int, classes: int) -> Counts:
    """Return how many rows have each class if its chances follow its size, [C], Σ = R·S.

    As if the images were sorted by class, cut into R·S equal shards and each row given S shards
    of different classes (McMahan et al. 2017, with a long tail). A class so large that some row
    would get it twice is in every row instead, and the others share the rest. Every class is in at
    least one row, and in no more rows than it has images; the caller checks
    Σ min(n_c, R) ≥ R·S.
    """
    limits = np.minimum(counts, rows)
    quotas = np.ones_like(counts)
    while (missing := rows * classes - quotas.sum()) > 0:
        growing = quotas < limits
        share = np.where(growing, counts, 0)
        grown = quotas + missing * share / share.sum()
        rounded = np.minimum(np.floor(grown).astype(np.int64), limits)
        if (rounded == quotas).all():  # less than one each is left: the largest remainders
            order = np.argsort(np.where(growing, quotas - grown, np.inf), kind="stable")
            rounded[order[: min(missing, growing.sum())]] += 1
        quotas = rounded
    return quotas


def draw_classes(limits: Counts, rows: int, classes: int, rng: Generator) -> ClassMask:
    """Draw the S classes of each row, [R, C], uniformly except for what the limits forbid.

    limits: [C] the most rows that can have a class; the caller checks Σ min(limit, R) ≥ R·S.
    Every class is in some row if R·S ≥ C.
    """
    limits = np.minimum(limits, rows)
    mask = np.zeros((rows, len(limits)), dtype=np.bool_)
    for row in mask:
        row[rng.choice(len(limits), classes, replace=False)] = True
    holders = mask.sum(axis=0)
    while (over := holders > limits).any():
        _move(mask, _random_place(over, rng), _random_place(holders < limits, rng), rng)
        holders = mask.sum(axis=0)
    while (holders == 0).any() and (holders > 1).any():
        _move(mask, _random_place(holders > 1, rng), _random_place(holders == 0, rng), rng)
        holders = mask.sum(axis=0)
    return mask


def _random_place(mask: ClassMask, rng: Generator) -> int:
    return int(rng.choice(np.flatnonzero(mask)))


def _move(mask: ClassMask, source: int, target: int, rng: Generator) -> None:
    """Let one row fewer have the class `source` and one more the class `target`, in place."""
    if (able := mask[:, source] & ~mask[:, target]).any():
        mask[_random_place(able, rng), [source, target]] = False, True
        return
    # Every row with `source` has `target` too: a row without `target` takes it and passes on, in
    # exchange, a class that the first row lacks. There is one, as both have S classes.
    first, second = _random_place(mask[:, source], rng), _random_place(~mask[:, target], rng)
    exchanged = _random_place(mask[second] & ~mask[first], rng)
    mask[first, [source, exchanged]] = False, True
    mask[second, [exchanged, target]] = False, True


def equal_share(mask: ClassMask, counts: Counts) -> int:
    """Return the largest n such that every row can have n images, at least one of each class.

    mask: [R, C], S classes in every row. counts: [C] images, at least one for each row of the
    class. A number is possible if the maximum flow from rows to classes fills every row.
    """
    from scipy.sparse import coo_array, csr_array
    from scipy.sparse.csgraph import maximum_flow

    rows, classes = mask.shape
    row, column = np.nonzero(mask)
    source, sink = rows + classes, rows + classes + 1
    tails = np.concatenate([np.full(rows, source), row, rows + np.arange(classes)])
    heads = np.concatenate([np.arange(rows), rows + column, np.full(classes, sink)])
    spare = counts - mask.sum(axis=0)

    def is_possible(images: int) -> bool:
        row_sums = images - mask.sum(axis=1)
        limits = np.concatenate([row_sums, spare[column], spare]).astype(np.int32)
        edges: Any = (limits, (tails, heads))
        network = csr_array(coo_array(edges, shape=(sink + 1, sink + 1)))
        return bool(maximum_flow(network, source, sink).flow_value == row_sums.sum())

    low, high = int(mask[0].sum()), int(counts.sum()) // rows
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_possible(middle) else (low, middle - 1)
    return low
