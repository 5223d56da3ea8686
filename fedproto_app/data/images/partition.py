"""Partition images among clients and stages, by a drawing scheme or as the source gives them.

Only labels are read. Everything is drawn from streams of the seed, so every node that loads the
same images makes the same clients, whichever of them it hosts. A *row* is one client at one stage.
The long tail, S classes per row and equal sample counts make up the setting [N, S, M] of GLDP.
docs/gldp.md explains it, with the details that the paper leaves open. Dirichlet mixes are drawn as
in Hsu et al. 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.images.pool import ImagePool, ImageSplit
from fedproto_app.data.mixes import (
    LEAST_WEIGHT,
    client_names,
    deal,
    dirichlet_mixes,
    held_out_counts,
    split_off,
    spread,
)
from fedproto_app.data.source_checks import chosen
from fedproto_app.settings import DataSettings, PartitionSettings

Counts = NDArray[np.int64]
Column = NDArray[np.str_] | NDArray[np.int64]  # a value for each image
Places = NDArray[np.int64]  # places of images in one split of the pool
ClassMask = NDArray[np.bool_]


@dataclass(frozen=True)
class Stage:
    """The places of a row's images, ascending.

    train and validation are places in the pool's train split, test in its test split.
    """

    train: Places
    validation: Places
    test: Places


@dataclass(frozen=True)
class Holding:
    """The images of a client at each stage, in the order of time."""

    name: str
    stages: tuple[Stage, ...]

    @property
    def trained(self) -> Places:
        """The places of the train and validation images of all stages."""
        return np.concatenate([p for s in self.stages for p in (s.train, s.validation)])

    @property
    def tested(self) -> Places:
        """The places of the test images of all stages."""
        return np.concatenate([stage.test for stage in self.stages])


def partition_pool(pool: ImagePool, settings: DataSettings, seed: int) -> list[Holding]:
    """Return the images of each client according to `data.partition`. No pixels are read.

    Raises `DataError` if the pool has too few images or classes.
    """
    train, test, partition = pool.train, pool.test, settings.partition
    reserved = reserved_places(pool, partition.reserve_per_class, seed)
    dealt = np.setdiff1d(np.arange(len(train.labels)), reserved, assume_unique=True)
    if partition.scheme == "given":
        holdings = given_partition(train.part(dealt), test, partition, seed, settings.title)
    else:
        classes = len(pool.classes)
        holdings = draw_partition(train.labels[dealt], test.labels, classes, partition, seed)
    holdings = [  # from places among the dealt images to places in the whole split
        Holding(
            holding.name,
            tuple(Stage(dealt[s.train], dealt[s.validation], s.test) for s in holding.stages),
        )
        for holding in holdings
    ]
    return chosen(
        holdings, lambda holding: holding.name, settings, settings.path or settings.source
    )


def reserved_places(pool: ImagePool, per_class: int, seed: int) -> Places:
    """Draw n = `per_class` train images of each class that no client gets, [C·n], ascending.

    They are drawn from a separate stream, so they are the same for every method and scheme. Raises
    `DataError` if a class would have no image left to deal.
    """
    if per_class == 0:
        return np.empty(0, dtype=np.int64)
    counts = np.bincount(pool.train.labels, minlength=len(pool.classes))
    if (counts <= per_class).any():
        rarest = int(counts.argmin())
        raise DataError(
            f"data.partition.reserve-per-class = {per_class}: class {pool.classes[rarest]!r} has "
            f"{counts[rarest]} train images, so none would be left to deal; at most "
            f"{max(0, counts[rarest] - 1)}"
        )
    rng = numpy_stream(seed, "partition", "reserve")
    places = [
        rng.choice(np.flatnonzero(pool.train.labels == label), per_class, replace=False)
        for label in range(len(pool.classes))
    ]
    reserved: Places = np.sort(np.concatenate(places))
    return reserved


def draw_partition(
    train_labels: NDArray[np.int64],
    test_labels: NDArray[np.int64],
    num_classes: int,
    settings: PartitionSettings,
    seed: int,
) -> list[Holding]:
    """Return the clients of the schemes "long-tail" and "dirichlet".

    train_labels: [n]. test_labels: [m]. All rows get the same number of train images. The
    validation and the test images have the proportions of a row's train classes. With ``test_mix =
    "everybody"``, the test images have the proportions of all rows together. No train image is
    dealt twice, unless ``samples`` > 0. Then rows may share images, and a row whose classes have
    fewer images gets all images of its classes. Raises `DataError` if there are too few images.
    """
    if settings.scheme == "given":
        raise ValueError("a given partition is not drawn: given_partition")
    rng = numpy_stream(seed, "partition", settings.scheme)
    train = _by_class(train_labels, num_classes, "train", rng)
    test = _by_class(test_labels, num_classes, "test", rng)
    available = np.array([len(places) for places in train])
    held_out = held_out_counts(available, settings.validation_share, rng)
    counts = available - held_out
    if settings.scheme == "long-tail" or settings.imbalance_factor > 1:
        counts = long_tail_counts(counts, settings.imbalance_factor)
    pool = [places[k : k + n] for places, k, n in zip(train, held_out, counts, strict=True)]
    validation = [places[:k] for places, k in zip(train, held_out, strict=True)]

    rows = settings.clients * settings.stages
    shares = draw_shares(counts, rows, settings, rng)  # [R, C]
    if settings.samples > 0:  # rows are drawn independently, so they may have images in common
        parts = [_drawn(pool, share, rng) for share in shares]
    else:
        parts = deal(pool, shares)
    test_shares, test_ratio = shares, settings.test_ratio
    if settings.test_mix == "everybody":  # as many test images as with the row's own mix
        test_shares = np.broadcast_to(shares.sum(axis=0), shares.shape)
        test_ratio /= rows
    holdings = []
    for number, name in enumerate(client_names(settings.clients)):
        stages = slice(number * settings.stages, (number + 1) * settings.stages)
        rng = numpy_stream(seed, "partition", settings.scheme, name)
        splits = zip(
            parts[stages],
            images_of_the_same_mix(validation, shares[stages], settings.test_ratio, rng),
            images_of_the_same_mix(test, test_shares[stages], test_ratio, rng),
            strict=True,
        )
        holdings.append(Holding(name, tuple(Stage(*split) for split in splits)))
    return holdings


def _by_class(
    labels: NDArray[np.int64], num_classes: int, split: str, rng: Generator
) -> list[Places]:
    """Return the shuffled places of each class's images, [C] lists."""
    if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
        raise DataError(
            f"{split} labels {labels.min()} … {labels.max()}: expected 0 … {num_classes - 1}"
        )
    missing = np.flatnonzero(np.bincount(labels, minlength=num_classes) == 0)
    if missing.size:
        raise DataError(
            f"class {missing[0]} has no {split} image ({missing.size} of {num_classes} classes "
            "have none); every class needs one to be dealt to clients"
        )
    return [rng.permutation(np.flatnonzero(labels == label)) for label in range(num_classes)]


