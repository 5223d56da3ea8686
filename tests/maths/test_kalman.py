"""Fed-REACT's appendix B against the joint Gaussian distribution, statsmodels and scipy."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

from fedproto_app.maths.kalman import (
    VARIANCE_FLOOR,
    Array,
    StateSpace,
    _walk,
    expectation_maximisation,
    fit_random_walk,
    kalman_filter,
    newest_state,
    rts_smoother,
)

SHAPES = [(1, 1, 1), (5, 1, 1), (4, 2, 3), (6, 3, 2)]  # N, n, m
seeds = st.integers(0, 2**32 - 1)


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


def random_walk(start: Array, q: float, r: float) -> StateSpace:
    unit = np.eye(len(start))
    return StateSpace(unit, unit, q * unit, r * unit, start, unit)


def noisy_walk(seed: int, steps: int, coordinates: int, q: float, r: float) -> Array:
    rng = np.random.default_rng(seed)
    walk = rng.normal(scale=q**0.5, size=(steps, coordinates)).cumsum(axis=0)
    return 3 + walk + rng.normal(scale=r**0.5, size=walk.shape)


def smoothed_walk(observations: Array, q: float, r: float) -> tuple[Array, Array]:
    """x̂_{1|T} … x̂_{T|T} and their variances, of what a step of the EM algorithm works with."""
    covariance = _walk(len(observations), q, r).covariance()[1:, 1:]
    start = observations[0]
    return start + covariance / r @ (observations - start), covariance.diagonal().copy()


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
    """And Shumway & Stoffer's recursion for the lag-one covariances is, with eq. 17 at its end."""
    model, observations = drawn(3, 4, 2, 3)
    filtered = kalman_filter(model, observations)
    past, predicted = filtered.covariances[:-1], filtered.predicted_covariances
    inverse = np.linalg.inv(predicted)
    gains = past @ model.F.T @ inverse
    _, covariance, _ = joint_posterior(model, observations)
    true = np.array([covariance[t, :, t - 1] for t in range(1, 5)])

    lag_one = [true[3]]
    kept = np.eye(2) - filtered.covariances[4] @ model.H.T @ np.linalg.inv(model.R) @ model.H
    np.testing.assert_allclose(true[3], kept @ model.F @ past[3], atol=1e-10)  # eq. 17
    for t in (3, 2, 1):
        spread = filtered.covariances[t]
        rest = gains[t] @ (lag_one[0] - model.F @ spread)
        lag_one.insert(0, (spread + rest) @ gains[t - 1].T)
    np.testing.assert_allclose(lag_one, true, atol=1e-10)

    printed_gains = past @ model.F @ inverse
    assert np.abs(printed_gains - gains).max() > 0.01
    assert np.abs(past @ gains - true).max() > 0.01
    assert np.abs(past @ printed_gains - true).max() > 0.01


@pytest.mark.parametrize("shape", SHAPES)
def test_statsmodels_smooths_alike(shape: tuple[int, int, int]) -> None:
    model, observations = drawn(4, *shape)
    theirs = KalmanSmoother(k_endog=shape[2], k_states=shape[1])
    theirs.bind(np.asfortranarray(observations.T))
    theirs["transition"], theirs["design"], theirs["selection"] = model.F, model.H, np.eye(shape[1])
    theirs["state_cov"], theirs["obs_cov"] = model.Q, model.R
    # Theirs starts at x_1.
    theirs.initialize_known(model.F @ model.mean0, model.F @ model.cov0 @ model.F.T + model.Q)
    result = theirs.smooth()
    filtered = kalman_filter(model, observations)
    smoothed = rts_smoother(model, filtered)
    np.testing.assert_allclose(filtered.means[1:], result.filtered_state.T, atol=1e-9)
    np.testing.assert_allclose(smoothed.means[1:], result.smoothed_state.T, atol=1e-9)
    variances = result.smoothed_state_cov.transpose(2, 0, 1)
    np.testing.assert_allclose(smoothed.covariances[1:], variances, atol=1e-9)
    across = result.smoothed_state_autocov.transpose(2, 0, 1)[:-1]  # x_t+1 with x_t
    np.testing.assert_allclose(smoothed.lag_one[1:], across, atol=1e-9)
    assert filtered.log_likelihood == pytest.approx(result.llf, rel=1e-9)


