"""Images of ten sites that mean the same by a class, or not: sources for `benchmarks.results`.

A third of scikit-learn's digits is every site's test part, with the labels of the site.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from fedproto_app.data.images.pool import ImagePool, ImageSplit, LoadedImages, Positions
from fedproto_app.data.images.sources import load_pool
from fedproto_app.settings import DataSettings

SITES = 10
IMAGES = 40  # a site's for training and validation
LEFT_OUT = -1  # the label of images that a site does not have
DIGITS = 10

Ints = NDArray[np.int64]
# The label that a site gives to each of the source's classes, LEFT_OUT for none.
Meaning = Callable[[np.random.Generator, int], Ints]


def no_shift(settings: DataSettings) -> ImagePool:
    """All sites call the digits alike."""
    return _digits(lambda draws, site: np.arange(DIGITS))


def own_codes(settings: DataSettings) -> ImagePool:
    """Each site has a code of its own for the digits."""
    return _digits(lambda draws, site: draws.permutation(DIGITS))


def half_permuted(settings: DataSettings) -> ImagePool:
    """Every second site has another code for the digits, the same one."""
    second_code = np.random.default_rng(0).permutation(DIGITS)
    return _digits(lambda draws, site: second_code if site % 2 else np.arange(DIGITS))


def subclasses(settings: DataSettings) -> ImagePool:
    """Class c is the digit c or the digit c + 5, as each site draws it."""

    def meaning(draws: np.random.Generator, site: int) -> Ints:
        labels = np.full(DIGITS, LEFT_OUT)
        labels[np.arange(5) + 5 * draws.integers(2, size=5)] = np.arange(5)
        return labels

    return _digits(meaning, classes=5)


def superclasses(settings: DataSettings) -> ImagePool:
    """Five superclasses of CIFAR-100. A site draws one class of each, with 100 images of it."""
    groups = [
        ("beaver", "dolphin", "otter", "seal", "whale"),
        ("orchid", "poppy", "rose", "sunflower", "tulip"),
        ("bottle", "bowl", "can", "cup", "plate"),
        ("bridge", "castle", "house", "road", "skyscraper"),
        ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    ]
    pool = load_pool(settings.model_copy(update={"source": "class-folders"}))
    members = np.array([[pool.classes.index(name) for name in group] for group in groups])

    def meaning(draws: np.random.Generator, site: int) -> Ints:
        labels = np.full(len(pool.classes), LEFT_OUT)
        labels[members[np.arange(5), draws.integers(5, size=5)]] = np.arange(5)
        return labels

    return _of_sites(pool, meaning, classes=5, images=500)


def _digits(meaning: Meaning, classes: int = DIGITS) -> ImagePool:
    source = load_digits()
    pixels = np.rint(source.images * 255 / 16).astype(np.uint8)[:, None]
    places = np.arange(len(pixels))

    def split(chosen: Ints) -> ImageSplit:
        return ImageSplit(
            source.target[chosen].astype(np.int64),
            [f"digit {place}" for place in chosen],
            lambda positions: LoadedImages(pixels[chosen[positions]], {}),
        )

    names = tuple(map(str, range(DIGITS)))
    pool = ImagePool(
        names, (1, 8, 8), split(places[places % 3 > 0]), split(places[places % 3 == 0])
    )
    return _of_sites(pool, meaning, classes, IMAGES)


def _of_sites(pool: ImagePool, meaning: Meaning, classes: int, images: int) -> ImagePool:
    """Deal a pool to the sites. images: of a site, for training and validation."""
    draws = np.random.default_rng(1)
    unused = draws.permutation(len(pool.train.labels))
    train: list[tuple[Ints, Ints]] = []
    test: list[tuple[Ints, Ints]] = []
    for site in range(SITES):
        label_of = meaning(draws, site)
        mine = unused[label_of[pool.train.labels[unused]] != LEFT_OUT][:images]
        unused = unused[~np.isin(unused, mine)]
        train.append((mine, label_of[pool.train.labels[mine]]))
        tests = np.flatnonzero(label_of[pool.test.labels] != LEFT_OUT)
        test.append((tests, label_of[pool.test.labels[tests]]))
    names = tuple(f"class {label}" for label in range(classes))
    return replace(
        pool, classes=names, train=_joined(pool.train, train), test=_joined(pool.test, test)
    )


def _joined(split: ImageSplit, sites: Sequence[tuple[Ints, Ints]]) -> ImageSplit:
    """Return the split's images of all sites. sites: each site's places in it, and the labels."""
    places = np.concatenate([chosen for chosen, _ in sites])

    def load(positions: Positions) -> LoadedImages:
        return split.load(places[positions])

    return ImageSplit(
        np.concatenate([labels for _, labels in sites]),
        [split.names[place] for place in places],
        load,
        clients=np.repeat(
            [f"site {number}" for number in range(len(sites))], [len(c) for c, _ in sites]
        ),
    )
