"""The oracle itself: against the joint Gaussian distribution of all states, and statsmodels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

from fedproto_app.strategies.fed_react.clustered_heads import Array
from tests.maths.general_kalman import (
    StateSpace,
    expectation_maximisation,
    kalman_filter,
    random_walk,
    rts_smoother,
)

SHAPES = [(1, 1, 1), (5, 1, 1), (4, 2, 3), (6, 3, 2)]  # N, n, m


def drawn(seed: int, steps: int, states: int, measured: int) -> tuple[StateSpace, Array]:
    """A model without any structure, and observations of it."""
    rng = np.random.default_rng(seed)

    def covariance(size: int) -> Array:
        root = rng.normal(size=(size, size + 1))
        return root @ root.T + 0.1 * np.eye(size)

    model = StateSpace(
        F=rng.normal(size=(states, states)) * 0.6,
        H=rng.normal(size=(measured, states)),
        Q=covariance(states),
        R=covariance(measured),
        mean0=rng.normal(size=states),
        cov0=covariance(states),
    )
    state, observations = rng.multivariate_normal(model.mean0, model.cov0), []
    for _ in range(steps):
        state = rng.multivariate_normal(model.F @ state, model.Q)
        observations.append(rng.multivariate_normal(model.H @ state, model.R))
    return model, np.array(observations)


def joint_posterior(model: StateSpace, observations: Array) -> tuple[Array, Array, float]:
    """Mean [N + 1, n] and covariance [N + 1, n, N + 1, n] of all states, and log p(y).

    By dense algebra: all states are a linear map of x_0 and the noises, all observations are one
    of the states, and a Gaussian is conditioned by its Schur complement.
    """
    steps, states = len(observations), len(model.mean0)
    map_ = np.zeros((steps + 1, states, steps + 1, states))  # x_s of noise t
    for s in range(steps + 1):
        for t in range(s + 1):
            map_[s, :, t] = np.linalg.matrix_power(model.F, s - t)
    map_ = map_.reshape((steps + 1) * states, -1)
    noise = np.kron(np.eye(steps + 1), model.Q)
    noise[:states, :states] = model.cov0
    start = np.zeros(len(noise))
    start[:states] = model.mean0
    mean, prior = map_ @ start, map_ @ noise @ map_.T
    measure = np.kron(np.eye(steps + 1)[1:], model.H)
    evidence = measure @ prior @ measure.T + np.kron(np.eye(steps), model.R)
    gain = prior @ measure.T @ np.linalg.inv(evidence)
    posterior = mean + gain @ (observations.ravel() - measure @ mean)
    covariance = (prior - gain @ measure @ prior).reshape(steps + 1, states, steps + 1, states)
    log_likelihood = multivariate_normal(measure @ mean, evidence).logpdf(observations.ravel())
    return posterior.reshape(steps + 1, states), covariance, float(log_likelihood)


def test_two_steps_of_a_scalar_by_hand() -> None:
    """F = H = 1, Q = R = Σ_0 = 1, μ_0 = 0 and y = 3, 0: P⁻ = 2, 5/3; K = 2/3, 5/8."""
    model = random_walk(np.zeros(1), 1, 1)
    filtered = kalman_filter(model, np.array([[3.0], [0.0]]))
    np.testing.assert_allclose(filtered.predicted_covariances.ravel(), [2, 5 / 3])
    np.testing.assert_allclose(filtered.means.ravel(), [0, 2, 0.75])
    np.testing.assert_allclose(filtered.covariances.ravel(), [1, 2 / 3, 5 / 8])
    smoothed = rts_smoother(model, filtered)  # G = 1/2, 2/5
    np.testing.assert_allclose(smoothed.means.ravel(), [0.75, 1.5, 0.75])
    np.testing.assert_allclose(smoothed.covariances.ravel(), [5 / 8, 1 / 2, 5 / 8])
    np.testing.assert_allclose(smoothed.lag_one.ravel(), [1 / 4, 1 / 4])


@pytest.mark.parametrize("shape", SHAPES)
def test_smoothing_is_conditioning_the_joint_gaussian(shape: tuple[int, int, int]) -> None:
    model, observations = drawn(1, *shape)
    filtered = kalman_filter(model, observations)
    smoothed = rts_smoother(model, filtered)
    mean, covariance, log_likelihood = joint_posterior(model, observations)
    np.testing.assert_allclose(smoothed.means, mean, rtol=1e-9, atol=1e-12)
    for t in range(len(mean)):
        np.testing.assert_allclose(smoothed.covariances[t], covariance[t, :, t], atol=1e-10)
    for t in range(1, len(mean)):
        np.testing.assert_allclose(smoothed.lag_one[t - 1], covariance[t, :, t - 1], atol=1e-10)
    assert filtered.log_likelihood == pytest.approx(log_likelihood, rel=1e-10)


def test_filtering_is_smoothing_what_was_seen_so_far() -> None:
    model, observations = drawn(2, 5, 2, 2)
    filtered = kalman_filter(model, observations)
    for t in range(1, 6):
        mean, covariance, _ = joint_posterior(model, observations[:t])
        np.testing.assert_allclose(filtered.means[t], mean[t], rtol=1e-9)
        np.testing.assert_allclose(filtered.covariances[t], covariance[t, :, t], atol=1e-10)


def test_equations_14_and_18_as_printed_are_not_the_joint_gaussian() -> None:
    """But Shumway & Stoffer's recursion is, with Fed-REACT, eq. 17 at its end."""
    model, observations = drawn(3, 4, 2, 3)
    filtered = kalman_filter(model, observations)
    past, predicted = filtered.covariances[:-1], filtered.predicted_covariances
    inverse = np.linalg.inv(predicted)
    gains = past @ model.F.T @ inverse
    _, covariance, _ = joint_posterior(model, observations)
    true = np.array([covariance[t, :, t - 1] for t in range(1, 5)])

    lag_one = [true[3]]
    correction = np.eye(2) - filtered.covariances[4] @ model.H.T @ np.linalg.inv(model.R) @ model.H
    np.testing.assert_allclose(true[3], correction @ model.F @ past[3], atol=1e-10)
    for t in (3, 2, 1):
        spread = filtered.covariances[t]
        gain_term = gains[t] @ (lag_one[0] - model.F @ spread)
        lag_one.insert(0, (spread + gain_term) @ gains[t - 1].T)
    np.testing.assert_allclose(lag_one, true, atol=1e-10)

    printed_gains = past @ model.F @ inverse
    assert np.abs(printed_gains - gains).max() > 0.01
    assert np.abs(past @ gains - true).max() > 0.01
    assert np.abs(past @ printed_gains - true).max() > 0.01


