"""What every image source hands over: labels now, pixels when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.settings import DataSettings

Positions = NDArray[np.int64]


@dataclass(frozen=True)
class LoadedImages:
    """The pixels of some images.

    pixels: [m, channels, height, width] uint8, in the order in which they were asked for.
    corrupt: the reason for each row that could not be read; its pixels are zeros.
    """

    pixels: NDArray[np.uint8]
    corrupt: dict[int, str]


@dataclass(frozen=True)
class ImageSplit:
    """One split of a source.

    labels: [n] int64, each the index of one of the pool's classes.
    names: [n] what to call each image in messages.
    load: the pixels of the images at these positions [m] of the split.
    clients: [n] whose image it is, where the source knows.
    stages: [n] int64, the stage it comes in, from 0, where the source knows.
    """

    labels: NDArray[np.int64]
    names: Sequence[str]
    load: Callable[[Positions], LoadedImages]
    clients: NDArray[np.str_] | None = None
    stages: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class ImagePool:
    """All images of a source. shape: channels, height, width of every image."""

    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    train: ImageSplit
    test: ImageSplit


def all_classes(
    train: Sequence[str], test: Sequence[str], settings: DataSettings, where: str
) -> tuple[str, ...]:
    """The train split's classes, in their order, then those that only the test split has.

    Nobody can learn the latter, so they are refused, unless ``data.classes`` says that they are
    meant: a node may hold a part of the federation's classes.
    """
    known = set(train)
    only_test = [name for name in test if name not in known]
    if only_test and not settings.classes:
        raise DataError(
            f"{where}: class {only_test[0]!r} has test images but no train image; "
            "list all classes in data.classes if this is meant"
        )
    return (*train, *only_test)
