"""scikit-learn's digits: 1797 real handwritten digits of 8 × 8 pixels, without any download."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.images.pool import (
    ImagePool,
    ImageSplit,
    LoadedImages,
    Positions,
)
from fedproto_app.settings import DataSettings

_WHITE = 16  # the brightest pixel of the data set
_TEST_SHARE = 10  # test images are the last tenth of every class, rounded down


def load_digits(settings: DataSettings) -> ImagePool:
    """Return the digits "0" … "9" in one channel; the values 0 … 16 become 0 … 255.

    The data set has no split. The last tenth of each class, in the set's order, is the test split,
    so the split is the same for every seed.
    """
    from sklearn.datasets import load_digits as load_set  # slow to import, and seldom used

    images, labels = load_set(return_X_y=True)
    pixels = np.rint(images * 255 / _WHITE).astype(np.uint8).reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int64)
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        positions = np.flatnonzero(labels == digit)
        is_test[positions[len(positions) - len(positions) // _TEST_SHARE :]] = True
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    return ImagePool(
        tuple(str(digit) for digit in range(10)),
        (1, 8, 8),
        _split(pixels, labels, train),
        _split(pixels, labels, test),
    )


def _split(pixels: NDArray[np.uint8], labels: Positions, members: Positions) -> ImageSplit:
    names = [f"digits/{position}" for position in members]

    def load(positions: Positions) -> LoadedImages:
        return LoadedImages(pixels[members[positions]], {})

    return ImageSplit(labels[members], names, load)
