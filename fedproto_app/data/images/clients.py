"""One client's images, stage by stage: what a partition of a pool comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.choice import chosen
from fedproto_app.data.images.partition import Holding, Stage, draw_partition, given_partition
from fedproto_app.data.images.pool import ImagePool, ImageSplit
from fedproto_app.data.images.reserve import placed, reserved_places
from fedproto_app.settings import DataSettings, PartitionSettings

_NAMED = 3  # corrupt images named in a note; the others are counted


@dataclass(frozen=True)
class LabelledImages:
    """pixels: [n, channels, height, width] uint8; labels: [n] int64."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ImageStage:
    """What a client has of one stage."""

    train: LabelledImages
    validation: LabelledImages
    test: LabelledImages


@dataclass(frozen=True)
class ClientImages:
    """The images of one client.

    class_counts: train images, a row a stage and a number a class. note: how many of its images
    were left out as corrupt, or "".
    """

    name: str
    stages: tuple[ImageStage, ...]
    class_counts: tuple[tuple[int, ...], ...]
    note: str = ""
    group: str = ""
    missing_share: float = 0.0

    @property
    def train_samples(self) -> int:
        """Train images of all stages, the client's weight in sample-weighted means."""
        return sum(len(stage.train) for stage in self.stages)

    def trained_stage(self, stage: int) -> int:
        """The stage whose images the client trains on at a stage.

        A stage without images brings nothing new: the client goes on with the last one that had
        any, or begins with the first that will.
        """
        have = [number for number, one in enumerate(self.stages) if len(one.train)]
        return max((number for number in have if number <= stage), default=have[0])

    def training(self, stage: int) -> LabelledImages:
        """What the client trains on at a stage."""
        return self.stages[self.trained_stage(stage)].train


def make_image_clients(
    pool: ImagePool, holdings: Sequence[Holding], settings: DataSettings
) -> tuple[dict[str, ClientImages], dict[str, str]]:
    """These clients of the pool's partition with their pixels, and why some cannot take part.

    Raises `DataError` for a corrupt image, unless `data.corrupt-images` says to skip it.
    """
    train = _Loaded(
        pool.train, [s for h in holdings for one in h.stages for s in (one.train, one.validation)]
    )
    test = _Loaded(pool.test, [one.test for h in holdings for one in h.stages])
    if settings.corrupt_images == "refuse":
        for loaded in (train, test):
            loaded.refuse_corrupt()
    clients: dict[str, ClientImages] = {}
    refused: dict[str, str] = {}
    for holding in holdings:
        client = _client(holding, train, test, len(pool.classes))
        reason = why_refused(client.stages, settings.partition)
        if reason is None:
            clients[client.name] = client
        else:
            refused[client.name] = reason
    return clients, refused


def partition_pool(pool: ImagePool, settings: DataSettings, seed: int) -> list[Holding]:
    """Who holds which images, by `data.partition`; no pixel is looked at.

    Raises `DataError` if the pool's images or classes are too few.
    """
    kept = _unreserved(pool, settings, seed)
    train = pool.train
    if settings.partition.scheme != "given":
        holdings = draw_partition(
            train.labels[kept], pool.test.labels, len(pool.classes), settings.partition, seed
        )
    else:
        holdings = given_partition(
            train.labels[kept],
            pool.test.labels,
            None if train.clients is None else train.clients[kept],
            None if train.stages is None else train.stages[kept],
            pool.test.clients,
            pool.test.stages,
            settings.partition,
            seed,
            settings.title,
        )
    holdings = [placed(holding, kept) for holding in holdings]
    return chosen(holdings, lambda one: one.name, settings, settings.path or settings.source)


def _unreserved(pool: ImagePool, settings: DataSettings, seed: int) -> NDArray[np.int64]:
    """The places of the train images that are there for clients, ascending."""
    reserved = reserved_places(pool, settings.partition.reserve_per_class, seed)
    return np.setdiff1d(np.arange(len(pool.train.labels)), reserved, assume_unique=True)


def reserved_images(pool: ImagePool, settings: DataSettings, seed: int) -> LabelledImages:
    """The train images that `data.partition.reserve-per-class` puts aside, with their pixels.

    Raises `DataError` for a corrupt one, unless `data.corrupt-images` says to skip it.
    """
    places = reserved_places(pool, settings.partition.reserve_per_class, seed)
    return images_at(pool.train, places, settings)


def images_at(
    split: ImageSplit, places: NDArray[np.int64], settings: DataSettings
) -> LabelledImages:
    """The images at these places of a split, without corrupt ones if these are to be skipped."""
    loaded = _Loaded(split, [places])
    if settings.corrupt_images == "refuse":
        loaded.refuse_corrupt()
    return loaded.take(places)


def why_refused(stages: Sequence[ImageStage | Stage], settings: PartitionSettings) -> str | None:
    """Why a client with these stages, loaded or not, cannot take part; None if it can."""
    if not any(len(stage.train) for stage in stages):
        return "no train image"
    if not any(len(stage.test) for stage in stages):
        return "no test image"
    if settings.validation_share > 0 and not any(len(stage.validation) for stage in stages):
        return (
            "no validation image: its train images are too few for data.partition."
            f"validation-share = {settings.validation_share:g}"
        )
    return None


class _Loaded:
    """The pixels of those images of a split that some client holds, each decoded once."""

    def __init__(self, split: ImageSplit, wanted: Sequence[NDArray[np.int64]]) -> None:
        self._split = split
        self._positions = np.unique(np.concatenate(wanted)) if wanted else np.empty(0, np.int64)
        loaded = split.load(self._positions)
        self._pixels = loaded.pixels
        self.corrupt = {int(self._positions[row]): why for row, why in loaded.corrupt.items()}

    def refuse_corrupt(self) -> None:
        """Raise `DataError` naming the first corrupt image, if there is one."""
        for position, reason in self.corrupt.items():
            raise DataError(
                f"{self._split.names[position]}: {reason} ({len(self.corrupt)} corrupt in all; "
                "data.corrupt-images = 'skip' leaves them out)"
            )

    def take(self, positions: NDArray[np.int64]) -> LabelledImages:
        """The images at these positions of the split, without the corrupt ones."""
        good = np.array([p for p in positions if int(p) not in self.corrupt], dtype=np.int64)
        rows = np.searchsorted(self._positions, good)
        return LabelledImages(self._pixels[rows], self._split.labels[good])

    def corrupt_of(self, positions: NDArray[np.int64]) -> list[str]:
        """The names of the corrupt images among these."""
        return [self._split.names[p] for p in positions.tolist() if p in self.corrupt]


def _client(holding: Holding, train: _Loaded, test: _Loaded, classes: int) -> ClientImages:
    stages = tuple(
        ImageStage(train.take(one.train), train.take(one.validation), test.take(one.test))
        for one in holding.stages
    )
    left_out = sorted(
        {
            name
            for one in holding.stages
            for loaded, positions in ((train, one.train), (train, one.validation), (test, one.test))
            for name in loaded.corrupt_of(positions)
        }
    )
    note = ""
    if left_out:
        more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
        named = ", ".join(left_out[:_NAMED])
        note = f"{len(left_out)} corrupt images left out: {named}{more}"
    counts = tuple(
        tuple(np.bincount(stage.train.labels, minlength=classes).tolist()) for stage in stages
    )
    return ClientImages(holding.name, stages, counts, note)