def _drawn(pool: Sequence[Places], share: Counts, rng: Generator) -> Places:
    """Draw a row's images, ascending, from the pool's [C] lists of images."""
    images = [rng.choice(places, n, replace=False) for places, n in zip(pool, share, strict=True)]
    return np.sort(np.concatenate(images))


def images_of_the_same_mix(
    pool: Sequence[Places], shares: Counts, ratio: float, rng: Generator
) -> list[Places]:
    """Draw evaluation images of one client's stages in the proportions of its train images.

    pool: [C] lists of images. shares: [M, C], numbers of train images. ratio: evaluation images per
    train image. If one class of a stage has too few images, fewer are drawn of all its classes, but
    at least one of each class in the pool. A stage repeats images of earlier stages only when all
    images of the class have been used.
    """
    sizes = np.array([len(places) for places in pool])
    shuffled = [rng.permutation(places) for places in pool]
    first = np.zeros_like(sizes)
    drawn = []
    for share in shares:
        present = (share > 0) & (sizes > 0)
        fitting = min(ratio, *(sizes[present] / share[present])) if present.any() else ratio
        numbers = np.floor(fitting * share + 0.5 + 1e-9).astype(np.int64)
        numbers = np.where(present, np.clip(numbers, 1, sizes), 0)
        images = [
            places[(k + np.arange(n)) % max(len(places), 1)]
            for places, k, n in zip(shuffled, first, numbers, strict=True)
        ]
        first += numbers
        drawn.append(np.sort(np.concatenate(images)))
    return drawn


