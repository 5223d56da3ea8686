"""What a pool of images holds, and what a partition of it would come to, before any training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.images.cifar import LAYOUTS
from fedproto_app.data.images.clients import partition_pool, why_refused
from fedproto_app.data.images.decoding import SUFFIXES
from fedproto_app.data.images.pool import ImagePool, ImageSplit, Positions
from fedproto_app.randomness import numpy_stream
from fedproto_app.settings import DataSettings

Counts = NDArray[np.int64]

MOST_DECODED = 5000  # images; of more, so many drawn at random
_BYTES_AT_ONCE = 2**26  # of pixels, which bounds the memory that decoding takes
_LAYOUTS_OF_FOLDERS = ("train", "stage-*/train", "*/train", "*/stage-*/train")


@dataclass(frozen=True)
class PoolInspection:
    """What a pool holds.

    train, test: [C] images of each class. clients: names, ascending, and stages: how many, where
    the source knows them. decoded: images whose pixels were looked at. corrupt: of those, the
    names of the ones that cannot be read, and why.
    """

    train: Counts
    test: Counts
    clients: tuple[str, ...] | None
    stages: int | None
    decoded: int
    corrupt: Mapping[str, str]

    @property
    def images(self) -> int:
        """Train and test images of all classes."""
        return int(self.train.sum() + self.test.sum())


@dataclass(frozen=True)
class PartitionInspection:
    """What each client would hold: by its name [M, C] images of its stages and of each class.

    refused: the reason for each client that a run would leave out.
    """

    train: Mapping[str, Counts]
    validation: Mapping[str, Counts]
    test: Mapping[str, Counts]
    refused: Mapping[str, str]

    @property
    def dealt(self) -> Counts:
        """[C] train images of all clients and stages."""
        held: Counts = np.stack([table.sum(axis=0) for table in self.train.values()]).sum(axis=0)
        return held

    @property
    def holders(self) -> Counts:
        """[C] clients that train on each class at some stage."""
        held: Counts = np.stack([table.any(axis=0) for table in self.train.values()]).sum(axis=0)
        return held

    @property
    def distinct_classes(self) -> Counts:
        """[N] classes that each client trains on at some stage."""
        return np.array([table.any(axis=0).sum() for table in self.train.values()])


def inspect_pool(pool: ImagePool) -> PoolInspection:
    """Count the images, and decode them, or `MOST_DECODED` drawn at random, always the same.

    Raises `DataError` for an image that may be readable but does not fit the others.
    """
    classes, (train, test) = len(pool.classes), (len(pool.train.labels), len(pool.test.labels))
    looked_at = np.arange(train + test)
    if len(looked_at) > MOST_DECODED:
        rng = numpy_stream(0, "data check", "images")
        looked_at = np.sort(rng.choice(looked_at, MOST_DECODED, replace=False))
    corrupt = {
        **_corrupt(pool.train, looked_at[looked_at < train], pool.shape),
        **_corrupt(pool.test, looked_at[looked_at >= train] - train, pool.shape),
    }
    clients = stages = None
    if pool.train.clients is not None and pool.test.clients is not None:
        names = np.unique(np.concatenate([pool.train.clients, pool.test.clients]))
        clients = tuple(str(name) for name in names)
    if pool.train.stages is not None and pool.test.stages is not None:
        stages = 1 + int(max(pool.train.stages.max(), pool.test.stages.max()))
    return PoolInspection(
        np.bincount(pool.train.labels, minlength=classes),
        np.bincount(pool.test.labels, minlength=classes),
        clients,
        stages,
        len(looked_at),
        corrupt,
    )


def _corrupt(split: ImageSplit, places: Positions, shape: tuple[int, ...]) -> dict[str, str]:
    """Why, by name, of those of these images that cannot be read."""
    return {
        split.names[part[row]]: reason
        for part in _parts(places, max(1, _BYTES_AT_ONCE // prod(shape)))
        for row, reason in split.load(part).corrupt.items()
    }


def _parts(places: Positions, size: int) -> Iterator[Positions]:
    for first in range(0, len(places), size):
        yield places[first : first + size]


def inspect_partition(pool: ImagePool, settings: DataSettings, seed: int) -> PartitionInspection:
    """Deal the images as a run with these settings and this seed would.

    Raises `DataError` if they are too few.
    """
    holdings = partition_pool(pool, settings, seed)
    reasons = {
        holding.name: why_refused(holding.stages, settings.partition) for holding in holdings
    }

    def counts(labels: Positions, parts: list[Positions]) -> Counts:
        return np.stack([np.bincount(labels[part], minlength=len(pool.classes)) for part in parts])

    train, test = pool.train.labels, pool.test.labels
    return PartitionInspection(
        {one.name: counts(train, [stage.train for stage in one.stages]) for one in holdings},
        {one.name: counts(train, [stage.validation for stage in one.stages]) for one in holdings},
        {one.name: counts(test, [stage.test for stage in one.stages]) for one in holdings},
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def image_source_of(path: Path) -> str | None:
    """The source of images that reads this path, or None; told from names, not from contents."""
    if path.is_dir():
        if any((path / file).exists() for layout in LAYOUTS.values() for file in layout.files):
            return "cifar"
        return "class-folders" if _has_class_folders(path) else None
    name = path.name.lower()
    if name.endswith(".zip"):
        return "class-folders"
    return "image-npz" if name.endswith(".npz") and _has_image_arrays(path) else None


def _has_class_folders(folder: Path) -> bool:
    return any(
        file.suffix.lower() in SUFFIXES
        for layout in _LAYOUTS_OF_FOLDERS
        for file in folder.glob(f"{layout}/*/*")
    )


def _has_image_arrays(path: Path) -> bool:
    try:
        with ZipFile(path) as archive:
            return "x_train.npy" in archive.namelist()
    except (OSError, BadZipFile, NotImplementedError):
        return False  # its reader will say what is wrong with it
