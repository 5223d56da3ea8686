"""A1, A2 and A3 of Fed-REACT on heads of one number, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

from fedproto_app.maths.linear_heads import Head
from fedproto_app.strategies.fed_react.kalman import (
    VARIANCE_FLOOR,
    Array,
    _walk,
    fit_random_walk,
    newest_state,
)
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
    heads = zip([3.0, 6.0, 0.0], [0.9, 0.5, 0.25], strict=True)
    estimates = [smoother.update(np.array([head]), factor).item() for head, factor in heads]
    assert estimates == pytest.approx(expected)


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


# --- the Kalman filter ----------------------------------------------------------------------------


seeds = st.integers(0, 2**32 - 1)
variances = st.floats(-4, 2).map(lambda exponent: 10**exponent)


def noisy_walk(seed: int, steps: int, coordinates: int, q: float, r: float) -> Array:
    rng = np.random.default_rng(seed)
    walk = rng.normal(scale=q**0.5, size=(steps, coordinates)).cumsum(axis=0)
    return 3 + walk + rng.normal(scale=r**0.5, size=walk.shape)


def smoothed_walk(observations: Array, q: float, r: float) -> tuple[Array, Array]:
    """Return x̂_{1|T} … x̂_{T|T} and their variances, as in a step of the EM algorithm."""
    covariance = _walk(len(observations), q, r).covariance()[1:, 1:]
    start = observations[0]
    return start + covariance / r @ (observations - start), covariance.diagonal().copy()


def smoothed(observations: Array, mean0: Array, cov0: Array, **matrices: Array) -> Any:
    """Return statsmodels' filter and smoother, whose first state is x_0, which is not observed."""
    unseen = np.full((1, observations.shape[1]), np.nan)
    model = KalmanSmoother(observations.shape[1], len(mean0), tolerance=0)  # no short cut
    model.bind(np.asfortranarray(np.concatenate([unseen, observations]).T))
    for name, matrix in {"selection": np.eye(len(mean0)), **matrices}.items():
        model[name] = matrix
    model.initialize_known(mean0, cov0)
    return model.smooth()


def smoothed_generally(observations: Array, q: float, r: float) -> Any:
    """Return the random walk as the general form has it: F = H = I, Q = q·I, R = r·I."""
    unit = np.eye(observations.shape[1])
    walk = {"transition": unit, "design": unit, "state_cov": q * unit, "obs_cov": r * unit}
    return smoothed(observations, observations[0], unit, **walk)


def expectation_maximisation(observations: Array, q: float, r: float) -> tuple[float, float]:
    """Return a step of EM for F = H = I (Fed-REACT, eqs. 20 to 24), the mean of the diagonals."""
    result = smoothed_generally(observations, q, r)
    means, covariances = result.smoothed_state.T, result.smoothed_state_cov.transpose(2, 0, 1)
    earlier, later = means[:-1], means[1:]
    A = covariances[:-1].sum(axis=0) + earlier.T @ earlier  # Fed-REACT, eq. 22
    B = result.smoothed_state_autocov[..., :-1].sum(axis=2) + later.T @ earlier  # Fed-REACT, eq. 23
    C = covariances[1:].sum(axis=0) + later.T @ later  # Fed-REACT, eq. 24
    Q = C - B - B.T + A  # Fed-REACT, eq. 20 where F = B A⁻¹
    R = (observations - later).T @ (observations - later) + covariances[1:].sum(
        axis=0
    )  # Fed-REACT, eq. 21
    return Q.trace() / observations.size, R.trace() / observations.size


