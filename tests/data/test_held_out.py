from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.data.mixes import held_out_counts, split_off


def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([5000, 5000], 0.05, [250, 250]),
        ([100, 10, 1], 0.1, [10, 1, 0]),
        ([14, 26], 0.1, [1, 3]),  # 1.4 and 2.6: 4 in all, the larger remainder up
        ([1, 1, 1], 0.9, [0, 0, 0]),  # the last one of a class stays
        ([0, 40], 0.05, [0, 2]),
        ([300], 0.0, [0]),
    ],
)
def test_the_share_held_out(counts: list[int], share: float, expected: list[int]) -> None:
    assert held_out_counts(np.array(counts), share, rng()).tolist() == expected


def test_many_small_classes_give_their_share_together() -> None:
    held_out = held_out_counts(np.full(50, 4), 0.05, rng())
    assert held_out.sum() == 10
    assert held_out.max() == 1
    assert not held_out[:10].all()  # chance, not the first classes


def test_split_off_takes_everything_once_and_of_each_class_its_share() -> None:
    labels = np.repeat([0, 1, 2], [40, 20, 2])
    places = np.arange(62) * 10
    train, validation = split_off(places, labels, 0.1, rng())
    assert np.array_equal(np.sort(np.concatenate([train, validation])), places)
    assert np.bincount(labels[validation // 10], minlength=3).tolist() == [4, 2, 0]
    assert (np.diff(train) > 0).all()
