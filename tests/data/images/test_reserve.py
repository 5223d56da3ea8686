"""Reserved images: the same for all schemes, and without them nothing changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.images.clients import reserved_images
from fedproto_app.data.images.partition import Holding, draw_partition, partition_pool
from fedproto_app.data.images.pool import ImagePool, ImageSplit, LoadedImages
from fedproto_app.settings import DataSettings, PartitionSettings

PER_CLASS = 40


def split(per_class: int, clients: bool, corrupt: int | None = None) -> ImageSplit:
    """`each` images of two classes, of two clients in turn; pixels are the positions."""

    def load(positions: np.ndarray) -> LoadedImages:
        pixels = np.broadcast_to(positions.reshape(-1, 1, 1, 1), (len(positions), 1, 2, 2))
        bad = {row: "cut off" for row, place in enumerate(positions.tolist()) if place == corrupt}
        return LoadedImages(pixels.astype(np.uint8), bad)

    labels, owner = (
        np.repeat(np.arange(2), per_class),
        np.array(["x", "y"])[np.arange(2 * per_class) % 2],
    )
    return ImageSplit(
        labels, [f"{n}.png" for n in range(2 * per_class)], load, owner if clients else None
    )


def pool_of(clients: bool = False, corrupt: int | None = None) -> ImagePool:
    return ImagePool(
        ("ant", "bee"), (1, 2, 2), split(PER_CLASS, clients, corrupt), split(10, clients)
    )


def settings_of(**changes: Any) -> DataSettings:
    dealt = {"clients": 4, "classes": 2, "stages": 2, "imbalance_factor": 1.0, **changes}
    return DataSettings(partition=PartitionSettings(**dealt))


def dealt_places(holdings: list[Holding]) -> set[int]:
    """Return the places of the train split that clients train or are validated on."""
    parts = [
        part for holding in holdings for s in holding.stages for part in (s.train, s.validation)
    ]
    return set(np.concatenate(parts).tolist())


@pytest.mark.parametrize("scheme", ["long-tail", "dirichlet", "given"])
def test_no_client_gets_a_reserved_image_and_labels_stay_their_own(scheme: str) -> None:
    pool, settings = pool_of(scheme == "given"), settings_of(reserve_per_class=7, scheme=scheme)
    reserved = reserved_images(pool, settings, 3)
    assert np.bincount(reserved.labels).tolist() == [7, 7]
    places = set(reserved.pixels[:, 0, 0, 0].tolist())
    holdings = partition_pool(pool, settings, 3)
    dealt = dealt_places(holdings)
    assert len(places) == 14
    assert not places & dealt
    if scheme == "given":
        assert places | dealt == set(range(2 * PER_CLASS))
        client_places = np.concatenate(
            [holdings[0].stages[0].train, holdings[0].stages[0].validation]
        )
        assert (client_places % 2 == 0).all()  # x's


def test_the_images_depend_on_the_seed_alone() -> None:
    def places(seed: int, **changes: Any) -> list[int]:
        settings = settings_of(reserve_per_class=7, **changes)
        return reserved_images(pool_of(), settings, seed).pixels[:, 0, 0, 0].tolist()

    assert places(3) == places(3, scheme="dirichlet", clients=2, stages=1)
    assert places(3) != places(4)


def test_with_none_reserved_images_are_dealt_as_ever() -> None:
    pool, settings = pool_of(), settings_of()
    unreserved = draw_partition(pool.train.labels, pool.test.labels, 2, settings.partition, 5)
    for holding, expected in zip(partition_pool(pool, settings, 5), unreserved, strict=True):
        for stage, expected_stage in zip(holding.stages, expected.stages, strict=True):
            for part in ("train", "validation", "test"):
                np.testing.assert_array_equal(getattr(stage, part), getattr(expected_stage, part))
    assert len(reserved_images(pool, settings, 5)) == 0


def test_every_class_keeps_an_image_to_deal() -> None:
    message = r"reserve-per-class = 40: class 'ant' has 40 train images.*at most 39"
    with pytest.raises(DataError, match=message):
        partition_pool(pool_of(), settings_of(reserve_per_class=40), 0)


def test_a_corrupt_reserved_image_is_refused_or_left_out() -> None:
    settings = settings_of(reserve_per_class=39)
    complete = set(reserved_images(pool_of(), settings, 0).pixels[:, 0, 0, 0].tolist())
    torn = next(iter(complete))
    with pytest.raises(DataError, match=rf"{torn}\.png: cut off"):
        reserved_images(pool_of(corrupt=torn), settings, 0)
    skipping = settings.model_copy(update={"corrupt_images": "skip"})
    remaining = reserved_images(pool_of(corrupt=torn), skipping, 0)
    assert set(remaining.pixels[:, 0, 0, 0].tolist()) == complete - {torn}
