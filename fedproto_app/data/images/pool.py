"""The result of every image source. Labels are loaded at once, pixels on request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.settings import DataSettings

_TEST_SHARE = 0.2

Positions = NDArray[np.int64]
Pixels = NDArray[Any]  # uint8, or float32 if vectors stand in place of images


@dataclass(frozen=True)
class LoadedImages:
    """The pixels of some images.

    pixels: [m, channels, height, width] uint8, in the order of the request, or vectors [m, D, 1, 1]
        float32. corrupt: the reason for each row that could not be read. Its pixels are zeros.
    """

    pixels: Pixels
    corrupt: dict[int, str]


@dataclass(frozen=True)
class ImageSplit:
    """One split of a source.

    labels: [n] int64, each the index of one of the pool's classes.
    names: [n] the name of each image in messages.
    load: a function that reads the images at some positions [m] of the split.
    clients: [n] the client of each image, None if the source has no clients.
    stages: [n] int64, the stage of each image, from 0, None if the source has no stages.
    """

    labels: NDArray[np.int64]
    names: Sequence[str]
    load: Callable[[Positions], LoadedImages]
    clients: NDArray[np.str_] | None = None
    stages: NDArray[np.int64] | None = None

    def part(self, places: Positions) -> ImageSplit:
        """Return a split with only the images at these places [m]."""
        return ImageSplit(
            self.labels[places],
            [self.names[place] for place in places.tolist()],
            lambda positions: self.load(places[positions]),
            None if self.clients is None else self.clients[places],
            None if self.stages is None else self.stages[places],
        )


@dataclass(frozen=True)
class ImagePool:
    """All images of a source.

    shape: channels, height, width of every image. notes: what a person should know of how a
    client's images were read. The key is the client's name, or "" if the source has no clients.
    encoder: the digest of the pretrained encoder whose vectors stand in place of pixels, or "".
    """

    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    train: ImageSplit
    test: ImageSplit
    notes: Mapping[str, str] = field(default_factory=dict)
    encoder: str = ""


def drawn_for_test(groups: Sequence[tuple[str, str]]) -> NDArray[np.bool_]:
    """Return which images [n] become the test part of a source that has none.

    They are a fifth of the images of each group, drawn at random. groups: for each image, its
    client, or "" if there are no clients, and its class.
    """
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        places[group].append(place)
    is_test = np.zeros(len(groups), dtype=bool)
    for group, of_group in places.items():
        tests = round(_TEST_SHARE * len(of_group)) if len(of_group) != 2 else 1
        order = numpy_stream(0, "test images", *group).permutation(len(of_group))
        is_test[np.array(of_group)[order[:tests]]] = True
    return is_test


def all_classes(
    train: Sequence[str], test: Sequence[str], settings: DataSettings, where: str
) -> tuple[str, ...]:
    """Return the train split's classes, in order, then the classes that only the test split has.

    A class without train images cannot be learned, so it is refused. It is allowed if
    ``data.classes`` lists it, because a node may hold only some of the federation's classes.
    """
    train_classes = set(train)
    only_test = [name for name in test if name not in train_classes]
    if only_test and not settings.classes:
        raise DataError(
            f"{where}: class {only_test[0]!r} has test images but no train image; "
            "list all classes in data.classes if this is meant"
        )
    return (*train, *only_test)
