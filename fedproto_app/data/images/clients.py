"""The images of the clients of a partition, decoded, stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.images.partition import Holding, Stage, reserved_places
from fedproto_app.data.images.pool import ImagePool, ImageSplit, Pixels
from fedproto_app.settings import DataSettings, PartitionSettings

_NAMES_SHOWN = 3  # corrupt images that a note names; it only counts the others


@dataclass(frozen=True)
class LabelledImages:
    """pixels: [n, channels, height, width] uint8, or vectors [n, D, 1, 1] float32. labels: [n]
    int64."""

    pixels: Pixels
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class ImageStage:
    """The images of a client at one stage."""

    train: LabelledImages
    validation: LabelledImages
    test: LabelledImages


@dataclass(frozen=True)
class ClientImages:
    """The images of one client.

    class_counts: numbers of train images, with a row per stage and a column per class. note: which
    grey images were read as colour, and how many images were left out as corrupt, or "".
    learns_validation: whether the method also learns from the validation images.
    """

    name: str
    stages: tuple[ImageStage, ...]
    class_counts: tuple[tuple[int, ...], ...]
    note: str = ""
    group: str = ""
    missing_share: float = 0.0
    learns_validation: bool = False

    @property
    def train_samples(self) -> int:
        """How many images of all stages the client learns from.

        This is its weight in sample-weighted means.
        """
        validation = sum(len(stage.validation) for stage in self.stages)
        train = sum(len(stage.train) for stage in self.stages)
        return train + validation if self.learns_validation else train

    def trained_stage(self, stage: int) -> int:
        """Return the stage whose images the client uses when it trains at this stage.

        If this stage has no images, it is the last earlier stage with images. If there is none, it
        is the first later stage with images.
        """
        filled = [number for number, images in enumerate(self.stages) if len(images.train)]
        return max((number for number in filled if number <= stage), default=filled[0])

    def training(self, stage: int) -> LabelledImages:
        """Return the images that the client uses when it trains at a stage."""
        return self.stages[self.trained_stage(stage)].train


def make_image_clients(
    pool: ImagePool,
    holdings: Sequence[Holding],
    settings: DataSettings,
) -> tuple[dict[str, ClientImages], dict[str, str]]:
    """Return the clients of these holdings with their pixels, and why some cannot take part.

    A client with a corrupt image is refused, unless `data.corrupt-images` says to skip it.
    """
    train = _Loaded(pool.train, [holding.trained for holding in holdings], settings)
    test = _Loaded(pool.test, [holding.tested for holding in holdings], settings)
    clients: dict[str, ClientImages] = {}
    refused: dict[str, str] = {}
    for holding in holdings:
        client = _client(holding, train, test, pool)
        fault = train.fault_of(holding.trained) or test.fault_of(holding.tested)
        if reason := fault or why_refused(client.stages, settings.partition):
            refused[client.name] = reason
        else:
            clients[client.name] = client
    return clients, refused


def reserved_images(pool: ImagePool, settings: DataSettings, seed: int) -> LabelledImages:
    """Return the train images that `data.partition.reserve-per-class` puts aside.

    Raises `DataError` for a corrupt one, unless `data.corrupt-images` says to skip it.
    """
    places = reserved_places(pool, settings.partition.reserve_per_class, seed)
    return images_at(pool.train, places, settings)


def images_at(
    split: ImageSplit, places: NDArray[np.int64], settings: DataSettings
) -> LabelledImages:
    """Return the images at these places of a split. Corrupt ones are left out if set so."""
    loaded = _Loaded(split, [places], settings)
    if fault := loaded.fault_of(places):
        raise DataError(fault)
    return loaded.take(places)


def why_refused(stages: Sequence[ImageStage | Stage], settings: PartitionSettings) -> str | None:
    """Return why a client with these stages cannot take part, or None. No pixels are needed."""
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
    """The pixels of those images of a split that some client holds. Each is decoded once."""

    def __init__(
        self, split: ImageSplit, requests: Sequence[NDArray[np.int64]], settings: DataSettings
    ) -> None:
        self._split, self._refuses = split, settings.corrupt_images == "refuse"
        self._positions = np.unique(np.concatenate(requests)) if requests else np.empty(0, np.int64)
        loaded = split.load(self._positions)
        self._pixels = loaded.pixels
        self.corrupt = {int(self._positions[row]): why for row, why in loaded.corrupt.items()}

    def fault_of(self, positions: NDArray[np.int64]) -> str | None:
        """Return which of these images are corrupt, or None if none is or they may be skipped."""
        corrupt = [position for position in positions.tolist() if position in self.corrupt]
        if not corrupt or not self._refuses:
            return None
        return (
            f"{self._split.names[corrupt[0]]}: {self.corrupt[corrupt[0]]} ({len(corrupt)} corrupt "
            "in all; data.corrupt-images = 'skip' leaves them out)"
        )

    def take(self, positions: NDArray[np.int64]) -> LabelledImages:
        """Return the images at these positions of the split, without the corrupt ones."""
        good = np.array([p for p in positions if int(p) not in self.corrupt], dtype=np.int64)
        rows = np.searchsorted(self._positions, good)
        return LabelledImages(self._pixels[rows], self._split.labels[good])

    def corrupt_of(self, positions: NDArray[np.int64]) -> list[str]:
        """Return the names of the corrupt images among these."""
        return [self._split.names[p] for p in positions.tolist() if p in self.corrupt]


def _client(holding: Holding, train: _Loaded, test: _Loaded, pool: ImagePool) -> ClientImages:
    stages = tuple(
        ImageStage(train.take(stage.train), train.take(stage.validation), test.take(stage.test))
        for stage in holding.stages
    )
    left_out = sorted({*train.corrupt_of(holding.trained), *test.corrupt_of(holding.tested)})
    notes = [note for note in (pool.notes.get(holding.name),) if note]
    if left_out:
        more = f" and {len(left_out) - _NAMES_SHOWN} more" if len(left_out) > _NAMES_SHOWN else ""
        names = ", ".join(left_out[:_NAMES_SHOWN])
        notes.append(f"{len(left_out)} corrupt images left out: {names}{more}")
    counts = tuple(
        tuple(np.bincount(stage.train.labels, minlength=len(pool.classes)).tolist())
        for stage in stages
    )
    return ClientImages(holding.name, stages, counts, "; ".join(notes))
