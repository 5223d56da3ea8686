"""Labelled images at the server, for methods that also learn there.

If nodes share one data set (in a simulation, or with a ``partition-id``), the run reserves images
for the server, which reads the run's source as nodes do. Sites with data of their own reserve
nothing. There, the operator names images in the server's environment. A run's configuration cannot
point such a server at a file.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError, SettingsError
from fedproto_app.data.images.clients import LabelledImages, images_at, reserved_images
from fedproto_app.data.images.pool import ImagePool
from fedproto_app.data.images.sources import load_pool
from fedproto_app.data.shape import DataShape
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.settings.paths import OUTPUT_ROOT
from fedproto_app.strategies.common.federation import Federation

AUXILIARY = "FEDPROTO_AUXILIARY"  # the labelled images: an npz file, a folder or a zip archive
UNLABELLED = "FEDPROTO_UNLABELLED"  # further images, whose labels are not read


@dataclass(frozen=True)
class ServerImages:
    """The server's images.

    labelled: a few of every class. unlabelled: [m, channels, height, width] uint8, the labelled
    images if there are no others.
    """

    labelled: LabelledImages
    unlabelled: NDArray[np.uint8]


def server_images(settings: Settings, federation: Federation) -> ServerImages:
    """Return the server's images, or raise `SettingsError` or `DataError` if there are none."""
    shape = federation.shape
    if settings.data.pretrained_encoder:
        raise SettingsError(
            f"data.pretrained-encoder = {settings.data.pretrained_encoder!r}: method = "
            f"{settings.method!r} learns from images at the server, which makes no vectors of them"
        )
    if path := os.environ.get(AUXILIARY):
        pool = _load(path, AUXILIARY, settings, shape)
        labelled = _labelled_as(pool, shape, settings)
    else:
        labelled = _reserved(settings, federation)
    further = os.environ.get(UNLABELLED)
    if not further:
        return ServerImages(labelled, labelled.pixels)
    pool = _load(further, UNLABELLED, settings, shape)
    return ServerImages(labelled, _all_of(pool, settings).pixels)


def _reserved(settings: Settings, federation: Federation) -> LabelledImages:
    method = f"method = {settings.method!r} learns at the server too"
    class_counts = [facts.class_counts for facts in federation.members.facts.values()]
    if os.environ.get(OUTPUT_ROOT) or not all(class_counts):
        raise SettingsError(
            f"{method}: the nodes' data are their own, so {AUXILIARY} must name labelled images in "
            "the environment of the server"
        )
    if settings.data.partition.reserve_per_class == 0:
        raise SettingsError(
            f"{method}: data.partition.reserve-per-class = 0 leaves it no images; set how many of "
            "each class are kept from clients, or name other images in the environment of the "
            f"server by {AUXILIARY}"
        )
    pool = load_pool(settings.data)
    if pool.classes != federation.shape.classes or pool.shape != federation.shape.inputs:
        raise DataError(
            f"data.source = {settings.data.source!r}: holds other classes or sizes of images at "
            "the server than at the nodes"
        )
    return reserved_images(pool, settings.data, settings.seed)


def _load(path: str, key: str, settings: Settings, shape: DataShape) -> ImagePool:
    source = "image-npz" if Path(path).suffix == ".npz" else "class-folders"
    skips = settings.data.corrupt_images
    side = settings.data.image_size if source == "class-folders" else 0
    try:
        pool = load_pool(
            DataSettings(source=source, path=path, corrupt_images=skips, image_size=side)
        )
    except (DataError, OSError) as error:
        raise DataError(f"{key} = {path!r}: {error}") from None
    if pool.shape != shape.inputs:
        raise DataError(f"{key} = {path!r}: images are {pool.shape}, the nodes' {shape.inputs}")
    return pool


def _labelled_as(pool: ImagePool, shape: DataShape, settings: Settings) -> LabelledImages:
    """Return the train images, labelled with the federation's class numbers."""
    if unknown := [name for name in pool.classes if name not in shape.classes]:
        raise DataError(f"{AUXILIARY}: class {unknown[0]!r} is none of the federation's")
    images = _all_of(pool, settings)
    labels = np.array([shape.classes.index(name) for name in pool.classes])[images.labels]
    missing = set(range(len(shape.classes))) - set(labels.tolist())
    if missing:
        raise DataError(f"{AUXILIARY}: has no train image of class {shape.classes[min(missing)]!r}")
    return LabelledImages(images.pixels, labels)


def _all_of(pool: ImagePool, settings: Settings) -> LabelledImages:
    return images_at(pool.train, np.arange(len(pool.train.labels)), settings.data)
