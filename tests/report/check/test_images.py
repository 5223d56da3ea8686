from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.data.images.pool import ImagePool, ImageSplit, LoadedImages, Positions
from fedproto_app.data.images.sources import load_pool
from fedproto_app.data.recognition import reading_of
from fedproto_app.report.check import images as check
from fedproto_app.report.check.images import deal, decode
from fedproto_app.settings import DataSettings, PartitionSettings
from tests.helpers.real_data import real_data


class Split:
    """Images, some of them corrupt, that remember which images were requested."""

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
        split_clients = None if clients is None else np.array(clients)
        return ImageSplit(self.labels, names, self.load, split_clients, stages)


def pool_of(
    train: Split, test: Split, clients: tuple[list[str], list[str]] | None = None
) -> ImagePool:
    train_clients, test_clients = clients or (None, None)
    return ImagePool(
        ("ant", "bee", "cat"),
        (1, 2, 2),
        train.split("train", train_clients),
        test.split("test", test_clients),
    )


def test_a_pool_is_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_BYTES_AT_ONCE", 8)  # two images
    train, test = Split([0, 0, 1, 0, 1], corrupt=(0, 3)), Split([1, 2, 2], corrupt=(2,))
    corrupt = {"train-0": "torn", "train-3": "torn", "test-2": "torn"}
    assert decode(pool_of(train, test)) == (8, corrupt)
    assert train.asked == [[0, 1], [2, 3], [4]]
    assert test.asked == [[0, 1], [2]]


def test_of_many_images_some_are_drawn_once_and_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MOST_DECODED", 20)
    drawn = []
    for _ in range(2):
        train, test = Split([0] * 300), Split([1] * 300)
        assert decode(pool_of(train, test)) == (20, {})
        drawn.append((train.asked, test.asked))
    assert drawn[0] == drawn[1]
    (in_train,), (in_test,) = drawn[0]
    assert len(set(in_train)) + len(set(in_test)) == 20
    assert min(len(in_train), len(in_test)) >= 3  # both splits are looked at


def test_a_given_partition_by_hand() -> None:
    pool = pool_of(
        Split([0, 1, 0, 2, 0]), Split([0, 0, 1]), (["b", "b", "b", "a", "b"], ["b", "c", "b"])
    )
    chosen = PartitionSettings(scheme="given", validation_share=0.0)
    dealing = deal(pool, DataSettings(partition=chosen), 0)
    # Stages 0 1 0 1 0: "b" has three ants at its first, a bee at its second, "a" begins late.
    assert {name: table.tolist() for name, table in dealing.train.items()} == {
        "a": [[0, 0, 0], [0, 0, 1]],
        "b": [[3, 0, 0], [0, 1, 0]],
        "c": [[0, 0, 0], [0, 0, 0]],
    }
    assert dealing.test["b"].tolist() == [[1, 1, 0], [0, 0, 0]]
    assert dealing.validation["b"].sum() == 0
    assert dealing.dealt.tolist() == [3, 1, 1]
    assert dealing.has_class.astype(int).tolist() == [[0, 0, 1], [1, 1, 0], [0, 0, 0]]
    assert dealing.refused == {"a": "no test image", "c": "no train image"}


def test_cifar10() -> None:
    path = real_data("cifar10_jpeg.zip")
    pool = load_pool(DataSettings(source=reading_of(path).source, path=str(path)))
    assert decode(pool) == (5000, {})
