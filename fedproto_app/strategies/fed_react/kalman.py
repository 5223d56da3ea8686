"""A Kalman filter and smoother for a random walk, whose variances the EM algorithm estimates.

Source: Fed-REACT, appendix B, after Shumway & Stoffer, "An approach to time series smoothing and
forecasting using the EM algorithm", Journal of Time Series Analysis 3(4), 1982. The model is
    x_t = x_{t−1} + q_t,  y_t = x_t + r_t,  q_t ~ N(0, qI),  r_t ~ N(0, rI),
which is the paper's with F = H = I, Q = qI, R = rI and P_0 = I (Fed-REACT, section 4.1.2). All
covariances are a number times I, whatever the number P of coordinates.

The tests check this module against the general matrix form. There, Fed-REACT, eq. 14 must transpose
F, and Fed-REACT, eq. 18 must be P_{t,t−1|N} = P_{t|N} G_{t−1}ᵀ: the printed P⁺_{t−1} G_{t−1}
ignores the later observations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The smallest variance that EM returns. Data that are constant or free of noise drive a variance to
# 0, where the next filter would divide 0 by 0.
VARIANCE_FLOOR = 1e-12

START_VARIANCE = 1.0  # the variance of x_0: P_0 = I


def newest_state(observations: Array, q: float, r: float) -> Array:
    """Return x̂_T, the newest state, [P], of observations [T, P] (Fed-REACT, eqs. 9 to 13).

    Filter and smoother agree on it. q, r > 0: the variances of the process and of the measurement,
    the same for all coordinates. x_0 has the first observation as its mean, and variance 1. That
    observation also counts as y_1, so the state of a single observation is that observation.
    """
    state: Array = observations[0].copy()
    for observation, gain in zip(observations, _walk(len(observations), q, r).gains, strict=True):
        state += gain * (observation - state)  # Fed-REACT, eqs. 9 and 12
    return state


def fit_random_walk(
    observations: Array, q: float, r: float, iterations: int
) -> tuple[float, float]:
    """Return q and r after this number of EM steps (Fed-REACT, eqs. 20 and 21).

    observations: [T, P], T ≥ 1. The model is `newest_state`'s, and q, r > 0 are the start.
    The results are means over the coordinates. They are at least VARIANCE_FLOOR, because they
    shrink with every step if there is a single observation or if all are equal. The log-likelihood
    never falls.

    The observations enter only through their [T, T] matrix of products, so a step costs T³ for any
    number of coordinates.
    """
    deviations = observations - observations[0]
    products = deviations @ deviations.T / observations.shape[1]
    for _ in range(iterations):
        q, r = _fit_step(products, q, r)
    return q, r


def _fit_step(products: Array, q: float, r: float) -> tuple[float, float]:
    """Return q and r after an E step and an M step.

    products: [T, T], the mean over the coordinates of (y_s−y_1)(y_t−y_1).

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
    """Gains and variances of T steps of a random walk, whatever the observations. P is p I."""

    gains: Array  # K_1 … K_T, (T,)
    smoother_gains: Array  # G_0 … G_{T−1}, (T,)
    smoothed: Array  # p_{0|T} … p_{T|T}, (T + 1,)

    def covariance(self) -> Array:
        """Return Cov(x_s, x_t) of a coordinate given all T observations, [T + 1, T + 1].

        For s ≤ t it is G_s ⋯ G_{t−1} p_{t|T}, and Fed-REACT, eq. 18 is the case s = t − 1. Column t
        divided by r gives the weights of y_t in the states.
        """
        logarithms = np.append(0.0, np.log(self.smoother_gains).cumsum())
        decay = np.exp(-np.abs(logarithms[:, None] - logarithms))
        step = np.arange(len(self.smoothed))
        covariance: Array = decay * self.smoothed[np.maximum(step[:, None], step)]
        return covariance


def _walk(steps: int, q: float, r: float) -> _Walk:
    """Compute Fed-REACT, eqs. 10, 11, 13, 14 and 16, without differences, so that all values stay
    positive."""
    gains, smoother_gains = np.empty(steps), np.empty(steps)
    variance = START_VARIANCE
    for t in range(steps):
        predicted = variance + q  # Fed-REACT, eq. 10
        smoother_gains[t] = variance / predicted  # Fed-REACT, eq. 14
        gains[t] = predicted / (predicted + r)  # Fed-REACT, eq. 11
        variance = gains[t] * r  # Fed-REACT, eq. 13
    smoothed = np.empty(steps + 1)
    smoothed[steps] = variance
    for t in range(steps, 0, -1):  # Fed-REACT, eq. 16, as p⁺ − G² p⁻ = G q
        smoothed[t - 1] = smoother_gains[t - 1] ** 2 * smoothed[t] + smoother_gains[t - 1] * q
    return _Walk(gains, smoother_gains, smoothed)
