"""The random walk's smoother and EM by hand, in fractions, and against the general form."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.strategies.fed_react.clustered_heads import (
    VARIANCE_FLOOR,
    Array,
    _walk,
    fit_random_walk,
    newest_state,
)
from tests.maths.general_kalman import (
    expectation_maximisation,
    kalman_filter,
    random_walk,
    rts_smoother,
)

seeds = st.integers(0, 2**32 - 1)


def noisy_walk(seed: int, steps: int, coordinates: int, q: float, r: float) -> Array:
    rng = np.random.default_rng(seed)
    walk = rng.normal(scale=q**0.5, size=(steps, coordinates)).cumsum(axis=0)
    return 3 + walk + rng.normal(scale=r**0.5, size=walk.shape)


def smoothed_walk(observations: Array, q: float, r: float) -> tuple[Array, Array]:
    """Return x̂_{1|T} … x̂_{T|T} and their variances, as in a step of the EM algorithm."""
    covariance = _walk(len(observations), q, r).covariance()[1:, 1:]
    start = observations[0]
    return start + covariance / r @ (observations - start), covariance.diagonal().copy()


@given(
    seed=seeds,
    steps=st.integers(1, 7),
    coordinates=st.integers(1, 3),
    log_q=st.floats(-4, 2),
    log_r=st.floats(-4, 2),
)
def test_the_random_walk_is_the_general_form(
    seed: int, steps: int, coordinates: int, log_q: float, log_r: float
) -> None:
    q, r = 10**log_q, 10**log_r
    observations = noisy_walk(seed, steps, coordinates, 0.3, 0.2)
    model = random_walk(observations[0], q, r)
    filtered = kalman_filter(model, observations)
    smoothed = rts_smoother(model, filtered)
    states, variances = smoothed_walk(observations, q, r)
    np.testing.assert_allclose(states, smoothed.means[1:], rtol=1e-10)
    expected = variances[:, None, None] * np.eye(coordinates)
    np.testing.assert_allclose(smoothed.covariances[1:], expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(newest_state(observations, q, r), filtered.means[-1], rtol=1e-10)


@given(
    seed=seeds,
    steps=st.integers(1, 7),
    coordinates=st.integers(1, 3),
    log_q=st.floats(-2, 1),
    log_r=st.floats(-2, 1),
)
def test_a_step_of_the_random_walks_em_is_the_mean_over_the_coordinates(
    seed: int, steps: int, coordinates: int, log_q: float, log_r: float
) -> None:
    q, r = 10**log_q, 10**log_r
    observations = noisy_walk(seed, steps, coordinates, 0.3, 0.2)
    model = random_walk(observations[0], q, r)
    fitted = expectation_maximisation(observations, model, 1)
    expected = [fitted.Q.trace() / coordinates, fitted.R.trace() / coordinates]
    np.testing.assert_allclose(fit_random_walk(observations, q, r, 1), expected, atol=1e-10)


def test_the_random_walks_em_is_the_general_form_over_many_steps() -> None:
    observations = noisy_walk(8, 12, 1, 0.3, 0.2)
    fitted = expectation_maximisation(observations, random_walk(observations[0], 0.01, 10.0), 25)
    actual = fit_random_walk(observations, 0.01, 10.0, 25)
    np.testing.assert_allclose(actual, [fitted.Q.item(), fitted.R.item()], rtol=1e-10)


def test_two_observations_by_hand() -> None:
    """q = r = 1, y = 0, 6: K = 2/3, 5/8 and x̂_2 = 15/4; G_1 = 2/5 and x̂_1|2 = 3/2."""
    observations = np.array([[0.0], [6.0]])
    states, variances = smoothed_walk(observations, 1, 1)
    np.testing.assert_allclose(states.ravel(), [1.5, 3.75])
    np.testing.assert_allclose(variances, [1 / 2, 5 / 8])
    np.testing.assert_allclose(newest_state(observations, 1, 1), [3.75])
    # x̂_0|2 = 3/4, p_0|2 = 5/8; Cov(x_1, x_0) = Cov(x_2, x_1) = 1/4
    q = ((3 / 4) ** 2 + (9 / 4) ** 2 + (1 / 2 + 5 / 8 - 1 / 2) * 2) / 2
    r = ((3 / 2) ** 2 + (9 / 4) ** 2 + 1 / 2 + 5 / 8) / 2
    np.testing.assert_allclose(fit_random_walk(observations, 1, 1, 1), [q, r])


@given(
    seed=seeds,
    steps=st.integers(1, 10),
    log_q=st.floats(-3, 1),
    log_r=st.floats(-3, 1),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 10.0]),
)
def test_no_step_of_the_random_walks_em_lowers_the_likelihood(
    seed: int, steps: int, log_q: float, log_r: float, scale: float
) -> None:
    observations = scale * noisy_walk(seed, steps, 2, 0.3, 0.2)
    q, r = 10**log_q, 10**log_r
    before = -np.inf
    for _ in range(5):
        model = random_walk(observations[0], q, r)
        after = kalman_filter(model, observations).log_likelihood
        assert after >= before - 1e-8 * abs(after)
        before = after
        q, r = fit_random_walk(observations, q, r, 1)


@pytest.mark.parametrize("q", [0.02, 0.5])
@pytest.mark.parametrize("r", [0.05, 1.0])
def test_em_finds_the_variances_that_made_the_data(q: float, r: float) -> None:
    observations = noisy_walk(9, 60, 400, q, r)
    np.testing.assert_allclose(fit_random_walk(observations, 0.1, 0.1, 200), [q, r], rtol=0.1)


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


def test_data_without_noise_leave_their_noise_at_almost_nothing() -> None:
    """A steep line: the walk follows it."""
    observations = np.arange(20.0)[:, None] * np.ones((1, 5))
    q, r = fit_random_walk(observations, 1.0, 1e-6, 50)
    assert 0.5 < q < 1.5
    assert VARIANCE_FLOOR <= r < 1e-5
    np.testing.assert_allclose(newest_state(observations, q, r), 19, atol=1e-4)


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


def test_coordinates_do_not_touch_each_other() -> None:
    observations = noisy_walk(11, 6, 4, 0.3, 0.2)
    states, _ = smoothed_walk(observations, 0.2, 0.4)
    for p in range(4):
        alone, _ = smoothed_walk(observations[:, p : p + 1], 0.2, 0.4)
        np.testing.assert_allclose(states[:, p : p + 1], alone, rtol=1e-12)
