"""The Kalman smoother and its EM algorithm: Fed-REACT's appendix B, equations 7 to 24.

Source: Fed-REACT, appendix B, after Shumway & Stoffer, "An approach to time series smoothing and
forecasting using the EM algorithm", Journal of Time Series Analysis 3(4), 1982. The model is
    x_t = F x_{t−1} + q_t,  y_t = H x_t + r_t,  q_t ~ N(0, Q),  r_t ~ N(0, R),  x_0 ~ N(μ_0, Σ_0).
Shapes: N observations y_1 … y_N of m values, N + 1 states x_0 … x_N of n values.

Two equations differ here from the print, as the joint Gaussian distribution of all states has it:
- eq. 14 must transpose F: G_{t−1} = P⁺_{t−1} Fᵀ (P⁻_t)⁻¹;
- eq. 18 is P_{t,t−1|N} = P_{t|N} G_{t−1}ᵀ, which is Shumway & Stoffer's recursion in closed form
  and eq. 17 at t = N. The printed P⁺_{t−1} G_{t−1} knows nothing of the later observations.

The second half is the form that the servers use: F = H = I, Q = qI, R = rI, Σ_0 = I. There all
covariances are a number times I, whatever the number P of coordinates.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The least variance the EM algorithm returns. Data without noise, or that never change, drive it
# to 0, where the next filter would divide 0 by 0.
VARIANCE_FLOOR = 1e-12

START_VARIANCE = 1.0  # of x_0 in the random walk: P_0 = I (section 4)


@dataclass(frozen=True, eq=False)
class StateSpace:
    """The model's parameters. F, Q, cov0: [n, n]; H: [m, n]; R: [m, m]; mean0: [n]."""

    F: Array
    H: Array
    Q: Array
    R: Array
    mean0: Array
    cov0: Array


@dataclass(frozen=True, eq=False)
class Filtered:
    """States given the observations so far. Row t of means and covariances is x̂⁺_t, row 0 x_0's.

    Row t − 1 of predicted_means and predicted_covariances is x̂⁻_t, what step t − 1 expects.
    log_likelihood: of all observations, in nats.
    """

    predicted_means: Array  # (N, n)
    predicted_covariances: Array  # (N, n, n)
    means: Array  # (N + 1, n)
    covariances: Array  # (N + 1, n, n)
    log_likelihood: float


@dataclass(frozen=True, eq=False)
class Smoothed:
    """States given all observations. Row t of means and covariances is x̂_{t|N}, row 0 x_0's.

    Row t − 1 of lag_one is P_{t,t−1|N} = Cov(x_t, x_{t−1}).
    """

    means: Array  # (N + 1, n)
    covariances: Array  # (N + 1, n, n)
    lag_one: Array  # (N, n, n)


def kalman_filter(model: StateSpace, observations: Array) -> Filtered:
    """The Kalman filter (eqs. 9–13). observations: [N, m], finite.

    Raises LinAlgError where an observation's covariance HP⁻Hᵀ + R is singular.
    """
    steps, states = len(observations), len(model.mean0)
    predicted_means, predicted = np.empty((steps, states)), np.empty((steps, states, states))
    means, covariances = np.empty((steps + 1, states)), np.empty((steps + 1, states, states))
    means[0], covariances[0] = model.mean0, model.cov0
    log_likelihood = 0.0
    for t, observation in enumerate(observations, start=1):
        mean = model.F @ means[t - 1]  # eq. 9
        covariance = model.F @ covariances[t - 1] @ model.F.T + model.Q  # eq. 10
        innovation = observation - model.H @ mean
        expected = model.H @ covariance @ model.H.T + model.R  # covariance of the innovation
        gain = np.linalg.solve(expected, model.H @ covariance).T  # eq. 11
        means[t] = mean + gain @ innovation  # eq. 12
        covariances[t] = _symmetric(covariance - gain @ model.H @ covariance)  # eq. 13
        predicted_means[t - 1], predicted[t - 1] = mean, covariance
        log_likelihood += _log_density(innovation, expected)
    return Filtered(predicted_means, predicted, means, covariances, log_likelihood)


