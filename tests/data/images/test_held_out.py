from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.data.images.held_out import (
    images_of_the_same_mix,
    split_off,
    validation_counts,
)


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([5000, 5000], 0.05, [250, 250]),
        ([100, 10, 1], 0.1, [10, 1, 0]),
        ([14, 26], 0.1, [1, 3]),  # 1.4 and 2.6: 4 in all, the larger remainder up
        ([1, 1, 1], 0.9, [0, 0, 0]),  # the last image of a class stays
        ([0, 40], 0.05, [0, 2]),
        ([300], 0.0, [0]),
    ],
)
def test_the_share_held_out(counts: list[int], share: float, expected: list[int]) -> None:
    assert validation_counts(np.array(counts), share, rng()).tolist() == expected


def test_many_small_classes_give_their_share_together() -> None:
    held_out = validation_counts(np.full(50, 4), 0.05, rng())
    assert held_out.sum() == 10
    assert held_out.max() == 1
    assert not held_out[:10].all()  # chance, not the first classes


def test_split_off_takes_every_image_once_and_of_each_class_its_share() -> None:
    labels = np.repeat([0, 1, 2], [40, 20, 2])
    places = np.arange(62) * 10
    train, validation = split_off(places, labels, 0.1, rng())
    assert np.array_equal(np.sort(np.concatenate([train, validation])), places)
    assert np.bincount(labels[validation // 10], minlength=3).tolist() == [4, 2, 0]
    assert (np.diff(train) > 0).all()


def test_the_mix_of_the_test_images_is_the_one_of_the_train_images() -> None:
    pool = [np.arange(100), 100 + np.arange(100), 200 + np.arange(10), 210 + np.arange(100)]
    (drawn,) = images_of_the_same_mix(pool, np.array([[50, 13, 1, 0]]), 0.2, rng())
    # 10, 2.6 up to 3, 0.2 up to 1
    assert np.bincount(np.searchsorted([100, 200, 210], drawn, "right")).tolist() == [10, 3, 1]


def test_where_a_class_is_scarce_there_are_fewer_of_all() -> None:
    pool = [np.arange(100), 100 + np.arange(10)]
    (drawn,) = images_of_the_same_mix(pool, np.array([[60, 40]]), 0.5, rng())
    assert np.bincount(drawn // 100).tolist() == [15, 10]


def test_a_class_without_images_does_not_keep_the_others_out() -> None:
    pool = [np.arange(10), np.empty(0, dtype=np.int64)]
    (drawn,) = images_of_the_same_mix(pool, np.array([[20, 20]]), 0.5, rng())
    assert drawn.tolist() == list(range(10))


def test_stages_take_turns_through_the_images() -> None:
    pool = [np.arange(10)]
    drawn = images_of_the_same_mix(pool, np.array([[20], [20], [20]]), 0.2, rng())
    assert [len(set(part.tolist())) for part in drawn] == [4, 4, 4]
    assert len(set(np.concatenate(drawn).tolist())) == 10  # 8 in two stages, then the last two
    assert not set(drawn[0].tolist()) & set(drawn[1].tolist())
