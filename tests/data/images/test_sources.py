from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.images.pool import ImagePool, ImageSplit, LoadedImages
from fedproto_app.data.images.sources import load_pool
from tests.data.handed_over import FACTORY, load_given

SPLIT = ImageSplit(
    labels=np.array([1, 0, 1]),
    names=["a", "b", "c"],
    load=lambda positions: LoadedImages(np.zeros((len(positions), 3, 2, 2), np.uint8), {}),
    clients=np.array(["ann", "bob", "ann"]),
    stages=np.array([0, 1, 0]),
)
POOL = ImagePool(("cat", "ant"), (3, 2, 2), SPLIT, SPLIT)


def test_the_listed_order_of_the_classes() -> None:
    pool = load_given(load_pool, POOL, classes="ant, bee,cat")
    assert pool.classes == ("ant", "bee", "cat")
    assert pool.train.labels.tolist() == [0, 2, 0]
    assert pool.test.labels.tolist() == [0, 2, 0]
    assert SPLIT.labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("ant", f"{FACTORY}: class 'cat' is not in data.classes = ant"),
        ("cat,ant,cat", "data.classes = 'cat,ant,cat': expected names between commas"),
        ("cat,,ant", "data.classes = 'cat,,ant': expected names between commas"),
    ],
)
def test_bad_lists_of_classes(classes: str, message: str) -> None:
    with pytest.raises(DataError, match=f"^{message}"):
        load_given(load_pool, POOL, classes=classes)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (None, "returned NoneType, expected an ImagePool"),
        (replace(POOL, classes=()), "classes .*: expected a tuple of names"),
        (replace(POOL, classes=["cat", "ant"]), "classes .*: expected a tuple of names"),
        (replace(POOL, classes=("cat", "cat")), "classes .* none of them twice"),
        (replace(POOL, classes=("cat", " ")), "classes .* not empty"),
        (replace(POOL, shape=(2, 2, 2)), r"image shape \(2, 2, 2\): expected .* 1 or 3 channels"),
        (replace(POOL, shape=(3, 2)), r"image shape \(3, 2\): expected"),
        (replace(POOL, test=None), "test split: is a NoneType, expected an ImageSplit"),
        (replace(POOL, test=replace(SPLIT, clients=None)), "only one of train and test has cli"),
    ],
)
def test_invalid_results_of_a_factory_are_refused(pool: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"^{FACTORY}: {message}"):
        load_given(load_pool, pool)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": [1, 0, 1]}, "labels are a list, expected an array"),
        ({"labels": np.array([1.0, 0, 1])}, r"labels are float64 \(3,\), expected int64 \[n\]"),
        ({"labels": np.array([[1, 0, 1]])}, r"labels are int64 \(1, 3\), expected int64 \[n\]"),
        ({"labels": np.array([], np.int64), "names": []}, "no image in it"),
        ({"labels": np.array([1, 0, 2])}, "label 2 is outside 0 … 1"),
        ({"labels": np.array([1, 0, -1])}, "label -1 is outside 0 … 1"),
        ({"names": ["a"]}, "1 names for 3 labels"),
        ({"clients": np.array(["a"])}, "1 clients for 3 labels"),
        ({"clients": np.array(["a", "", "b"])}, "an image has a client without a name"),
        ({"clients": np.array([1, 2, 3])}, r"clients are int64 \(3,\), expected str \[n\]"),
        ({"stages": np.array([0, 1])}, "2 stages for 3 labels"),
        ({"stages": np.array([0, -1, 1])}, "stage -1: stages count from 0"),
        ({"stages": np.array([0, 0.5, 1])}, r"stages are float64 \(3,\), expected int64 \[n\]"),
    ],
)
def test_invalid_splits_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^{FACTORY}: train split: {message}"):
        load_given(load_pool, replace(POOL, train=replace(SPLIT, **changes)))


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (np.zeros((1, 3, 2, 2), np.uint8), "loaded ndarray, expected LoadedImages"),
        (LoadedImages(np.zeros((1, 3, 2, 2)), {}), "loaded float64"),
        (LoadedImages(np.zeros((1, 2, 2, 3), np.uint8), {}), r"expected uint8 \(1, 3, 2, 2\)"),
        (LoadedImages(np.zeros((2, 3, 2, 2), np.uint8), {}), r"expected uint8 \(1, 3, 2, 2\)"),
    ],
)
def test_pixels_that_were_not_promised(loaded: Any, message: str) -> None:
    pool = load_given(load_pool, replace(POOL, test=replace(SPLIT, load=lambda positions: loaded)))
    with pytest.raises(DataError, match=f"^{FACTORY}: .*{message}"):
        pool.test.load(np.array([1]))
