from __future__ import annotations

import numpy as np

from fedproto_app.data.images.same_mix import images_of_the_same_mix


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


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