def rts_smoother(model: StateSpace, filtered: Filtered) -> Smoothed:
    """The Rauch-Tung-Striebel smoother and its lag-one covariances (eqs. 14–18).

    Raises LinAlgError where a predicted covariance is singular; a positive definite Q has none.
    """
    means, covariances = filtered.means.copy(), filtered.covariances.copy()
    lag_one = np.empty_like(filtered.predicted_covariances)
    for t in range(len(lag_one), 0, -1):
        predicted = filtered.predicted_covariances[t - 1]
        gain = np.linalg.solve(predicted, model.F @ covariances[t - 1]).T  # eq. 14
        means[t - 1] += gain @ (means[t] - filtered.predicted_means[t - 1])  # eq. 15
        covariances[t - 1] += _symmetric(gain @ (covariances[t] - predicted) @ gain.T)  # eq. 16
        lag_one[t - 1] = covariances[t] @ gain.T  # eqs. 17 and 18
    return Smoothed(means, covariances, lag_one)


def expectation_maximisation(
    observations: Array,
    model: StateSpace,
    iterations: int,
    estimated: Collection[Literal["F", "Q", "R"]] = ("F", "Q", "R"),
) -> StateSpace:
    """The model after so many steps of the EM algorithm (eqs. 19–24).

    observations: [N, m], N ≥ 1. What is not in `estimated` stays as it is, as do H, mean0, cov0.
    The log-likelihood never falls, if Q and R start with no eigenvalue below VARIANCE_FLOOR; the
    M step keeps them from there, as the best Q and R that are so bounded.
    """
    for _ in range(iterations):
        smoothed = rts_smoother(model, kalman_filter(model, observations))
        if "F" in estimated:
            model = replace(model, F=_best_transition(smoothed))
        if "Q" in estimated:
            model = replace(model, Q=_floored(_process_covariance(smoothed, model.F)))
        if "R" in estimated:
            noise = _measurement_covariance(smoothed, model.H, observations)
            model = replace(model, R=_floored(noise))
    return model


def _best_transition(smoothed: Smoothed) -> Array:
    """F = B A⁻¹ (eq. 19)."""
    before, across, _ = _moments(smoothed)
    return np.asarray(np.linalg.solve(before, across.T).T, dtype=np.float64)


def _process_covariance(smoothed: Smoothed, F: Array) -> Array:
    """Q = (C − F Bᵀ − B Fᵀ + F A Fᵀ) / N for any F; with F = B A⁻¹ this is eq. 20."""
    before, across, after = _moments(smoothed)
    total: Array = after - F @ across.T - across @ F.T + F @ before @ F.T
    return total / len(smoothed.lag_one)


def _measurement_covariance(smoothed: Smoothed, H: Array, observations: Array) -> Array:
    """R (eq. 21)."""
    residuals = observations - smoothed.means[1:] @ H.T
    spread = H @ smoothed.covariances[1:].sum(axis=0) @ H.T
    total: Array = residuals.T @ residuals + spread
    return total / len(observations)


def _moments(smoothed: Smoothed) -> tuple[Array, Array, Array]:
    """A, B and C (eqs. 22–24), each [n, n]."""
    earlier, later = smoothed.means[:-1], smoothed.means[1:]
    before = smoothed.covariances[:-1].sum(axis=0) + earlier.T @ earlier
    across = smoothed.lag_one.sum(axis=0) + later.T @ earlier
    after = smoothed.covariances[1:].sum(axis=0) + later.T @ later
    return before, across, after


def _floored(covariance: Array) -> Array:
    """The covariance with no eigenvalue below VARIANCE_FLOOR."""
    values, vectors = np.linalg.eigh(_symmetric(covariance))
    floored: Array = (vectors * values.clip(min=VARIANCE_FLOOR)) @ vectors.T
    return floored


def _symmetric(matrix: Array) -> Array:
    return (matrix + matrix.T) / 2


def _log_density(innovation: Array, covariance: Array) -> float:
    """log N(innovation; 0, covariance)."""
    distance = innovation @ np.linalg.solve(covariance, innovation)
    log_volume = np.linalg.slogdet(covariance).logabsdet + len(innovation) * np.log(2 * np.pi)
    return float(-(distance + log_volume) / 2)