@pytest.mark.parametrize("shape", SHAPES)
def test_statsmodels_smooths_alike(shape: tuple[int, int, int]) -> None:
    model, observations = drawn(4, *shape)
    reference = KalmanSmoother(k_endog=shape[2], k_states=shape[1])
    reference.bind(np.asfortranarray(observations.T))
    reference["transition"], reference["design"], reference["selection"] = (
        model.F,
        model.H,
        np.eye(shape[1]),
    )
    reference["state_cov"], reference["obs_cov"] = model.Q, model.R
    # Theirs starts at x_1.
    reference.initialize_known(model.F @ model.mean0, model.F @ model.cov0 @ model.F.T + model.Q)
    result = reference.smooth()
    filtered = kalman_filter(model, observations)
    smoothed = rts_smoother(model, filtered)
    np.testing.assert_allclose(filtered.means[1:], result.filtered_state.T, atol=1e-9)
    np.testing.assert_allclose(smoothed.means[1:], result.smoothed_state.T, atol=1e-9)
    variances = result.smoothed_state_cov.transpose(2, 0, 1)
    np.testing.assert_allclose(smoothed.covariances[1:], variances, atol=1e-9)
    across = result.smoothed_state_autocov.transpose(2, 0, 1)[:-1]  # x_t+1 with x_t
    np.testing.assert_allclose(smoothed.lag_one[1:], across, atol=1e-9)
    assert filtered.log_likelihood == pytest.approx(result.llf, rel=1e-9)


@given(
    seed=st.integers(0, 2**32 - 1),
    steps=st.integers(1, 8),
    states=st.integers(1, 3),
    measured=st.integers(1, 3),
)
def test_no_step_of_em_lowers_the_likelihood(
    seed: int, steps: int, states: int, measured: int
) -> None:
    model, observations = drawn(seed, steps, states, measured)
    model = replace(model, Q=np.eye(states), R=np.eye(measured))
    before = kalman_filter(model, observations).log_likelihood
    for _ in range(3):
        model = expectation_maximisation(observations, model, 1)
        after = kalman_filter(model, observations).log_likelihood
        assert after >= before - 1e-7 * abs(before)
        before = after


def test_q_is_the_mean_square_of_the_jumps() -> None:
    """E|x_t − F x_{t−1}|² by the joint Gaussian."""
    model, observations = drawn(7, 5, 2, 2)
    mean, covariance, _ = joint_posterior(model, observations)
    expected = np.zeros((2, 2))
    for t in range(1, 6):
        step = np.zeros((2, 6, 2))  # x_t − F x_{t−1} of all states
        step[:, t], step[:, t - 1] = np.eye(2), -model.F
        step = step.reshape(2, -1)
        jump = step @ mean.ravel()
        expected += np.outer(jump, jump) + step @ covariance.reshape(12, 12) @ step.T
    fitted = expectation_maximisation(observations, model, 1)
    np.testing.assert_allclose(fitted.Q, expected / 5, atol=1e-10)
