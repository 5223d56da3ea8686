from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.images.pool import ImagePool
from tests.data.images.made_images import noise, pixels_of, pool_of

GREY = {
    "x_train": noise(0, 3, 4, 5),
    "y_train": np.array([10, 9, 10]),
    "x_test": noise(1, 2, 4, 5),
    "y_test": np.array([9, 10]),
}


def read(folder: Path, listed: str = "", **changes: Any) -> ImagePool:
    """Return the pool of the grey archive with some arrays changed, or removed by None."""
    arrays = {name: values for name, values in (GREY | changes).items() if values is not None}
    np.savez_compressed(folder / "x.npz", **arrays)
    return pool_of("image-npz", folder / "x.npz", classes=listed)


def test_grey_images_with_integer_labels(tmp_path: Path) -> None:
    pool = read(tmp_path)
    assert pool.classes == ("9", "10")
    assert pool.shape == (1, 4, 5)
    assert pool.train.labels.tolist() == [1, 0, 1]
    assert pool.test.labels.tolist() == [0, 1]
    assert pool.train.names[2] == "x.npz/x_train[2]"
    assert pool.train.clients is None
    assert pool.train.stages is None
    np.testing.assert_array_equal(pixels_of(pool.train), GREY["x_train"][:, None])
    order = np.array([1, 0, 1])
    np.testing.assert_array_equal(pool.test.load(order).pixels[:, 0], GREY["x_test"][order])


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("fortran", [False, True])
def test_the_axis_of_the_channels_is_found(tmp_path: Path, channels: int, fortran: bool) -> None:
    first, last = noise(0, 3, channels, 4, 5), noise(1, 2, 4, 5, channels)
    if fortran:
        first, last = np.asfortranarray(first), np.asfortranarray(last)
    pool = read(tmp_path, x_train=first, x_test=last)
    assert pool.shape == (channels, 4, 5)
    np.testing.assert_array_equal(pixels_of(pool.train), first)
    np.testing.assert_array_equal(pixels_of(pool.test), last.transpose(0, 3, 1, 2))


TEXTS = {"y_train": np.array(["cow", "ant", "cow"]), "y_test": np.array(["ant", "cow"])}


@pytest.mark.parametrize(
    ("more", "classes", "labels"),
    [
        ({}, ("ant", "cow"), [1, 0, 1]),
        ({"listed": "cow,bee,ant"}, ("cow", "bee", "ant"), [0, 2, 0]),
        ({"classes": np.array(["cow", "bee", "ant"])}, ("cow", "bee", "ant"), [0, 2, 0]),
    ],
)
def test_texts_as_labels(tmp_path: Path, more: Any, classes: Any, labels: list[int]) -> None:
    pool = read(tmp_path, **TEXTS, **more)
    assert pool.classes == classes
    assert pool.train.labels.tolist() == labels
    assert pool.test.labels.tolist() == [labels[1], labels[0]]


def test_integers_index_the_archives_classes(tmp_path: Path) -> None:
    labels = {"y_train": np.array([2, 0, 2], np.uint8), "y_test": np.array([1, 1], np.int16)}
    pool = read(tmp_path, classes=np.array(["cow", "ant", "bee"]), **labels)
    assert pool.classes == ("cow", "ant", "bee")
    assert pool.train.labels.tolist() == [2, 0, 2]
    assert pool.test.labels.tolist() == [1, 1]
    with pytest.raises(DataError, match="train split: label 2 is outside 0 … 1"):
        read(tmp_path, classes=np.array(["cow", "ant"]), **labels)
    with pytest.raises(DataError, match="none of them twice"):
        read(tmp_path, classes=np.array(["cow", "ant", "cow"]), **labels)


def test_clients_and_stages(tmp_path: Path) -> None:
    pool = read(
        tmp_path,
        client_train=np.array(["ann", "bob", "ann"]),
        client_test=np.array([7, 8]),
        stage_train=np.array([0, 0, 1], np.uint8),
        stage_test=np.array([1, 0]),
    )
    assert pool.train.clients.tolist() == ["ann", "bob", "ann"]
    assert pool.test.clients.tolist() == ["7", "8"]
    assert pool.train.stages.tolist() == [0, 0, 1]
    assert pool.train.stages.dtype == np.int64