def newest_state(observations: Array, q: float, r: float) -> Array:
    """x̂_T, the random walk's newest state, filtered and smoothed alike (eqs. 9–13): [T, P] → [P].

    q, r > 0: the variances of the process and of the measurement, one for all coordinates. x_0 has
    the first observation as its mean and the variance 1; that observation also counts as y_1. So
    the state of one observation is that observation.
    """
    state: Array = observations[0].copy()
    for observation, gain in zip(observations, _walk(len(observations), q, r).gains, strict=True):
        state += gain * (observation - state)  # eqs. 9 and 12
    return state


def fit_random_walk(
    observations: Array, q: float, r: float, iterations: int
) -> tuple[float, float]:
    """q and r of the random walk after so many steps of EM (eqs. 20 and 21 with F = H = I).

    observations: [T, P], T ≥ 1; the model is that of `newest_state`, starting at q, r > 0. The two
    are means over the coordinates and stay at or above VARIANCE_FLOOR: one observation, or equal
    ones, make them smaller with every step. The log-likelihood never falls.

    The observations enter only through their [T, T] matrix of products, so a step costs T³, however
    many coordinates there are.
    """
    deviations = observations - observations[0]
    products = deviations @ deviations.T / observations.shape[1]
    for _ in range(iterations):
        q, r = _fit_step(products, q, r)
    return q, r


def _fit_step(products: Array, q: float, r: float) -> tuple[float, float]:
    """One E step and one M step. products: [T, T], mean over the coordinates of (y_s−y_1)(y_t−y_1).

    With D the deviations y − y_1, the smoothed states deviate by M D, so that a sum of squares like
    |y − x̂|² is the trace of (I − M) D Dᵀ (I − M)ᵀ.
    """
    steps = len(products)
    walk = _walk(steps, q, r)
    weights = walk.covariance()[:, 1:] / r  # M, (T + 1, T)
    states = weights @ products
    jumps = np.vdot(np.diff(weights, axis=0), np.diff(states, axis=0))
    residuals = np.vdot(np.eye(steps) - weights[1:], products - states[1:])
    spread = walk.smoothed[1:]
    # Var(x_t − x_{t−1}), in a form without differences of nearly equal numbers.
    jump_spread = (1 - walk.smoother_gains) ** 2 * spread + walk.smoother_gains * q
    new_q = (jumps + jump_spread.sum()) / steps
    new_r = (residuals + spread.sum()) / steps
    return max(float(new_q), VARIANCE_FLOOR), max(float(new_r), VARIANCE_FLOOR)


@dataclass(frozen=True, eq=False)
class _Walk:
    """What T steps of a random walk have whatever is observed: gains and variances, P = p I."""

    gains: Array  # K_1 … K_T, (T,)
    smoother_gains: Array  # G_0 … G_{T−1}, (T,)
    smoothed: Array  # p_{0|T} … p_{T|T}, (T + 1,)

    def covariance(self) -> Array:
        """Cov(x_s, x_t) of a coordinate given all T observations, [T + 1, T + 1].

        For s ≤ t that is G_s ⋯ G_{t−1} p_{t|T}, of which eq. 18 is the case s = t − 1. Divided by
        r, column t is what y_t adds to each state.
        """
        logarithms = np.append(0.0, np.log(self.smoother_gains).cumsum())
        decay = np.exp(-np.abs(logarithms[:, None] - logarithms))
        step = np.arange(len(self.smoothed))
        covariance: Array = decay * self.smoothed[np.maximum(step[:, None], step)]
        return covariance


def _walk(steps: int, q: float, r: float) -> _Walk:
    """Equations 10, 11, 13, 14 and 16 for numbers, without differences: all stays positive."""
    gains, smoother_gains = np.empty(steps), np.empty(steps)
    variance = START_VARIANCE
    for t in range(steps):
        predicted = variance + q  # eq. 10
        smoother_gains[t] = variance / predicted  # eq. 14
        gains[t] = predicted / (predicted + r)  # eq. 11
        variance = gains[t] * r  # eq. 13
    smoothed = np.empty(steps + 1)
    smoothed[steps] = variance
    for t in range(steps, 0, -1):  # eq. 16, as p⁺ − G² p⁻ = G q
        smoothed[t - 1] = smoother_gains[t - 1] ** 2 * smoothed[t] + smoother_gains[t - 1] * q
    return _Walk(gains, smoother_gains, smoothed)
