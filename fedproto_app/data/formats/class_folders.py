"""Read image files in a folder per class, in a folder or a zip archive.

The layout is ``[<client>/][stage-N/]train/<class>/<image>``, and the same with ``test``. N counts
from 1. If no folder is called train or test, the layout is ``[<client>/]<class>/<image>``. Then a
fifth of each client's images of each class, drawn at random, is the test part.

In an archive, an outer folder may surround everything. A single folder at the top is taken for it,
so the folder of a single client must lie in an outer folder.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from io import BytesIO
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import FileTree, files_in, open_tree, require_room
from fedproto_app.data.format import OF_IMAGES, Answers, Candidate, Fit, Format, Reading, Source
from fedproto_app.data.images.pool import (
    ImagePool,
    ImageSplit,
    LoadedImages,
    Positions,
    all_classes,
    drawn_for_test,
)
from fedproto_app.settings import DataSettings

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
_FORMATS = ("JPEG", "PNG", "BMP")  # Pillow's other readers are too risky for untrusted files
_GREY = ("1", "L", "LA")  # Pillow's modes
MOST_PIXELS = 2**26  # 8192 x 8192, decoded to four times as many bytes. A 20 kB file may hold more
_WIDE = ("I", "F")  # Pillow's modes with more than 8 bits, which it would cut off at 255
_OTHER_IMAGES = (".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".jp2", ".avif", ".heic")
_ANY_IMAGE = re.compile(rf"({'|'.join(map(re.escape, SUFFIXES + _OTHER_IMAGES))})$", re.IGNORECASE)
_STAGE = "stage-[0-9]+"
_LAYOUT = re.compile(
    rf"(?:(?P<client>(?!(?:train|test|{_STAGE})/)[^/]+)/)?"
    r"(?:stage-(?P<stage>[0-9]+)/)?"
    r"(?P<split>train|test)/(?P<label>[^/]+)/[^/]+"
)
_UNDIVIDED = re.compile(r"(?:(?P<client>[^/]+)/)?(?P<label>[^/]+)/[^/]+")
_RESERVED = re.compile(rf"train|test|{_STAGE}")
_MOST_STAGES = 9999


@dataclass(frozen=True)
class ImageFile:
    """An image file and the parts of its path.

    client, stage: None if they are not in the path. Stages count from 0.
    """

    name: str
    split: str
    label: str
    client: str | None
    stage: int | None


@dataclass(frozen=True)
class Pattern:
    """The first readable image, and the shape that all images must have.

    notes: for `ImagePool.notes`. scales: whether images are scaled to this shape. remedy:
    what to do about images of another size.
    """

    name: str
    shape: tuple[int, int, int]
    notes: Mapping[str, str] = field(default_factory=dict)
    scales: bool = False
    remedy: str = ""


def load_class_folders(settings: DataSettings) -> ImagePool:
    """Return the images of a folder or zip archive, which are decoded when pixels are requested.

    If the first image of any client or class is RGB, all images become RGB, else they are grey. To
    decode an image raises `DataError` if its size differs from the first image's, or if it is in
    colour among grey images. A damaged image is listed in `LoadedImages.corrupt`.
    """
    path = Path(settings.path)
    with open_tree(path) as tree:
        files = _files(tree, path)
        splits: dict[str, list[ImageFile]] = {"train": [], "test": []}
        for file in files:
            splits[file.split].append(file)
        for split, split_files in splits.items():
            if not split_files:
                raise DataError(f"{path}: no image in a folder {split}/<class>")
        _require_alike(files, path)
        pattern = _pattern(tree, splits["train"], path)
    if side := settings.image_size:
        pattern = replace(pattern, shape=(pattern.shape[0], side, side), scales=True)
    labels = {split: sorted({file.label for file in splits[split]}) for split in splits}
    classes = all_classes(labels["train"], labels["test"], settings, str(path))
    train, test = (_split(split, classes, pattern, path) for split in splits.values())
    return ImagePool(classes, pattern.shape, train, test, pattern.notes)


def load_unlabelled_images(
    path: Path, shape: tuple[int, int, int] | None, image_size: int
) -> tuple[list[str], NDArray[np.uint8]]:
    """Return the names of images at any depth of a folder or zip archive, or of an image file, and
    their pixels [n, *shape].

    shape: None if the images only have to be alike. image_size: as in `DataSettings`. Raises
    `DataError` for an image of another size, or a damaged one.
    """
    folder, names = files_in(path, _ANY_IMAGE, f"image ({', '.join(SUFFIXES)})")
    require_readable(names, folder)
    first = "a train image"
    if shape is None:
        first, shape = "the first image", (3, image_size, image_size)
        if not image_size:
            with open_tree(folder) as tree:
                shape = (3, *_sides_of(tree, names[0], folder))
    require_room(2 * len(names) * prod(shape), folder)
    pattern = Pattern(first, shape, scales=image_size > 0)
    images = _load(folder, names, pattern, np.arange(len(names)))
    for row, why in images.corrupt.items():
        raise DataError(f"{folder}: {names[row]}: {why} ({len(images.corrupt)} corrupt in all)")
    return names, images.pixels


def _sides_of(tree: FileTree, name: str, folder: Path) -> tuple[int, int]:
    try:
        _, height, width = decode(tree.read(name)).shape
    except (DataError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{folder}: {name}: {error}") from None
    return height, width


def require_readable(names: Sequence[str], path: Path) -> None:
    """Raise `DataError` for an image of a format that is not read."""
    for name in names:
        if name.lower().endswith(_OTHER_IMAGES):
            raise DataError(f"{path}: {name}: only images in {', '.join(SUFFIXES)} are read")


def _files(tree: FileTree, path: Path) -> list[ImageFile]:
    """Return all images, in the order of the names."""
    names = tree.names()
    require_readable(names, path)
    names = [name for name in names if name.lower().endswith(SUFFIXES)]
    wrapped = 0 if path.is_dir() else wrapping(names)
    if is_undivided([name[wrapped:] for name in names]):
        return _divided({name: name[wrapped:] for name in names})
    return [_placed(name, name[wrapped:], path) for name in names]


def is_undivided(names: Sequence[str]) -> bool:
    """Return whether all images lie in folders of classes, without a folder train or test."""
    return bool(names) and all(
        _UNDIVIDED.fullmatch(name) and not _RESERVED.fullmatch(name.split("/")[0]) for name in names
    )


def _divided(places: Mapping[str, str]) -> list[ImageFile]:
    """Divide images into a train and a test part. places: their paths in the layout, by name."""
    matches = [_UNDIVIDED.fullmatch(inside) for inside in places.values()]
    groups = [match.group("client", "label") for match in matches if match is not None]
    tests = drawn_for_test([(client or "", label) for client, label in groups])
    return [
        ImageFile(name, "test" if is_test else "train", label, client, None)
        for name, (client, label), is_test in zip(places, groups, tests, strict=True)
    ]


def wrapping(names: Sequence[str]) -> int:
    """Return the length of the prefix that all names share, if it is an outer folder."""
    tops = {name.partition("/")[0] for name in names}
    if len(tops) != 1 or _RESERVED.fullmatch(top := tops.pop()):
        return 0
    return len(top) + 1


def _placed(name: str, inside: str, path: Path) -> ImageFile:
    match = _LAYOUT.fullmatch(inside)
    if match is None:
        raise DataError(
            f"{path}: {name}: expected [<client>/][stage-N/]train|test/<class>/<image> "
            "or [<client>/]<class>/<image>"
        )
    client, number, split, label = match.group("client", "stage", "split", "label")
    if number is not None and not 1 <= int(number) <= _MOST_STAGES:
        raise DataError(f"{path}: {name}: stages count from 1 to {_MOST_STAGES}")
    return ImageFile(name, split, label, client, None if number is None else int(number) - 1)


def _require_alike(files: Sequence[ImageFile], path: Path) -> None:
    """Raise `DataError` if only some images have a client or a stage."""
    first = files[0]
    for file in files:
        for level, mine, firsts in (
            ("client", file.client, first.client),
            ("stage", file.stage, first.stage),
        ):
            if (mine is None) != (firsts is None):
                having, lacking = (first, file) if mine is None else (file, first)
                raise DataError(
                    f"{path}: {lacking.name} lies in no folder of a {level}, but {having.name} does"
                )


def _pattern(tree: FileTree, files: Sequence[ImageFile], path: Path) -> Pattern:
    firsts: dict[str, ImageFile] = {}  # the first image of each client and of each class
    reason, first, size = "", "", (0, 0)
    channels: dict[str, int] = {}  # of the images that were read
    for file in files:
        is_first = {f"client {file.client}", f"class {file.label}"} - firsts.keys()
        if channels and not is_first:
            continue
        try:
            image = decode(tree.read(file.name))
        except (DataError, MemoryError):
            raise
        except Exception as error:
            reason = reason or f"{file.name}: {error}"
            continue
        firsts |= dict.fromkeys(is_first, file)
        channels[file.name] = len(image)
        first, size = (first, size) if first else (file.name, image.shape[1:])
    if not channels:
        raise DataError(f"{path}: not one train image can be read; the first, {reason}")
    colour = max(channels, key=channels.__getitem__)
    grey = {
        file.client or "": f"grey images such as {file.name} are read as colour, as is {colour}"
        for file in reversed(firsts.values())  # so that a client's first image stays
        if channels[file.name] < channels[colour]
    }
    remedy = "; data.image-size scales all images to one size"
    return Pattern(first, (channels[colour], *size), grey, remedy=remedy)


def _split(
    files: Sequence[ImageFile], classes: Sequence[str], pattern: Pattern, path: Path
) -> ImageSplit:
    label_of = {name: label for label, name in enumerate(classes)}
    clients = [file.client for file in files if file.client is not None]
    stages = [file.stage for file in files if file.stage is not None]
    return ImageSplit(
        np.array([label_of[file.label] for file in files], dtype=np.int64),
        [f"{path.name}/{file.name}" for file in files],
        partial(_load, path, [file.name for file in files], pattern),
        np.array(clients, dtype=np.str_) if clients else None,
        np.array(stages, dtype=np.int64) if stages else None,
    )


def _load(path: Path, names: Sequence[str], pattern: Pattern, positions: Positions) -> LoadedImages:
    pixels = np.zeros((len(positions), *pattern.shape), dtype=np.uint8)
    corrupt: dict[int, str] = {}
    with open_tree(path) as tree:
        for row, position in enumerate(positions):
            name = names[position]
            try:
                image = decode(tree.read(name), pattern.shape[1] if pattern.scales else 0)
            except (DataError, MemoryError):
                raise
            except Exception as error:  # Pillow raises many kinds of errors for damaged bytes
                corrupt[row] = str(error) or type(error).__name__
                continue
            if image.shape[1:] != pattern.shape[1:]:
                raise DataError(
                    f"{path}: {name} has {_size(image.shape)} pixels, but {pattern.name} has "
                    f"{_size(pattern.shape)}{pattern.remedy}"
                )
            if len(image) > pattern.shape[0]:
                if (image != image[:1]).any():
                    raise DataError(
                        f"{path}: {name} is in colour, but {pattern.name} and others are grey; "
                        "save all images in one of the two"
                    )
                image = image[:1]
            pixels[row] = image  # a grey image goes into each channel
    return LoadedImages(pixels, corrupt)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[2]} × {shape[1]}"


def decode(data: bytes, side: int = 0) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG, PNG or BMP file, [channels, height, width].

    side: the height and width that the image is scaled to, 0 to leave it as it is.

    As in the file, there are 3 channels (red, green, blue) or 1 (grey). Transparency is dropped.
    Raises `ValueError` or one of Pillow's errors if the file is damaged.
    """
    from PIL import Image, UnidentifiedImageError  # needed by tasks on images only

    if not data:
        raise ValueError("empty file")
    try:
        with warnings.catch_warnings(action="ignore", category=Image.DecompressionBombWarning):
            image = Image.open(BytesIO(data), formats=_FORMATS)
    except UnidentifiedImageError:  # its text contains a memory address
        raise ValueError("not a JPEG, PNG or BMP image") from None
    with image:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels, more than {MOST_PIXELS}")
        mode = image.mode
        # Pillow reads 16-bit colours of a PNG as 8-bit ones. Only the form of its tiles shows them.
        of_tiles = [str(tile[-1]) for tile in image.tile if image.format == "PNG"]
        if mode.startswith(_WIDE) or any("16" in form for form in of_tiles):
            raise ValueError("more than 8 bits a pixel; save it with 8 bits a channel")
        grey = mode in _GREY
        if mode in ("P", "PA"):
            converted = image.convert("RGBA").convert("RGB")
        else:
            converted = image.convert("L" if grey else "RGB")
        if side and converted.size != (side, side):
            converted = converted.resize((side, side), Image.Resampling.BILINEAR)
        pixels = np.asarray(converted)
    return pixels[np.newaxis] if grey else pixels.transpose(2, 0, 1)


def _fit(candidate: Candidate) -> Fit:
    if not candidate.is_folder:
        return Fit.NAME if candidate.name.endswith(".zip") else Fit.NONE
    places = [name.split("/") for name in candidate.files if name.lower().endswith(SUFFIXES)]
    if any("train" in place[:-2] for place in places):
        return Fit.CERTAIN
    # Without a folder train, images may be pictures that illustrate the tables beside them.
    return Fit.WEAK if any(len(place) > 1 for place in places) else Fit.NONE


def _reading(candidate: Candidate, _: Answers) -> Reading:
    names = [name for name in candidate.files if name.lower().endswith(SUFFIXES)]
    wrapped = 0 if candidate.is_folder else wrapping(names)
    note = (
        "no folder is called train or test: a fifth of every client's images of every class, drawn "
        "at random, is the test part"
    )
    undivided = is_undivided([name[wrapped:] for name in names])
    return Reading("class-folders", notes=(note,) if undivided else ())


FORMAT = Format(
    (
        Source(
            "class-folders",
            "images",
            load_class_folders,
            "a file or a folder",
            keys=("image_size", *OF_IMAGES),
        ),
    ),
    "a folder or .zip of class folders",
    _fit,
    _reading,
)
