"""A1, A2 and A3 of Fed-REACT on heads of one number, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from fedproto_app.maths.linear_heads import Head
from fedproto_app.strategies.fed_react.kalman import fit_random_walk, newest_state
from fedproto_app.strategies.fed_react.smoothing import (
    ForgettingMean,
    HeadSmoother,
    KalmanSmoothing,
    NoSmoothing,
    RunningMean,
)

KINDS: dict[str, Callable[[], HeadSmoother]] = {
    "none": NoSmoothing,
    "mean": RunningMean,
    "forgetting": ForgettingMean,
    "kalman": partial(KalmanSmoothing, 0.01, 0.1, 5),
}


def drawn(rounds: int, dtype: Any = np.float32) -> list[Head]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=(2, 3)).astype(dtype) for _ in range(rounds)]


@pytest.mark.parametrize(
    ("smoother", "expected"),
    [
        (NoSmoothing(), [3, 6, 0]),
        (RunningMean(), [3, 4.5, 3]),  # counts every round alike
        (ForgettingMean(), [3, 4.5, 1.125]),  # ½·3 + ½·6 = 4.5; ¼·4.5 + ¾·0 = 1.125
        # q = r = 1, no EM: gains 2/3, 5/8, 13/21, so 3 + 5/8·3 = 39/8 and 39/8·8/21 = 13/7.
        (KalmanSmoothing(1, 1, 0), [3, 39 / 8, 13 / 7]),
    ],
)
def test_estimates_by_hand(smoother: HeadSmoother, expected: list[float]) -> None:
    heads = zip([3.0, 6.0, 0.0], [0.0, 0.5, 0.25], strict=True)
    estimates = [smoother.update(np.array([head]), factor).item() for head, factor in heads]
    assert estimates == pytest.approx(expected)


def test_the_first_head_is_its_own_estimate_whatever_the_factor() -> None:
    assert ForgettingMean().update(np.array([2.0]), 0.9).item() == 2


def test_the_kalman_filter_uses_the_variances_that_em_finds() -> None:
    smoothing = KalmanSmoothing(0.3, 2.0, 4)
    heads = drawn(5)
    for head in heads:
        estimate = smoothing.update(head, 0.5)
    observations = np.stack(heads).astype(np.float64).reshape(5, 6)
    q, r = fit_random_walk(observations, 0.3, 2.0, 4)
    expected = newest_state(observations, q, r).reshape(2, 3)
    np.testing.assert_allclose(estimate, expected, rtol=1e-6)
    assert abs(expected - newest_state(observations, 0.3, 2.0).reshape(2, 3)).max() > 0.01


@pytest.mark.parametrize("new", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_estimate_looks_like_its_head_and_equal_heads_stay(
    new: Callable[[], HeadSmoother], dtype: Any
) -> None:
    tested, constant = new(), new()
    for head in drawn(3, dtype):
        estimate = tested.update(head, 0.5)
        assert (estimate.shape, estimate.dtype) == (head.shape, head.dtype)
    (head,) = drawn(1)
    for _ in range(10):
        np.testing.assert_array_equal(constant.update(head, 0.3), head)


@pytest.mark.parametrize("new", KINDS.values(), ids=KINDS)
def test_a_restored_smoother_goes_on_bit_for_bit(new: Callable[[], HeadSmoother]) -> None:
    uninterrupted, first, second = new(), new(), new()
    heads = drawn(6)
    for head in heads[:3]:
        uninterrupted.update(head, 0.3)
        first.update(head, 0.3)
    second.restore(first.state())
    for head in heads[3:]:
        np.testing.assert_array_equal(second.update(head, 0.6), uninterrupted.update(head, 0.6))


@pytest.mark.parametrize("new", KINDS.values(), ids=KINDS)
def test_a_state_of_nothing_is_a_new_start(new: Callable[[], HeadSmoother]) -> None:
    used, new_smoother = new(), new()
    assert new_smoother.state() == {}
    heads = drawn(3)
    used.update(heads[0], 0.5)
    used.restore(new_smoother.state())
    for head in heads[1:]:
        np.testing.assert_array_equal(used.update(head, 0.5), new_smoother.update(head, 0.5))


@pytest.mark.parametrize("new", KINDS.values(), ids=KINDS)
def test_what_a_caller_does_to_its_arrays_changes_no_estimate(
    new: Callable[[], HeadSmoother],
) -> None:
    tested, untouched = new(), new()
    for head in drawn(4):
        expected = untouched.update(head, 0.5).copy()
        mine = head.copy()
        estimate = tested.update(mine, 0.5)
        np.testing.assert_array_equal(estimate, expected)
        mine[...] = 99
        estimate[...] = 99
