"""Read labelled images from arrays of an npz archive, without pickled objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.format import OF_IMAGES, Answers, Candidate, Fit, Format, Reading, Source
from fedproto_app.data.images.pool import (
    ImagePool,
    ImageSplit,
    LoadedImages,
    Positions,
    all_classes,
    drawn_for_test,
)
from fedproto_app.data.npz_archive import Archive, Array, open_archive
from fedproto_app.settings import DataSettings

_SPLITS = ("_train", "_test")


def load_image_npz(settings: DataSettings) -> ImagePool:
    """Return the images of an archive.

    x_train, x_test: uint8 [n, H, W], [n, H, W, C] or [n, C, H, W], C of 1 or 3. They are read at
        the first request for pixels, and stay in memory as long as the pool.
    y_train, y_test: [n] integers or texts.
    classes: [k] texts, optional. Integers of y are then indices into it. Otherwise each value of
        y_train is a class, in ascending order.
    client_train, client_test: [n] texts or integers, optional: the client of each image.
    stage_train, stage_test: [n] integers from 0, optional: the stage of each image.

    Instead, an archive may hold x, y and client in the same forms, without stages. Then a fifth of
    every client's images of every class, drawn at random, is the test part.
    """
    path = Path(settings.path)
    with open_archive(path) as archive:
        suffixes = ("",) if "x" in archive.names else _SPLITS
        kinds = ("client", "stage") if len(suffixes) == 2 else ("client",)
        required, optional = (
            [kind + suffix for kind in of_images for suffix in suffixes]
            for of_images in (("x", "y"), kinds)
        )
        archive.require_names(required, ["classes", *optional])
        layouts = [_layout(archive, f"x{suffix}") for suffix in suffixes]
        if layouts[0].image != layouts[-1].image:
            raise DataError(
                f"{path}: images of x_train are {layouts[0].image}, of x_test {layouts[1].image} "
                "(channels, height, width)"
            )
        classes, labels = _labels(archive, [f"y{suffix}" for suffix in suffixes], settings)
        splits = [
            ImageSplit(
                of_split,
                [f"{path.name}/x{suffix}[{number}]" for number in range(layout.images)],
                _Pixels(path, f"x{suffix}", layout).load,
                archive.texts_of(f"client{suffix}", layout.images, "images"),
                _stages(archive, f"stage{suffix}", layout.images),
            )
            for suffix, layout, of_split in zip(suffixes, layouts, labels, strict=True)
        ]
        for suffix, split in zip(suffixes, splits, strict=True):
            if len(split.labels) != len(split.names):
                raise DataError(
                    f"{path}: {len(split.labels)} labels in y{suffix} for {len(split.names)} "
                    f"images in x{suffix}"
                )
    if len(splits) == 1:
        images, *_ = splits
        owners = [""] * len(images.names) if images.clients is None else images.clients.tolist()
        class_names = [classes[label] for label in images.labels.tolist()]
        is_test = drawn_for_test(list(zip(owners, class_names, strict=True)))
        splits = [images.part(np.flatnonzero(part)) for part in (~is_test, is_test)]
    train, test = splits
    return ImagePool(classes, layouts[0].image, train, test)


def load_unlabelled_pixels(path: Path) -> NDArray[np.uint8]:
    """Return the images in the array x of an archive, [n, channels, height, width]."""
    with open_archive(path) as archive:
        archive.require_names(["x"], archive.names)
        layout = _layout(archive, "x")
    return _Pixels(path, "x", layout).load(np.arange(layout.images)).pixels


@dataclass(frozen=True)
class Layout:
    """An array: its number of images, their shape (channels, height, width), its channel axis."""

    images: int
    image: tuple[int, int, int]
    channel_axis: int | None


class _Pixels:
    """An array of images that is read when it is first needed."""

    def __init__(self, path: Path, name: str, layout: Layout) -> None:
        self._path, self._name, self._layout = path, name, layout

    def load(self, positions: Positions) -> LoadedImages:
        return LoadedImages(self._pixels[positions], {})

    @cached_property  # if two threads both read it, the result is the same
    def _pixels(self) -> NDArray[np.uint8]:
        try:
            with open_archive(self._path) as archive:
                pixels = archive.array(self._name)
        except (OSError, KeyError) as error:
            raise DataError(f"{self._path}: cannot be read any more: {error}") from None
        if self._layout.channel_axis == 3:
            pixels = np.moveaxis(pixels, 3, 1)
        shape = self._layout.images, *self._layout.image
        return pixels.reshape(shape).astype(np.uint8, copy=False)


def _layout(archive: Archive, name: str) -> Layout:
    shape, dtype = archive.header(name)
    where = f"{archive.path}: array {name!r}"
    if dtype != np.uint8:
        raise DataError(f"{where} holds {dtype}, expected uint8")
    expected = f"{where} has shape {shape}, expected [n, H, W], [n, H, W, C] or "
    expected += "[n, C, H, W] with C of 1 or 3"
    if min(shape, default=0) < 1 or len(shape) not in (3, 4):
        raise DataError(expected)
    if len(shape) == 3:
        return Layout(shape[0], (1, shape[1], shape[2]), None)
    axes = [axis for axis in (1, 3) if shape[axis] in (1, 3)]
    if len(axes) == 2:
        raise DataError(f"{expected}: both the second and the last axis could be the channels")
    if not axes:
        raise DataError(expected)
    axis = axes[0]
    height, width = (shape[1], shape[2]) if axis == 3 else (shape[2], shape[3])
    return Layout(shape[0], (shape[axis], height, width), axis)


def _labels(
    archive: Archive, names: Sequence[str], settings: DataSettings
) -> tuple[tuple[str, ...], list[NDArray[np.int64]]]:
    """Return the classes, and the labels in each of these arrays. The first one is for training."""
    path, values = archive.path, {name: archive.column(name, "iuU") for name in names}
    first, *further = values.values()
    for name, array in values.items():
        if (array.dtype.kind == "U") != (first.dtype.kind == "U"):
            raise DataError(f"{path}: {names[0]} holds {first.dtype}, {name} {array.dtype}")
    if "classes" not in archive.names:
        in_test = [name for array in further for name in _distinct(array)]
        classes = all_classes(_distinct(first), in_test, settings, str(path))
    else:
        classes = tuple(archive.column("classes", "U").tolist())
        if first.dtype.kind != "U":
            return classes, [array.astype(np.int64) for array in values.values()]
    label_of = {name: label for label, name in enumerate(classes)}
    labels = []
    for array_name, array in values.items():
        present, inverse = np.unique(array, return_inverse=True)
        for name in present:
            if str(name) not in label_of:
                raise DataError(f"{path}: {array_name} has class {str(name)!r}, 'classes' has not")
        labels.append(np.array([label_of[str(name)] for name in present], np.int64)[inverse])
    return classes, labels


def _distinct(values: Array) -> list[str]:
    """Return the distinct values as texts. Integers are sorted by value, so "10" follows "9"."""
    return [str(value) for value in np.unique(values)]


def _stages(archive: Archive, name: str, images: int) -> NDArray[np.int64] | None:
    values = archive.column_of(name, "iu", images, "images")
    return None if values is None else values.astype(np.int64)


def _fit(candidate: Candidate) -> Fit:
    """Return how well the path fits. Grey images [n, H, W] may also be sequences.

    The format of sequences recognises those by their shape.
    """
    return Fit.WEAK if "x_train" in candidate.arrays or _is_undivided(candidate) else Fit.NONE


def _is_undivided(candidate: Candidate) -> bool:
    shape, dtype = candidate.arrays.get("x", ((), np.dtype(object)))
    return dtype == np.uint8 and len(shape) in (3, 4)


def _reading(candidate: Candidate, _: Answers) -> Reading:
    notes: list[str] = []
    if _is_undivided(candidate):
        shape, _dtype = candidate.arrays["x"]
        if len(shape) == 3:
            count, height, width = shape
            notes.append(
                f"x is read as {count} grey images of {width} × {height}; if these are sequences, "
                "set data.source=sequence-npz"
            )
        notes.append(
            "a fifth of every client's images of every class, drawn at random, is the test part"
        )
    return Reading("image-npz", notes=tuple(notes))


FORMAT = Format(
    (Source("image-npz", "images", load_image_npz, keys=OF_IMAGES),),
    "an .npz file with x_train, or with x of uint8",
    _fit,
    _reading,
)