def long_tail_counts(available: Counts, imbalance_factor: float) -> Counts:
    """Return how many images of each class to keep, [C]: n_c = ⌊n_max · IF^(−c/(C−1))⌋, at least 1.

    available: [C], the images of each class. n_max is the smallest of these numbers, so that every
    class can follow the profile. Class 0 is the largest.
    """
    largest, classes = int(available.min()), len(available)
    exponents = np.arange(classes) / max(classes - 1, 1)
    counts = np.floor(largest * imbalance_factor**-exponents + 1e-9)  # 27 may come out as 26.99…
    return np.maximum(counts, 1).astype(np.int64)


def draw_shares(counts: Counts, rows: int, settings: PartitionSettings, rng: Generator) -> Counts:
    """Draw the train images of each class for each row, [R, C].

    counts: [C], how many images there are. If ``samples`` is 0, all rows sum to the same number,
    the largest possible. Otherwise a row sums to ``samples``, or to all images of its classes if
    these are fewer.
    Raises `DataError` if there are too few images or classes.
    """
    if settings.scheme == "dirichlet":
        weights = dirichlet_mixes(len(counts), settings.alpha, rows, rng)
        least = np.zeros(weights.shape, dtype=np.int64)
    else:
        mask = _draw_classes(counts, rows, settings, rng)
        least = mask.astype(np.int64)
        if settings.class_draw == "uniform":
            weights = np.where(mask, counts, 0.0)
        else:  # classes were drawn by their sizes; each row's mix is drawn separately
            drawn = np.maximum(rng.exponential(size=mask.shape), LEAST_WEIGHT)
            weights = np.where(mask, drawn, 0.0)
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
            f"data.partition.classes = {classes}: the images have only {len(counts)} classes"
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
    """Return how many rows have each class if the chance of a class follows its size, [C], Σ = R·S.

    It is as if the images were sorted by class and cut into R·S equal shards, and each row got S
    shards of different classes (McMahan et al. 2017, with a long tail). If a class is so large that
    some row would get it twice, every row has it, and the other classes share the rest. Every class
    is in at least one row, and in no more rows than it has images. The caller checks that
    Σ min(n_c, R) ≥ R·S.
    """
    limits = np.minimum(counts, rows)
    quotas = np.ones_like(counts)
    while (missing := rows * classes - quotas.sum()) > 0:
        growing = quotas < limits
        share = np.where(growing, counts, 0)
        grown = quotas + missing * share / share.sum()
        rounded = np.minimum(np.floor(grown).astype(np.int64), limits)
        if (rounded == quotas).all():  # each class lacks less than one: largest remainders first
            order = np.argsort(np.where(growing, quotas - grown, np.inf), kind="stable")
            rounded[order[: min(missing, growing.sum())]] += 1
        quotas = rounded
    return quotas