def test_images_in_one_part_get_a_test_part(tmp_path: Path) -> None:
    """A fifth of each client's images of each class are drawn, and all keep their order."""
    pixels, owner = noise(3, 40, 4, 5), np.repeat(["ann", "bob"], 20)
    labels = np.tile([7, 9], 20)
    np.savez(tmp_path / "x.npz", x=pixels, y=labels, client=owner)
    pool = pool_of("image-npz", tmp_path / "x.npz")
    assert (pool.classes, pool.shape) == (("7", "9"), (1, 4, 5))
    for split, fewest in ((pool.train, 8), (pool.test, 2)):
        places = np.array([int(name.partition("[")[2][:-1]) for name in split.names])
        assert (np.diff(places) > 0).all()
        np.testing.assert_array_equal(pixels_of(split)[:, 0], pixels[places])
        np.testing.assert_array_equal(split.labels, places % 2)
        assert split.clients is not None
        np.testing.assert_array_equal(split.clients, owner[places])
        counts = np.unique(np.stack([split.clients, split.labels]), axis=1, return_counts=True)[1]
        assert counts.tolist() == [fewest] * 4
    np.savez(tmp_path / "y.npz", x=pixels, y=labels[1:])
    with pytest.raises(DataError, match="39 labels in y for 40 images in x"):
        pool_of("image-npz", tmp_path / "y.npz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None, "y_test": None}, "no array x_test, y_test; it has x_train, y_train"),
        ({"x_val": GREY["x_test"]}, "beside x_train, .* found x_val"),
        ({"x_train": noise(0, 3, 4, 5) / 255}, "array 'x_train' holds float64, expected uint8"),
        ({"x_train": np.array([{}])}, "array 'x_train' holds object, expected uint8"),
        ({"x_train": noise(0, 3, 20)}, r"'x_train' has shape \(3, 20\), expected \[n, H, W\]"),
        ({"x_train": noise(0, 3, 4, 5, 2)}, r"has shape \(3, 4, 5, 2\), expected"),
        ({"x_train": noise(0, 0, 4, 5)}, r"has shape \(0, 4, 5\), expected"),
        ({"x_train": noise(0, 3, 3, 5, 1)}, "both the second and the last axis could be"),
        ({"x_train": noise(0, 3, 5, 4)}, r"images of x_train are \(1, 5, 4\), of x_test \(1, 4, 5"),
        ({"y_train": np.array([9, 10])}, "2 labels in y_train for 3 images in x_train"),
        ({"y_train": np.array([0.5, 1, 2])}, "array 'y_train' holds float64, .* integers or texts"),
        ({"y_test": np.array([{}, {}])}, "array 'y_test' holds pickled Python objects"),
        ({"y_test": np.array(["9", "10"])}, "y_train holds int64, y_test <U2"),
        (TEXTS | {"classes": np.array(["cow"])}, "y_train has class 'ant', 'classes' has not"),
        ({"y_test": np.array([9, 3])}, "class '3' has test images but no train image"),
        ({"client_train": np.array([1, 2, 3])}, "client_train is given for one split only; both"),
        (
            {"client_train": np.array([1, 2]), "client_test": np.array([1, 2])},
            "array 'client_train' has 2 values for 3 images",
        ),
        (
            {"client_train": np.array(["a", " ", "b"]), "client_test": np.array(["a", "b"])},
            "train split: an image has a client without a name",
        ),
        (
            {"stage_train": np.array([0, 1, 2.0]), "stage_test": np.array([1, 2])},
            "array 'stage_train' holds float64, expected integers",
        ),
        (
            {"stage_train": np.array([0, 1, 2]), "stage_test": np.array([1, -1])},
            "test split: stage -1: stages count from 0",
        ),
    ],
)
def test_bad_archives_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path / 'x.npz'}: .*{message}"):
        read(tmp_path, **changes)


def test_damaged_pixels_are_reported_when_they_are_read(tmp_path: Path) -> None:
    read(tmp_path, x_train=noise(0, 3, 40, 50), x_test=noise(1, 2, 40, 50))
    path = tmp_path / "x.npz"
    content = bytearray(path.read_bytes())
    content[3000:3100] = bytes(100)  # the first array is x_train, of 6000 bytes that do not shrink
    path.write_bytes(content)
    pool = pool_of("image-npz", path)
    with pytest.raises(DataError, match="array 'x_train' is damaged"):
        pool.train.load(np.array([0]))
    assert pool.test.load(np.array([0])).corrupt == {}
    path.unlink()
    with pytest.raises(DataError, match="cannot be read any more"):
        pool.train.load(np.array([0]))


@pytest.mark.parametrize("name", ["x_test", "y_test"])
def test_an_encrypted_array_is_refused(tmp_path: Path, name: str) -> None:
    read(tmp_path)
    path = tmp_path / "x.npz"
    content = bytearray(path.read_bytes())
    content[content.rindex(f"{name}.npy".encode()) - 46 + 8] |= 1  # its flags in the directory
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"array '{name}' is damaged: .* is encrypted"):
        pool_of("image-npz", path)