@given(seed=seeds, steps=st.integers(1, 7), coordinates=st.integers(1, 3), q=variances, r=variances)
def test_the_random_walk_and_a_step_of_its_em_are_the_general_form(
    seed: int, steps: int, coordinates: int, q: float, r: float
) -> None:
    observations = noisy_walk(seed, steps, coordinates, 0.3, 0.2)
    general = smoothed_generally(observations, q, r)
    states, spreads = smoothed_walk(observations, q, r)
    np.testing.assert_allclose(states, general.smoothed_state.T[1:], rtol=1e-10)
    expected = spreads[:, None, None] * np.eye(coordinates)
    covariances = general.smoothed_state_cov.transpose(2, 0, 1)[1:]
    np.testing.assert_allclose(covariances, expected, rtol=1e-10, atol=1e-12)
    newest = newest_state(observations, q, r)
    np.testing.assert_allclose(newest, general.filtered_state.T[-1], rtol=1e-10)
    expected_fit = np.maximum(expectation_maximisation(observations, q, r), VARIANCE_FLOOR)
    np.testing.assert_allclose(fit_random_walk(observations, q, r, 1), expected_fit, atol=1e-10)


def test_the_random_walks_em_is_the_general_form_over_many_steps() -> None:
    observations = noisy_walk(8, 12, 1, 0.3, 0.2)
    q, r = 0.01, 10.0
    for _ in range(25):
        q, r = expectation_maximisation(observations, q, r)
    np.testing.assert_allclose(fit_random_walk(observations, 0.01, 10.0, 25), [q, r], rtol=1e-10)


def test_two_observations_by_hand() -> None:
    """q = r = 1, y = 0, 6: K = 2/3, 5/8 and x̂_2 = 15/4, G_1 = 2/5 and x̂_1|2 = 3/2."""
    observations = np.array([[0.0], [6.0]])
    states, variances = smoothed_walk(observations, 1, 1)
    np.testing.assert_allclose(states.ravel(), [1.5, 3.75])
    np.testing.assert_allclose(variances, [1 / 2, 5 / 8])
    np.testing.assert_allclose(newest_state(observations, 1, 1), [3.75])
    # x̂_0|2 = 3/4, p_0|2 = 5/8, Cov(x_1, x_0) = Cov(x_2, x_1) = 1/4
    q = ((3 / 4) ** 2 + (9 / 4) ** 2 + (1 / 2 + 5 / 8 - 1 / 2) * 2) / 2
    r = ((3 / 2) ** 2 + (9 / 4) ** 2 + 1 / 2 + 5 / 8) / 2
    np.testing.assert_allclose(fit_random_walk(observations, 1, 1, 1), [q, r])


def test_without_iterations_the_variances_stay() -> None:
    assert fit_random_walk(noisy_walk(0, 4, 2, 1, 1), 0.3, 0.7, 0) == (0.3, 0.7)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("start", [(1e-3, 10.0), (10.0, 1e-3), (1e-12, 1e-12)])
def test_without_change_the_variances_fall_to_the_floor_at_most(
    steps: int, start: tuple[float, float]
) -> None:
    observations = np.full((steps, 3), 0.1)
    q, r = fit_random_walk(observations, *start, 3000)
    assert VARIANCE_FLOOR <= q <= start[0]
    assert VARIANCE_FLOOR <= r <= start[1]
    np.testing.assert_array_equal(newest_state(observations, q, r), observations[0])
    states, variances = smoothed_walk(observations, q, r)
    np.testing.assert_array_equal(states, observations)
    assert (variances > 0).all()


@pytest.mark.parametrize(("q", "r"), [(1e-12, 10.0), (10.0, 1e-12), (1e-12, 1e-12)])
def test_extreme_variances_keep_their_digits(q: float, r: float) -> None:
    """As Fed-REACT, eqs. 9 to 15 in fractions have it."""
    observations = noisy_walk(10, 30, 1, 0.3, 0.2)
    means, variances = [Fraction(observations.item(0))], [Fraction(1)]
    for observation in observations.ravel():
        predicted = variances[-1] + Fraction(q)
        gain = predicted / (predicted + Fraction(r))
        means.append(means[-1] + gain * (Fraction(observation) - means[-1]))
        variances.append((1 - gain) * predicted)
    for t in range(30, 0, -1):
        gain = variances[t - 1] / (variances[t - 1] + Fraction(q))
        means[t - 1] += gain * (means[t] - means[t - 1])
    states, _ = smoothed_walk(observations, q, r)
    np.testing.assert_allclose(states.ravel(), np.array(means[1:], dtype=float), rtol=1e-12)
    assert np.isfinite(fit_random_walk(observations, q, r, 3)).all()