def draw_classes(limits: Counts, rows: int, classes: int, rng: Generator) -> ClassMask:
    """Draw the S classes of each row, [R, C], uniformly within the limits.

    limits: [C], how many rows can have each class. The caller checks that Σ min(limit, R) ≥ R·S.
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
    """Give the class `target` to one more row and `source` to one row fewer, in place."""
    if (able := mask[:, source] & ~mask[:, target]).any():
        mask[_random_place(able, rng), [source, target]] = False, True
        return
    # Every row with `source` also has `target`. So a row without `target` takes it, and in exchange
    # gives a row with `source` a class that the latter lacks. There is one, as both have S classes.
    first, second = _random_place(mask[:, source], rng), _random_place(~mask[:, target], rng)
    exchanged = _random_place(mask[second] & ~mask[first], rng)
    mask[first, [source, exchanged]] = False, True
    mask[second, [exchanged, target]] = False, True


def equal_share(mask: ClassMask, counts: Counts) -> int:
    """Return the largest n such that every row can have n images, with one or more of each class.

    mask: [R, C], S classes in every row. counts: [C], how many images a class has, at least one for
    each row that has the class. A number is possible if the maximum flow from rows to classes fills
    every row.
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
        edges = (limits, (tails, heads))
        network = csr_array(coo_array(edges, shape=(sink + 1, sink + 1)))
        return bool(maximum_flow(network, source, sink).flow_value == row_sums.sum())

    low, high = int(mask[0].sum()), int(counts.sum()) // rows
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_possible(middle) else (low, middle - 1)
    return low


def given_partition(
    train: ImageSplit, test: ImageSplit, settings: PartitionSettings, seed: int, default_name: str
) -> list[Holding]:
    """Return the clients and stages that the source gives, in ascending order.

    If the source gives no clients, there is a single client with the default name. If it gives no
    stages, there is a single stage. A client's last stage is its last image's, and earlier
    stages may be empty. If the test images have no clients or stages, each belongs to all clients
    and stages whose train images have the same class. Raises `DataError` if only the test images
    have clients or stages.
    """
    sizes = len(train.labels), len(test.labels)
    names, train_client, test_client = _numbered(
        train.clients, test.clients, sizes, "clients", default_name
    )
    times, train_stage, test_stage = _numbered(train.stages, test.stages, sizes, "stages", "")
    trained = _grouped(train_client, train_stage)
    tested = _grouped(test_client, test_stage)
    last = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(last, train_client, train_stage)
    if test.clients is not None or train.clients is None:
        np.maximum.at(last, test_client, test_stage)
    tests_are_common = test.clients is None or (test.stages is None and len(times) > 1)

    holdings, empty = [], np.empty(0, dtype=np.int64)
    for client, name in enumerate(names):
        rng, stages = numpy_stream(seed, "partition", "given", name), []
        for stage in range(int(last[client]) + 1):
            images = trained.get((client, stage), empty)
            owner = 0 if test.clients is None else client
            tests = tested.get((owner, 0 if test.stages is None else stage), empty)
            if tests_are_common:
                tests = tests[np.isin(test.labels[tests], train.labels[images])]
            parts = split_off(images, train.labels[images], settings.validation_share, rng)
            stages.append(Stage(*parts, tests))
        holdings.append(Holding(name, tuple(stages)))
    return holdings


def _numbered(
    train: Column | None,
    test: Column | None,
    sizes: tuple[int, int],
    kind: str,
    default: str,
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Return the names, ascending, and for each image the number of its name, [n] and [m].

    If there are no names, all numbers are 0.
    """
    zeros = np.zeros(sizes[0], dtype=np.int64), np.zeros(sizes[1], dtype=np.int64)
    if train is None:
        if test is not None:
            raise DataError(f"the test images have {kind}, but the train images have none")
        return [default], *zeros
    combined = train if test is None else np.concatenate([train, test])
    names, numbers = np.unique(combined, return_inverse=True)
    test_numbers = zeros[1] if test is None else numbers[sizes[0] :]
    return [str(name) for name in names], numbers[: sizes[0]], test_numbers


def _grouped(
    clients: NDArray[np.int64], stages: NDArray[np.int64]
) -> dict[tuple[int, int], Places]:
    """Return the places of each client's images at each stage, ascending."""
    import pandas as pd

    groups = pd.DataFrame({"client": clients, "stage": stages}).groupby(["client", "stage"])
    return groups.indices  # type: ignore[return-value]
