"""An oracle: the Kalman smoother and its EM algorithm for any matrices, Fed-REACT, appendix B.

    x_t = F x_{t−1} + q_t,  y_t = H x_t + r_t,  q_t ~ N(0, Q),  r_t ~ N(0, R),  x_0 ~ N(μ_0, Σ_0)

(Fed-REACT, eqs. 7 and 8). Shapes: N observations y_1 … y_N of m values, N + 1 states of n values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedproto_app.strategies.fed_react.clustered_heads import VARIANCE_FLOOR, Array


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
    """The Kalman filter (Fed-REACT, eqs. 9 to 13). observations: [N, m], finite.

    Raises LinAlgError where an observation's covariance HP⁻Hᵀ + R is singular.
    """
    steps, states = len(observations), len(model.mean0)
    predicted_means, predicted = np.empty((steps, states)), np.empty((steps, states, states))
    means, covariances = np.empty((steps + 1, states)), np.empty((steps + 1, states, states))
    means[0], covariances[0] = model.mean0, model.cov0
    log_likelihood = 0.0
    for t, observation in enumerate(observations, start=1):
        mean = model.F @ means[t - 1]
        covariance = model.F @ covariances[t - 1] @ model.F.T + model.Q
        innovation = observation - model.H @ mean
        expected = model.H @ covariance @ model.H.T + model.R  # covariance of the innovation
        gain = np.linalg.solve(expected, model.H @ covariance).T
        means[t] = mean + gain @ innovation
        covariances[t] = _symmetric(covariance - gain @ model.H @ covariance)
        predicted_means[t - 1], predicted[t - 1] = mean, covariance
        log_likelihood += _log_density(innovation, expected)
    return Filtered(predicted_means, predicted, means, covariances, log_likelihood)


def rts_smoother(model: StateSpace, filtered: Filtered) -> Smoothed:
    """The Rauch-Tung-Striebel smoother and its lag-one covariances (Fed-REACT, eqs. 14 to 18).

    Raises LinAlgError where a predicted covariance is singular; a positive definite Q has none.
    """
    means, covariances = filtered.means.copy(), filtered.covariances.copy()
    lag_one = np.empty_like(filtered.predicted_covariances)
    for t in range(len(lag_one), 0, -1):
        predicted = filtered.predicted_covariances[t - 1]
        gain = np.linalg.solve(predicted, model.F @ covariances[t - 1]).T
        means[t - 1] += gain @ (means[t] - filtered.predicted_means[t - 1])
        covariances[t - 1] += _symmetric(gain @ (covariances[t] - predicted) @ gain.T)
        lag_one[t - 1] = covariances[t] @ gain.T
    return Smoothed(means, covariances, lag_one)


def expectation_maximisation(observations: Array, model: StateSpace, steps: int) -> StateSpace:
    """The model with Q and R after so many steps of EM (Fed-REACT, eqs. 20 to 24); F stays."""
    for _ in range(steps):
        smoothed = rts_smoother(model, kalman_filter(model, observations))
        earlier, later = smoothed.means[:-1], smoothed.means[1:]
        A = smoothed.covariances[:-1].sum(axis=0) + earlier.T @ earlier  # Fed-REACT, eq. 22
        B = smoothed.lag_one.sum(axis=0) + later.T @ earlier  # Fed-REACT, eq. 23
        C = smoothed.covariances[1:].sum(axis=0) + later.T @ later  # Fed-REACT, eq. 24
        F, H = model.F, model.H
        Q = C - F @ B.T - B @ F.T + F @ A @ F.T  # Fed-REACT, eq. 20 where F = B A⁻¹
        residuals = observations - later @ H.T  # Fed-REACT, eq. 21
        R = residuals.T @ residuals + H @ smoothed.covariances[1:].sum(axis=0) @ H.T
        count = len(observations)
        model = replace(model, Q=_floored(Q / count), R=_floored(R / count))
    return model


def random_walk(start: Array, q: float, r: float) -> StateSpace:
    """The special case that `strategies/fed_react/clustered_heads.py` has."""
    unit = np.eye(len(start))
    return StateSpace(unit, unit, q * unit, r * unit, start, unit)


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