@given(seed=seeds, steps=st.integers(1, 8), states=st.integers(1, 3), measured=st.integers(1, 3))
def test_no_step_of_em_lowers_the_likelihood(
    seed: int, steps: int, states: int, measured: int
) -> None:
    model, observations = drawn(seed, steps, states, measured)
    model = replace(model, F=np.eye(states), Q=np.eye(states), R=np.eye(measured))
    before = kalman_filter(model, observations).log_likelihood
    for _ in range(3):
        model = expectation_maximisation(observations, model, 1)
        after = kalman_filter(model, observations).log_likelihood
        assert after >= before - 1e-7 * abs(before)
        before = after


def test_em_ends_at_a_maximum_of_the_likelihood() -> None:
    rng = np.random.default_rng(5)
    state, states = 0.0, []
    for _ in range(100):
        state = 0.8 * state + rng.normal()
        states.append(state)
    observations = np.array(states)[:, None] + 0.7 * rng.normal(size=(100, 1))
    start = random_walk(np.zeros(1), 1, 1)

    def at(f: float, log_q: float, log_r: float) -> StateSpace:
        return replace(start, F=np.array([[f]]), Q=np.exp([[log_q]]), R=np.exp([[log_r]]))

    def cost(parameters: Array) -> float:
        return -kalman_filter(at(*parameters), observations).log_likelihood

    options = {"xatol": 1e-6, "fatol": 1e-10}
    best = minimize(cost, [1.0, 0.0, 0.0], method="Nelder-Mead", options=options)
    stays = expectation_maximisation(observations, at(*best.x), 5)
    found = [stays.F[0, 0], np.log(stays.Q[0, 0]), np.log(stays.R[0, 0])]
    np.testing.assert_allclose(found, best.x, atol=1e-4)
    climbed = expectation_maximisation(observations, start, 50)
    assert -best.fun - kalman_filter(climbed, observations).log_likelihood < 0.1


@pytest.mark.parametrize("estimated", [["F"], ["Q"], ["R"], ["Q", "R"], []])
def test_em_leaves_what_is_not_estimated(estimated: list[str]) -> None:
    model, observations = drawn(6, 6, 2, 2)
    fitted = expectation_maximisation(observations, model, 2, estimated)
    for name in ("F", "H", "Q", "R", "mean0", "cov0"):
        same = np.array_equal(getattr(fitted, name), getattr(model, name))
        assert same == (name not in estimated), name
    before = kalman_filter(model, observations).log_likelihood
    after = kalman_filter(fitted, observations).log_likelihood
    assert after > before if estimated else after == before


def test_q_is_equation_20_when_f_is_estimated_too() -> None:
    """With B, A and C from the joint Gaussian."""
    model, observations = drawn(7, 5, 2, 2)
    mean, covariance, _ = joint_posterior(model, observations)

    def second_moment(s: int, t: int) -> Array:
        return covariance[s, :, t] + np.outer(mean[s], mean[t])

    A = sum(second_moment(t - 1, t - 1) for t in range(1, 6))
    B = sum(second_moment(t, t - 1) for t in range(1, 6))
    C = sum(second_moment(t, t) for t in range(1, 6))
    fitted = expectation_maximisation(observations, model, 1)
    np.testing.assert_allclose(fitted.F, B @ np.linalg.inv(A), atol=1e-10)
    np.testing.assert_allclose(fitted.Q, (C - B @ np.linalg.inv(A) @ B.T) / 5, atol=1e-10)


def test_em_keeps_covariances_positive_where_nothing_varies() -> None:
    model = random_walk(np.ones(2), 1, 1)
    fitted = expectation_maximisation(np.ones((1, 2)), model, 2000, ("Q", "R"))
    floored = expectation_maximisation(
        np.ones((3, 2)), replace(model, Q=1e-13 * np.eye(2)), 1, ("Q",)
    )
    assert np.linalg.eigvalsh(fitted.Q).min() >= VARIANCE_FLOOR
    np.testing.assert_allclose(floored.Q, VARIANCE_FLOOR * np.eye(2), rtol=1e-6)


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
    fitted = expectation_maximisation(observations, model, 1, ("Q", "R"))
    expected = [fitted.Q.trace() / coordinates, fitted.R.trace() / coordinates]
    np.testing.assert_allclose(fit_random_walk(observations, q, r, 1), expected, atol=1e-10)


def test_the_random_walks_em_is_the_general_form_over_many_steps() -> None:
    observations = noisy_walk(8, 12, 1, 0.3, 0.2)
    fitted = expectation_maximisation(
        observations, random_walk(observations[0], 0.01, 10.0), 25, ("Q", "R")
    )
    found = fit_random_walk(observations, 0.01, 10.0, 25)
    np.testing.assert_allclose(found, [fitted.Q.item(), fitted.R.item()], rtol=1e-10)


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
    """As equations 9 to 15 in fractions have it."""
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
