"""Read public sets of images: CIFAR, and scikit-learn's digits, which need no download.

CIFAR-10 and CIFAR-100 are read in their binary versions (cs.toronto.edu/~kriz/cifar.html). A record
begins with a label byte (CIFAR-10) or with a coarse and a fine label byte (CIFAR-100). Then follow
3 × 32 × 32 bytes, channels first. The versions for Python and Matlab are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.files import require_inside
from fedproto_app.data.format import OF_IMAGES, Candidate, Fit, Format, Source
from fedproto_app.data.images.pool import ImagePool, ImageSplit, LoadedImages, Positions
from fedproto_app.settings import DataSettings

SHAPE = (3, 32, 32)  # of a CIFAR image
_PIXELS = 3 * 32 * 32
_WHITE = 16  # the brightest pixel of the digits, which becomes 255
_TEST_SHARE = 10  # the last tenth of each class of digits, rounded down, is for testing


@dataclass(frozen=True)
class Layout:
    """The files of a data set. label_bytes: the number of bytes before the pixels.

    The last of them is the label.
    """

    class_names: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    label_bytes: int

    @property
    def files(self) -> tuple[str, ...]:
        return (self.class_names, *self.train, *self.test)


LAYOUTS = {
    "CIFAR-10": Layout(
        "batches.meta.txt",
        tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        ("test_batch.bin",),
        label_bytes=1,
    ),
    "CIFAR-100": Layout("fine_label_names.txt", ("train.bin",), ("test.bin",), label_bytes=2),
}


def load_cifar(settings: DataSettings) -> ImagePool:
    """Return the images in a folder that holds one of the data sets. Files are memory-mapped."""
    folder = Path(settings.path)
    layout = _layout(folder)
    for file in layout.files:
        if not (folder / file).is_file():
            raise DataError(f"{folder / file}: no such file")
        require_inside(folder / file, folder)
    classes = _class_names(folder / layout.class_names)
    train, test = (
        _split([folder / file for file in files], layout.label_bytes, len(classes))
        for files in (layout.train, layout.test)
    )
    return ImagePool(classes, SHAPE, train, test)


def _layout(folder: Path) -> Layout:
    """Return the layout that at least one file in the folder belongs to."""
    layouts = [
        name
        for name, layout in LAYOUTS.items()
        if any((folder / file).exists() for file in layout.files)
    ]
    if len(layouts) == 1:
        return LAYOUTS[layouts[0]]
    expected = " or ".join(
        f"{name} ({', '.join(layout.files)})" for name, layout in LAYOUTS.items()
    )
    problem = "files of both" if layouts else "no file"
    raise DataError(f"{folder}: {problem} of the binary versions of {expected}")


def _class_names(path: Path) -> tuple[str, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}") from None
    names = tuple(line.strip() for line in lines if line.strip())
    if not names or len(set(names)) != len(names):
        raise DataError(f"{path}: expected one class name per line, none of them twice")
    return names


def _split(paths: Sequence[Path], label_bytes: int, classes: int) -> ImageSplit:
    batches = [_records(path, label_bytes + _PIXELS) for path in paths]
    labels = []
    for path, batch in zip(paths, batches, strict=True):
        labels.append(batch[:, label_bytes - 1].astype(np.int64))
        if (outside := labels[-1] >= classes).any():
            record = int(outside.argmax())
            raise DataError(
                f"{path}: record {record + 1} has label {labels[-1][record]}, "
                f"outside 0 … {classes - 1}"
            )
    names = [
        f"{path.name}/{record + 1}"
        for path, batch in zip(paths, batches, strict=True)
        for record in range(len(batch))
    ]
    starts = np.cumsum([0, *(len(batch) for batch in batches)])

    def load(positions: Positions) -> LoadedImages:
        pixels = np.empty((len(positions), _PIXELS), dtype=np.uint8)
        for start, batch in zip(starts, batches, strict=False):
            rows = np.flatnonzero((positions >= start) & (positions < start + len(batch)))
            pixels[rows] = batch[positions[rows] - start, label_bytes:]
        return LoadedImages(pixels.reshape(-1, *SHAPE), {})

    return ImageSplit(np.concatenate(labels), names, load)


def _records(path: Path, length: int) -> NDArray[np.uint8]:
    """Map the records of a file, [n, length]."""
    size = path.stat().st_size
    if size == 0 or size % length:
        raise DataError(f"{path}: {size} bytes, expected a multiple of {length}, one record each")
    return np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, length)


def load_digits(settings: DataSettings) -> ImagePool:
    """Return 1797 handwritten digits "0" … "9" of 8 × 8 pixels in one channel, 0 … 255.

    The data set has no split. The last tenth of each class, in the set's order, becomes the test
    split, which is thus the same for every seed.
    """
    from sklearn.datasets import load_digits as load_set  # slow to import, and seldom used

    images, labels = load_set(return_X_y=True)
    pixels = np.rint(images * 255 / _WHITE).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        positions = np.flatnonzero(labels == digit)
        is_test[positions[len(positions) - len(positions) // _TEST_SHARE :]] = True

    names = [f"digits/{place}" for place in range(len(labels))]
    digits = ImageSplit(labels, names, lambda positions: LoadedImages(pixels[positions], {}))
    train, test = (digits.part(np.flatnonzero(part)) for part in (~is_test, is_test))
    return ImagePool(tuple(map(str, range(10))), (1, 8, 8), train, test)


def _fit(candidate: Candidate) -> Fit:
    files = {file for layout in LAYOUTS.values() for file in layout.files}
    return Fit.CERTAIN if files & set(candidate.files) and candidate.is_folder else Fit.NONE


FORMAT = Format(
    (
        Source("cifar", "images", load_cifar, "a folder", keys=OF_IMAGES),
        Source("digits", "images", load_digits, "no path", keys=OF_IMAGES),
    ),
    "a CIFAR folder",
    _fit,
)
