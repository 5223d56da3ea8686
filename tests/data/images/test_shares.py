"""The long tail, the classes drawn from it, and the equal share that they allow."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedproto_app.data.images.partition import (
    class_quotas,
    draw_classes,
    equal_share,
    long_tail_counts,
)


@pytest.mark.parametrize(
    ("available", "factor", "expected"),
    [
        ([100, 100, 100], 100.0, [100, 10, 1]),
        ([500, 600, 700], 100.0, [500, 50, 5]),
        ([243] * 6, 243.0, [243, 81, 27, 9, 3, 1]),  # 243 · 243^(-2/5) is 26.99… in floats
        ([1000] * 4, 1000.0, [1000, 100, 10, 1]),
        ([7, 9, 8], 1.0, [7, 7, 7]),
        ([5, 5], 100.0, [5, 1]),  # 0.05, but every class keeps an image
        ([42], 50.0, [42]),
    ],
)
def test_counts_fall_by_the_same_factor(
    available: list[int], factor: float, expected: list[int]
) -> None:
    counts = long_tail_counts(np.array(available), factor)
    assert counts.tolist() == expected
    assert counts.dtype == np.int64


def test_cifar10_has_the_counts_of_its_usual_long_tailed_versions() -> None:
    """Cui et al. 2019: 5000 · 100^(−c/9), rounded down."""
    expected = [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]
    assert long_tail_counts(np.full(10, 5000), 100.0).tolist() == expected


@given(
    limits=st.lists(st.integers(1, 8), min_size=2, max_size=7),
    rows=st.integers(1, 8),
    classes=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_rows_hold_different_classes_within_the_limits(
    limits: list[int], rows: int, classes: int, seed: int
) -> None:
    row_limits = np.minimum(limits, rows)
    if classes > len(limits) or row_limits.sum() < rows * classes:
        return
    mask = draw_classes(np.array(limits), rows, classes, np.random.default_rng(seed))
    assert (mask.sum(axis=1) == classes).all()
    assert (mask.sum(axis=0) <= row_limits).all()
    if rows * classes >= len(limits):
        assert mask.any(axis=0).all()


def test_free_draws_are_uniform() -> None:
    rng = np.random.default_rng(0)
    mask = draw_classes(np.full(10, 5000), 5000, 4, rng)
    assert np.abs(mask.mean(axis=0) - 0.4).max() < 4 * np.sqrt(0.24 / 5000)


def share_by_hall(mask: np.ndarray, counts: np.ndarray) -> int:
    """Return the largest n by Hall's condition: every set of classes has enough for its rows."""
    rows, classes = mask.shape
    degree, spare, best = int(mask[0].sum()), counts - mask.sum(axis=0), int(counts.sum()) // rows
    for size in range(1, classes + 1):
        for chosen in combinations(range(classes), size):
            outside = np.setdiff1d(np.arange(classes), chosen)
            bound = int((~mask[:, outside].any(axis=1)).sum())
            if bound:
                best = min(best, degree + int(spare[list(chosen)].sum()) // bound)
    return best


@given(
    tail=st.lists(st.integers(0, 30), min_size=3, max_size=6),
    rows=st.integers(2, 9),
    classes=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_the_equal_share_agrees_with_halls_condition(
    tail: list[int], rows: int, classes: int, seed: int
) -> None:
    counts = np.array(tail) + rows  # an image for every row
    mask = draw_classes(counts, rows, classes, np.random.default_rng(seed))
    assert equal_share(mask, counts) == share_by_hall(mask, counts)


def test_an_equal_share_by_hand() -> None:
    mask = np.array([[1, 1, 0], [0, 1, 1], [0, 1, 1]], dtype=np.bool_)
    counts = np.array([90, 10, 10])
    # Rows 1 and 2 share classes 1 and 2, except one image for row 0: (20 - 1) // 2.
    assert equal_share(mask, counts) == 9


@pytest.mark.parametrize(
    ("counts", "rows", "classes", "expected"),
    [
        ([50, 30, 20], 10, 1, [5, 3, 2]),
        ([80, 10, 10], 10, 2, [10, 5, 5]),  # the head would be dealt twice to six rows
        ([96, 2, 2], 4, 1, [2, 1, 1]),  # no class goes without a row
        ([90, 1, 9], 10, 2, [10, 1, 9]),  # nor has more rows than images
        ([1, 1, 1], 2, 1, [1, 1, 1]),
    ],
)
def test_quotas_follow_the_sizes_of_the_classes(
    counts: list[int], rows: int, classes: int, expected: list[int]
) -> None:
    assert class_quotas(np.array(counts), rows, classes).tolist() == expected


@given(st.lists(st.integers(1, 300), min_size=2, max_size=8), st.integers(1, 40), st.data())
def test_quotas_add_up_within_their_limits(
    sizes: list[int], rows: int, data: st.DataObject
) -> None:
    counts, classes = np.array(sizes), data.draw(st.integers(1, len(sizes)))
    limits = np.minimum(counts, rows)
    assume(limits.sum() >= rows * classes >= len(sizes))
    quotas = class_quotas(counts, rows, classes)
    assert quotas.sum() == rows * classes
    assert ((quotas >= 1) & (quotas <= limits)).all()
    order = np.argsort(-counts, kind="stable")
    assert (np.diff(quotas[order]) <= 0).all()  # the larger class is never behind
