from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedproto_app.data.images import inspection
from fedproto_app.data.images.inspection import (
    image_source_of,
    inspect_partition,
    inspect_pool,
)
from fedproto_app.data.images.pool import ImagePool, ImageSplit, LoadedImages, Positions
from fedproto_app.data.images.sources import load_pool
from fedproto_app.data.inspection import source_of
from fedproto_app.settings import DataSettings, PartitionSettings
from tests.data.images.made_images import encoded, noise, write_folder, write_zip
from tests.real_data import real_data


class Split:
    """Images of which those at some places are corrupt; remembers which were asked for."""

    def __init__(self, labels: list[int], corrupt: tuple[int, ...] = ()) -> None:
        self.labels, self.corrupt = np.array(labels), corrupt
        self.asked: list[list[int]] = []

    def load(self, positions: Positions) -> LoadedImages:
        self.asked.append(positions.tolist())
        rows = [row for row, place in enumerate(positions) if place in self.corrupt]
        pixels = np.zeros((len(positions), 1, 2, 2), np.uint8)
        return LoadedImages(pixels, dict.fromkeys(rows, "torn"))

    def split(self, title: str, clients: list[str] | None = None) -> ImageSplit:
        names = [f"{title}-{place}" for place in range(len(self.labels))]
        stages = None if clients is None else np.arange(len(clients)) % 2
        whose = None if clients is None else np.array(clients)
        return ImageSplit(self.labels, names, self.load, whose, stages)


def pool_of(
    train: Split, test: Split, whose: tuple[list[str], list[str]] | None = None
) -> ImagePool:
    train_clients, test_clients = whose or (None, None)
    return ImagePool(
        ("ant", "bee", "cat"),
        (1, 2, 2),
        train.split("train", train_clients),
        test.split("test", test_clients),
    )


def test_a_pool_is_counted_and_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_BYTES_AT_ONCE", 8)  # two images
    train, test = Split([0, 0, 1, 0, 1], corrupt=(0, 3)), Split([1, 2, 2], corrupt=(2,))
    found = inspect_pool(pool_of(train, test))
    assert found.train.tolist() == [3, 2, 0]
    assert found.test.tolist() == [0, 1, 2]
    assert (found.images, found.decoded) == (8, 8)
    assert found.corrupt == {"train-0": "torn", "train-3": "torn", "test-2": "torn"}
    assert train.asked == [[0, 1], [2, 3], [4]]
    assert test.asked == [[0, 1], [2]]
    assert found.clients is None
    assert found.stages is None


def test_of_many_images_some_are_drawn_once_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "MOST_DECODED", 20)
    drawn = []
    for _ in range(2):
        train, test = Split([0] * 300), Split([1] * 300)
        assert inspect_pool(pool_of(train, test)).decoded == 20
        drawn.append((train.asked, test.asked))
    assert drawn[0] == drawn[1]
    (in_train,), (in_test,) = drawn[0]
    assert len(set(in_train)) + len(set(in_test)) == 20
    assert min(len(in_train), len(in_test)) >= 3  # both splits are looked at


def test_clients_and_stages_of_the_source() -> None:
    pool = pool_of(Split([0, 1, 2]), Split([0, 0]), (["b", "b", "a"], ["c", "a"]))
    found = inspect_pool(pool)
    assert (found.clients, found.stages) == (("a", "b", "c"), 2)


def test_a_given_partition_by_hand() -> None:
    pool = pool_of(
        Split([0, 1, 0, 2, 0]), Split([0, 0, 1]), (["b", "b", "b", "a", "b"], ["b", "c", "b"])
    )
    chosen = PartitionSettings(scheme="given", validation_share=0.0)
    found = inspect_partition(pool, DataSettings(partition=chosen), 0)
    # Stages 0 1 0 1 0: "b" has three ants at its first, a bee at its second, "a" begins late.
    assert {name: table.tolist() for name, table in found.train.items()} == {
        "a": [[0, 0, 0], [0, 0, 1]],
        "b": [[3, 0, 0], [0, 1, 0]],
        "c": [[0, 0, 0], [0, 0, 0]],
    }
    assert found.test["b"].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert found.validation["b"].sum() == 0
    assert found.dealt.tolist() == [3, 1, 1]
    assert found.holders.tolist() == [1, 1, 1]
    assert found.distinct_classes.tolist() == [1, 2, 0]
    assert found.refused == {"a": "no test image", "c": "no train image"}


def test_a_drawn_partition_has_what_its_settings_say() -> None:
    pool = pool_of(Split([0, 1, 2] * 200), Split([0, 1, 2] * 50))
    chosen = PartitionSettings(clients=4, classes=2, stages=3, imbalance_factor=4.0)
    found = inspect_partition(pool, DataSettings(partition=chosen), 0)
    tables = np.stack(list(found.train.values()))
    assert tables.shape == (4, 3, 3)
    assert ((tables > 0).sum(axis=2) == 2).all()
    assert found.dealt.tolist() == tables.sum(axis=(0, 1)).tolist()
    assert found.holders.tolist() == (tables.sum(axis=1) > 0).sum(axis=0).tolist()
    assert found.refused == {}
    first_two = inspect_partition(pool, DataSettings(partition=chosen, max_clients=2), 0)
    assert list(first_two.train) == ["client-000", "client-001"]


IMAGE = encoded(noise(0, 4, 4))


@pytest.mark.parametrize(
    "layout",
    ["train/cat", "stage-1/train/cat", "ann/train/cat", "ann/stage-2/train/cat"],
)
def test_folders_of_classes_are_told_from_the_others(tmp_path: Path, layout: str) -> None:
    folder = write_folder(tmp_path, {f"{layout}/1.PNG": IMAGE, "labels.csv": b"a\n1\n"})
    assert source_of(folder) == "class-folders"


def test_a_folder_without_an_image_holds_series(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"a.csv": b"a\n1\n", "train/old/b.csv": b"a\n1\n"})
    assert image_source_of(folder) is None
    assert source_of(folder) == "csv-folder"


@pytest.mark.parametrize("file", ["data_batch_3.bin", "fine_label_names.txt"])
def test_a_cifar_folder_even_an_incomplete_one(tmp_path: Path, file: str) -> None:
    assert source_of(write_folder(tmp_path, {file: b""})) == "cifar"


def test_archives_are_told_by_what_they_hold(tmp_path: Path) -> None:
    assert source_of(write_zip(tmp_path / "x.ZIP", {"train/cat/1.png": IMAGE})) == "class-folders"
    np.savez(tmp_path / "images.npz", x_train=noise(0, 2, 4, 4))
    np.savez(tmp_path / "series.npz", values=np.ones((5, 2)))
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04")
    assert source_of(tmp_path / "images.npz") == "image-npz"
    assert source_of(tmp_path / "series.npz") == "npz"
    assert source_of(tmp_path / "torn.npz") == "npz"


def test_cifar10() -> None:
    path = real_data("cifar10_jpeg.zip")
    settings = DataSettings(source=source_of(path), path=str(path))
    found = inspect_pool(load_pool(settings))
    assert found.train.tolist() == [5000] * 10
    assert found.test.tolist() == [1000] * 10
    assert (found.decoded, found.corrupt) == (5000, {})
