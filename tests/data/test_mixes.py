"""Mixes of maximum entropy, against a general optimiser, and their rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from scipy.optimize import LinearConstraint, minimize

from fedproto_app.data.images.partition import draw_classes, equal_share
from fedproto_app.data.mixes import held_out_counts, maximum_entropy, split_off, spread
from tests.data.drawn_classes import drawn_classes


def by_optimiser(weights: np.ndarray, least: np.ndarray, samples: int, counts: np.ndarray):
    """Minimise Σ x·(log(x / w) − 1) on the cells with weight."""
    rows, columns = np.nonzero(weights)
    w, low = weights[rows, columns], least[rows, columns]
    row_sums = (np.arange(len(weights))[:, None] == rows).astype(float)
    column_sums = (np.arange(len(counts))[:, None] == columns).astype(float)
    solution = minimize(
        lambda x: float((x * (np.log(x / w) - 1)).sum()),
        np.maximum(w / w.sum() * samples, low + 0.5),
        jac=lambda x: np.log(x / w),
        bounds=[(max(bound, 1e-9), None) for bound in low],
        constraints=[
            LinearConstraint(row_sums, samples, samples),
            LinearConstraint(column_sums, -np.inf, counts),
        ],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert solution.success, solution.message
    table = np.zeros(weights.shape)
    table[rows, columns] = solution.x
    return table


@pytest.mark.parametrize("seed", range(8))
def test_mixes_are_those_of_a_general_optimiser(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = np.array([60, 30, 12, 6])
    mask = draw_classes(counts, 5, 2, rng)
    weights, least = mask * counts.astype(float), mask.astype(np.int64)
    samples = equal_share(mask, counts) * 4 // 5  # at the limit the scales would be infinite
    mixes = maximum_entropy(weights, least, samples, counts)
    np.testing.assert_allclose(
        mixes, by_optimiser(weights, least, samples, counts), atol=0.02, err_msg=f"{mask}"
    )


@pytest.mark.parametrize(
    ("weights", "least", "samples", "counts", "expected"),
    [  # without scarcity a row has the mix of its weights
        ([[60, 30, 0]], [[1, 1, 0]], 21, [60, 30, 10], [[14, 7, 0]]),
        ([[60, 0, 10]], [[1, 0, 1]], 21, [60, 30, 10], [[18, 0, 3]]),
        ([[47, 32, 21]], [[0, 0, 0]], 10, [47, 32, 21], [[5, 3, 2]]),  # of 4.7, 3.2, 2.1
        # a scarce class is shared and the rest made up, and a small weight keeps one sample
        ([[1, 1], [1, 1]], [[0, 0], [0, 0]], 10, [4, 100], [[2, 8], [2, 8]]),
        ([[900, 90, 1]], [[1, 1, 1]], 12, [900, 90, 1], [[10, 1, 1]]),
    ],
)
def test_shares_by_hand(weights: Any, least: Any, samples: int, counts: Any, expected: Any) -> None:
    shares = spread(np.array(weights, float), np.array(least), samples, np.array(counts))
    assert shares.tolist() == expected


@given(drawn_classes())
def test_sums_are_exact_even_at_the_largest_share(drawn: tuple[np.ndarray, np.ndarray]) -> None:
    mask, counts = drawn
    samples = equal_share(mask, counts)
    shares = spread(mask * counts.astype(float), mask.astype(np.int64), samples, counts)
    assert (shares.sum(axis=1) == samples).all()
    assert (shares.sum(axis=0) <= counts).all()
    assert ((shares >= 1) == mask).all()


def test_whole_numbers_are_next_to_the_mix() -> None:
    rng = np.random.default_rng(3)
    weights = rng.dirichlet(np.full(10, 0.5), 40)
    counts = rng.integers(50, 400, 10)
    samples, none = int(counts.sum()) // 40 * 9 // 10, np.zeros(weights.shape, dtype=np.int64)
    shares = spread(weights, none, samples, counts)
    mixes = maximum_entropy(weights, none, samples, counts)
    assert np.abs(shares - mixes).max() < 1.5


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
