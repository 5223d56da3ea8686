"""From a partition to clients: every image is decoded once, corrupt images are named.

Reserved images are the same for all schemes, and without them nothing changes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.images.clients import ClientImages, make_image_clients, reserved_images
from fedproto_app.data.images.partition import draw_partition, partition_pool
from fedproto_app.data.images.pool import ImagePool, ImageSplit, LoadedImages
from fedproto_app.settings import DataSettings, PartitionSettings

PER_CLASS = 40


def split(per_class: int, corrupt: Collection[int], decoded: list[int], owned: bool) -> ImageSplit:
    """Return images of two classes and two owners in turn, whose pixels are their position."""

    def load(positions: NDArray[np.int64]) -> LoadedImages:
        decoded.extend(positions.tolist())
        pixels = np.broadcast_to(positions.reshape(-1, 1, 1, 1), (len(positions), 1, 2, 2))
        bad = {row: "cut off" for row, place in enumerate(positions.tolist()) if place in corrupt}
        return LoadedImages(pixels.astype(np.uint8), bad)

    names, owners = [f"{n}.png" for n in range(2 * per_class)], np.tile(["x", "y"], per_class)
    return ImageSplit(np.repeat([0, 1], per_class), names, load, owners if owned else None)


def pool_of(
    corrupt: Collection[int] = (), decoded: list[int] | None = None, owned: bool = False
) -> ImagePool:
    train = split(PER_CLASS, corrupt, [] if decoded is None else decoded, owned)
    return ImagePool(("ant", "bee"), (1, 2, 2), train, split(10, (), [], owned))


def settings_of(**changes: Any) -> DataSettings:
    """Four clients of both classes at two stages."""
    keys = [key for key in ("corrupt_images", "max_clients") if key in changes]
    beside = {key: changes.pop(key) for key in keys}
    dealt = {"clients": 4, "classes": 2, "stages": 2, "imbalance_factor": 1.0, **changes}
    return DataSettings(partition=PartitionSettings(**dealt), **beside)


def clients_of(
    corrupt: Collection[int] = (), **changes: Any
) -> tuple[dict[str, ClientImages], dict[str, str], list[int]]:
    """Return the clients, why some cannot take part, and the train images that were decoded."""
    decoded: list[int] = []
    pool, settings = pool_of(corrupt, decoded), settings_of(**changes)
    return *make_image_clients(pool, partition_pool(pool, settings, 0), settings), decoded


def reserved_places(pool: ImagePool, settings: DataSettings, seed: int = 0) -> list[int]:
    return reserved_images(pool, settings, seed).pixels[:, 0, 0, 0].tolist()


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
                assert (part.labels == positions // PER_CLASS).all()
            assert tuple(np.bincount(stage.train.labels, minlength=2)) == counts
            assert not np.intersect1d(stage.train.pixels, stage.validation.pixels).size


def test_shared_images_are_decoded_once() -> None:
    _, _, decoded = clients_of(samples=30)
    assert len(decoded) == len(set(decoded))


def test_a_corrupt_image_is_refused_by_name_or_left_out_with_a_note() -> None:
    clients, refused, _ = clients_of({7})
    ((name, reason),) = refused.items()
    assert name not in clients
    assert reason.startswith("7.png: cut off (1 corrupt in all; data.corrupt-images = 'skip'")
    assert len(clients) == 3
    clients, _, _ = clients_of({7, 50}, corrupt_images="skip")
    notes = [client.note for client in clients.values() if client.note]
    left_out = [name for note in notes for name in note.split(": ")[1].split(", ")]
    assert sorted(left_out) == ["50.png", "7.png"]

    def pixels_held(clients: dict[str, ClientImages]) -> NDArray[np.uint8]:
        stages = [stage for client in clients.values() for stage in client.stages]
        parts = [part.pixels for s in stages for part in (s.train, s.validation)]
        return np.unique(np.concatenate(parts))

    assert np.setdiff1d(pixels_held(clients_of()[0]), pixels_held(clients)).tolist() == [7, 50]


def test_a_client_whose_images_are_all_corrupt_cannot_take_part() -> None:
    clients, refused, _ = clients_of(range(80), corrupt_images="skip")
    assert not clients
    assert set(refused.values()) == {"no train image"}


def test_the_first_clients_only() -> None:
    assert list(clients_of(max_clients=2)[0]) == ["client-000", "client-001"]


def test_how_a_clients_images_were_read_is_noted() -> None:
    pool = replace(pool_of(corrupt=[1], owned=True), notes={"y": "grey is read as colour"})
    settings = settings_of(scheme="given", corrupt_images="skip")
    clients, _ = make_image_clients(pool, partition_pool(pool, settings, 0), settings)
    assert clients["x"].note == ""
    assert clients["y"].note == "grey is read as colour; 1 corrupt images left out: 1.png"


@pytest.mark.parametrize("scheme", ["long-tail", "dirichlet", "given"])
def test_no_client_gets_a_reserved_image_and_labels_stay_their_own(scheme: str) -> None:
    settings = settings_of(reserve_per_class=7, scheme=scheme)
    pool = pool_of(owned=scheme == "given")
    reserved = reserved_images(pool, settings, 3)
    assert np.bincount(reserved.labels).tolist() == [7, 7]
    places = set(reserved.pixels[:, 0, 0, 0].tolist())
    stages = [holding.stages for holding in partition_pool(pool, settings, 3)]
    dealt = [{*s.train, *s.validation} for client in stages for s in client]
    assert len(places) == 14
    assert not places & set.union(*dealt)
    if scheme == "given":
        assert places | set.union(*dealt) == set(range(2 * PER_CLASS))
        assert {place % 2 for place in dealt[0]} == {0}  # x's


def test_reserved_images_depend_on_the_seed_alone() -> None:
    settings = settings_of(reserve_per_class=7)
    dirichlet = settings_of(reserve_per_class=7, scheme="dirichlet", clients=2, stages=1)
    places = reserved_places(pool_of(), settings, 3)
    assert places == reserved_places(pool_of(), dirichlet, 3)
    assert places != reserved_places(pool_of(), settings, 4)


def test_with_none_reserved_images_are_dealt_as_ever() -> None:
    pool, settings = pool_of(), settings_of()
    unreserved = draw_partition(pool.train.labels, pool.test.labels, 2, settings.partition, 5)
    for holding, expected in zip(partition_pool(pool, settings, 5), unreserved, strict=True):
        for stage, expected_stage in zip(holding.stages, expected.stages, strict=True):
            for part in ("train", "validation", "test"):
                np.testing.assert_array_equal(getattr(stage, part), getattr(expected_stage, part))
    assert not reserved_places(pool, settings, 5)


def test_every_class_keeps_an_image_to_deal() -> None:
    message = r"reserve-per-class = 40: class 'ant' has 40 train images.*at most 39"
    with pytest.raises(DataError, match=message):
        partition_pool(pool_of(), settings_of(reserve_per_class=40), 0)


def test_a_corrupt_reserved_image_is_refused_or_left_out() -> None:
    settings = settings_of(reserve_per_class=39)
    complete = set(reserved_places(pool_of(), settings))
    torn = next(iter(complete))
    with pytest.raises(DataError, match=rf"{torn}\.png: cut off"):
        reserved_images(pool_of({torn}), settings, 0)
    skipping = settings_of(reserve_per_class=39, corrupt_images="skip")
    assert set(reserved_places(pool_of({torn}), skipping)) == complete - {torn}
