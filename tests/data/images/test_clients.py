"""From a partition to clients: every image is decoded once, corrupt images are named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.images.clients import make_image_clients
from fedproto_app.data.images.partition import partition_pool
from fedproto_app.data.images.pool import ImagePool, ImageSplit, LoadedImages
from fedproto_app.settings import DataSettings, PartitionSettings

CLASSES = ("ant", "bee")


def split(title: str, per_class: int, corrupt: set[int], decoded: list[int]) -> ImageSplit:
    """`each` images of both classes; an image's pixels are its position."""
    labels = np.repeat(np.arange(2), per_class)

    def load(positions: NDArray[np.int64]) -> LoadedImages:
        decoded.extend(positions.tolist())
        pixels = np.broadcast_to(positions.reshape(-1, 1, 1, 1), (len(positions), 1, 2, 2))
        bad = {row: "cut off" for row, p in enumerate(positions.tolist()) if p in corrupt}
        return LoadedImages(pixels.astype(np.uint8), bad)

    return ImageSplit(labels, [f"{title}/{n}.png" for n in range(2 * per_class)], load)


def clients_of(
    corrupt: set[int] = frozenset(),
    per_class: int = 40,
    **changes: Any,  # type: ignore[assignment]
) -> tuple[dict[str, Any], dict[str, str], list[int]]:
    """Four clients of both classes at two stages; and the train images that were decoded."""
    decoded: list[int] = []
    pool = ImagePool(
        CLASSES,
        (1, 2, 2),
        split("train", per_class, corrupt, decoded),
        split("test", 10, set(), []),
    )
    dealt = {"clients": 4, "classes": 2, "stages": 2, "imbalance_factor": 1.0, **changes}
    settings = DataSettings(
        corrupt_images=dealt.pop("corrupt_images", "refuse"),
        max_clients=dealt.pop("max_clients", 0),
        partition=PartitionSettings(**dealt),
    )
    holdings = partition_pool(pool, settings, 0)
    return *make_image_clients(pool, holdings, settings), decoded


def test_clients_hold_the_pixels_of_their_images() -> None:
    clients, refused, decoded = clients_of()
    assert list(clients) == [f"client-00{n}" for n in range(4)]
    assert not refused
    assert len(decoded) == len(set(decoded))
    for client in clients.values():
        assert client.train_samples == sum(map(sum, client.class_counts))
        for stage, counts in zip(client.stages, client.class_counts, strict=True):
            for part in (stage.train, stage.validation):
                positions = part.pixels[:, 0, 0, 0].astype(int)
                assert (part.labels == positions // 40).all()  # whose label is the pixels' own
            assert tuple(np.bincount(stage.train.labels, minlength=2)) == counts
            assert not np.intersect1d(stage.train.pixels, stage.validation.pixels).size


def test_shared_images_are_decoded_once() -> None:
    _, _, decoded = clients_of(samples=30)
    assert len(decoded) == len(set(decoded))


def test_a_corrupt_image_is_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"train/7\.png: cut off \(1 corrupt in all; .*'skip'"):
        clients_of({7})


def test_or_left_out_with_a_note() -> None:
    complete, _, _ = clients_of()
    clients, _, _ = clients_of({7, 50}, corrupt_images="skip")
    notes = [client.note for client in clients.values() if client.note]
    assert sorted(name for note in notes for name in note.split(": ")[1].split(", ")) == [
        "train/50.png",
        "train/7.png",
    ]
    missing = [
        sum(len(s.train) + len(s.validation) for s in complete[name].stages)
        - sum(len(s.train) + len(s.validation) for s in client.stages)
        for name, client in clients.items()
    ]
    assert sum(missing) == 2
    pixels = np.concatenate([s.train.pixels for c in clients.values() for s in c.stages])
    assert not np.isin(pixels, [7, 50]).any()


def test_a_client_whose_images_are_all_corrupt_cannot_take_part() -> None:
    clients, refused, _ = clients_of(set(range(80)), corrupt_images="skip")
    assert not clients
    assert set(refused.values()) == {"no train image"}


def test_the_first_clients_only() -> None:
    clients, _, _ = clients_of(max_clients=2)
    assert list(clients) == ["client-000", "client-001"]
