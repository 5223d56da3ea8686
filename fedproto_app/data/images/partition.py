"""Which client holds which images at which stage, drawn by a scheme or as the source gives it.

Only labels are looked at. Everything is drawn from streams of the seed, so every node that loads
the same images finds the same clients, whichever of them it hosts. The setting [N, S, M] and what
its source leaves open: docs/gldp.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.held_out import held_out_counts, split_off
from fedproto_app.data.images.long_tail import long_tail_counts
from fedproto_app.data.images.same_mix import images_of_the_same_mix
from fedproto_app.data.images.shares import draw_shares
from fedproto_app.settings import PartitionSettings

Counts = NDArray[np.int64]
Places = NDArray[np.int64]  # of images in one split of the pool


@dataclass(frozen=True)
class Stage:
    """Places of images, ascending. train, validation: in the pool's train split. test: in its
    test split."""

    train: Places
    validation: Places
    test: Places


@dataclass(frozen=True)
class Holding:
    """One client: what it holds at each stage, in the order of time."""

    name: str
    stages: tuple[Stage, ...]


def draw_partition(
    train_labels: NDArray[np.int64],
    test_labels: NDArray[np.int64],
    num_classes: int,
    settings: PartitionSettings,
    seed: int,
) -> list[Holding]:
    """The clients of the schemes "long-tail" and "dirichlet".

    train_labels: [n]. test_labels: [m]. All rows (a client at a stage) get the same number of train
    images, and validation images in the proportions of their own train classes. So are the test
    images, or with ``test_mix = "everybody"`` in the proportions of all rows together. No train
    image is dealt twice, unless ``samples`` > 0: then rows may share images, and a row whose
    classes hold fewer than so many has all of them. Raises `DataError` if there are too few.
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

    fewest = settings.minimum_stages or settings.stages
    stages = rng.integers(fewest, settings.stages, settings.clients, endpoint=True)  # [N]
    shares = draw_shares(counts, int(stages.sum()), settings, rng)  # [R, C]
    parts = _deal(pool, shares, settings.samples > 0, rng)
    holdings, ends = [], np.cumsum(stages)
    digits = max(3, len(str(settings.clients - 1)))
    for number, (first, end) in enumerate(zip(ends - stages, ends, strict=True)):
        name, own = f"client-{number:0{digits}d}", shares[first:end]
        tested, test_ratio = own, settings.test_ratio
        if settings.test_mix == "everybody":  # as many as of its own mix
            tested = np.broadcast_to(shares.sum(axis=0), own.shape)
            test_ratio /= len(shares)
        rng = numpy_stream(seed, "partition", settings.scheme, name)
        splits = zip(
            parts[first:end],
            images_of_the_same_mix(validation, own, settings.test_ratio, rng),
            images_of_the_same_mix(test, tested, test_ratio, rng),
            strict=True,
        )
        holdings.append(Holding(name, tuple(Stage(*split) for split in splits)))
    return holdings


def _by_class(
    labels: NDArray[np.int64], num_classes: int, split: str, rng: Generator
) -> list[Places]:
    """The places of each class's images, shuffled."""
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


def _deal(pool: Sequence[Places], shares: Counts, shared: bool, rng: Generator) -> list[Places]:
    """[R] lists of each row's train images: one after the other, or drawn anew if they may share.

    pool: [C] lists of images, shuffled.
    """
    ends = np.cumsum(shares, axis=0)
    dealt = []
    for first, share in zip(ends - shares, shares, strict=True):
        own = [
            rng.choice(places, n, replace=False) if shared else places[k : k + n]
            for places, k, n in zip(pool, first, share, strict=True)
        ]
        dealt.append(np.sort(np.concatenate(own)))
    return dealt


def given_partition(
    train_labels: NDArray[np.int64],
    test_labels: NDArray[np.int64],
    train_clients: NDArray[Any] | None,
    train_stages: NDArray[Any] | None,
    test_clients: NDArray[Any] | None,
    test_stages: NDArray[Any] | None,
    settings: PartitionSettings,
    seed: int,
    default_name: str,
) -> list[Holding]:
    """Clients and stages as the source gives them, in ascending order of names and of stages.

    train_labels: [n]. test_labels: [m]. clients, stages: of each image, [n] and [m]; None: one
    client with the default name, one stage. A client's stages end with its last image; one before
    may be empty. A test image of no client or stage in particular belongs to all whose train images
    have its class. Raises `DataError` if only the test images have clients or stages.
    """
    sizes = len(train_labels), len(test_labels)
    names, train_client, test_client = _numbered(
        train_clients, test_clients, sizes, "clients", default_name
    )
    times, train_stage, test_stage = _numbered(train_stages, test_stages, sizes, "stages", "")
    train = _grouped(train_client, train_stage)
    test = _grouped(test_client, test_stage)
    last = np.zeros(len(names), dtype=np.int64)
    np.maximum.at(last, train_client, train_stage)
    if test_clients is not None or train_clients is None:
        np.maximum.at(last, test_client, test_stage)
    of_all = test_clients is None or (test_stages is None and len(times) > 1)

    holdings, nothing = [], np.empty(0, dtype=np.int64)
    for client, name in enumerate(names):
        rng, stages = numpy_stream(seed, "partition", "given", name), []
        for stage in range(int(last[client]) + 1):
            own = train.get((client, stage), nothing)
            owner = 0 if test_clients is None else client
            tests = test.get((owner, 0 if test_stages is None else stage), nothing)
            if of_all:
                tests = tests[np.isin(test_labels[tests], train_labels[own])]
            parts = split_off(own, train_labels[own], settings.validation_share, rng)
            stages.append(Stage(*parts, tests))
        holdings.append(Holding(name, tuple(stages)))
    return holdings


def _numbered(
    train: NDArray[Any] | None,
    test: NDArray[Any] | None,
    sizes: tuple[int, int],
    what: str,
    default: str,
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """The names there are, ascending, and the number of each image's; all 0 where not told."""
    zeros = np.zeros(sizes[0], dtype=np.int64), np.zeros(sizes[1], dtype=np.int64)
    if train is None:
        if test is not None:
            raise DataError(f"the test images have {what}, but the train images have none")
        return [default], *zeros
    both = train if test is None else np.concatenate([train, test])
    names, numbers = np.unique(both, return_inverse=True)
    of_test = zeros[1] if test is None else numbers[sizes[0] :]
    return [str(name) for name in names], numbers[: sizes[0]], of_test


def _grouped(
    clients: NDArray[np.int64], stages: NDArray[np.int64]
) -> dict[tuple[int, int], Places]:
    """The places, ascending, of each client's images at each stage."""
    order = np.lexsort([stages, clients])  # stable
    pairs = np.stack([clients[order], stages[order]], axis=1)
    starts = np.flatnonzero(np.diff(pairs, axis=0, prepend=-1).any(axis=1))
    return {
        (int(pairs[start, 0]), int(pairs[start, 1])): part
        for start, part in zip(
            starts, np.split(order, starts[1:]), strict=False
        )  # 0 images: 1 part
    }
