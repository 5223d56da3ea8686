"""Load the images of any source, check them, and put the classes in the order that is set.

A loader returns the pool as it is in its format. This module does what all sources need.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedproto_app.core.errors import DataError
from fedproto_app.data.images.pool import ImagePool, ImageSplit, LoadedImages, Positions
from fedproto_app.data.images.vectors import with_vectors
from fedproto_app.data.source_checks import (
    listed_classes,
    loaded_from,
    require_class_names,
    require_column,
    require_labels,
)
from fedproto_app.settings import DataSettings


def load_pool(settings: DataSettings) -> ImagePool:
    """Return the images of the source, labelled in the order of ``data.classes`` if that is set.

    A file is decoded, and errors in it are reported, only when its pixels are requested. With
    ``data.pretrained-encoder``, vectors stand in place of pixels. If something cannot be read, a
    `DataError` names the file or source, and the image or array.
    """
    loaded, where = loaded_from(settings, "images")
    pool = _checked(loaded, where)
    classes, label_of = listed_classes(pool.classes, settings, where)
    train, test = (
        replace(_with_checked_pixels(split, pool.shape, where), labels=label_of[split.labels])
        for split in (pool.train, pool.test)
    )
    pool = replace(pool, classes=classes, train=train, test=test)
    return with_vectors(pool, settings) if settings.pretrained_encoder else pool


def _checked(pool: object, where: str) -> ImagePool:
    """Return the pool. Raises `DataError` if the loader returned an invalid pool."""
    if not isinstance(pool, ImagePool):
        raise DataError(f"{where}: returned {type(pool).__name__}, expected an ImagePool")
    require_class_names(pool.classes, where)
    if len(pool.shape) != 3 or pool.shape[0] not in (1, 3) or min(pool.shape) < 1:
        raise DataError(
            f"{where}: image shape {pool.shape}: expected (channels, height, width) with 1 or 3 "
            "channels"
        )
    for title, split in (("train", pool.train), ("test", pool.test)):
        _require_split(split, len(pool.classes), f"{where}: {title} split")
    for column in ("clients", "stages"):
        if (getattr(pool.train, column) is None) != (getattr(pool.test, column) is None):
            raise DataError(f"{where}: only one of train and test has {column}")
    return pool


def _require_split(split: object, classes: int, where: str) -> None:
    if not isinstance(split, ImageSplit):
        raise DataError(f"{where}: is a {type(split).__name__}, expected an ImageSplit")
    labels = split.labels
    require_column(labels, "int64", f"{where}: labels")
    if not len(labels):
        raise DataError(f"{where}: no image in it")
    require_labels(labels, classes, where)
    columns = {"names": split.names, "clients": split.clients, "stages": split.stages}
    for title, values in columns.items():
        if values is not None and len(values) != len(labels):
            raise DataError(f"{where}: {len(values)} {title} for {len(labels)} labels")
    if split.clients is not None:
        require_column(split.clients, "str", f"{where}: clients")
        if (np.strings.strip(split.clients) == "").any():
            raise DataError(f"{where}: an image has a client without a name")
    if split.stages is not None:
        require_column(split.stages, "int64", f"{where}: stages")
        if split.stages.min() < 0:
            raise DataError(f"{where}: stage {split.stages.min()}: stages count from 0")


def _with_checked_pixels(split: ImageSplit, shape: tuple[int, int, int], where: str) -> ImageSplit:
    """Return the split with a `load` that refuses pixels of an unexpected type or shape."""

    def load(positions: Positions) -> LoadedImages:
        loaded = split.load(positions)
        if not isinstance(loaded, LoadedImages):
            raise DataError(f"{where}: loaded {type(loaded).__name__}, expected LoadedImages")
        pixels, expected = loaded.pixels, (len(positions), *shape)
        if pixels.dtype != np.uint8 or pixels.shape != expected:
            raise DataError(
                f"{where}: loaded {pixels.dtype} {pixels.shape}, expected uint8 {expected}"
            )
        return loaded

    return replace(split, load=load)
