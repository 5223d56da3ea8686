"""θ: a client's response, from its own sums and from everybody's.

A client forms differences of values that are L steps apart, for L = one period and, where periods
are days, also seven. They remove level, trend and daily profile, which else hide in θ:
    A = mean of Δφ Δφᵀ,  b = mean of Δφ Δy,  q = mean of (Δy)².
With A', b', q' the means over all clients, and a strength s of 0, 1 or 20, it solves
    θ_s = (A_s + λ I)⁻¹ b_s  for  A_s = (A + s A') / (1 + s), and b_s and q_s likewise.

Neighbouring hours have nearly the same weather, and neighbouring clients too, so days count, not
values: a client's d days and an average client's D days are worth about
    n_s = 3 (1 + s)² / (1/d + s²/D)
independent differences. With so many, the sums themselves tell how strong the penalty must be, and
whether there is a response at all: by the marginal likelihood of a linear model with a normal prior
of θ (MacKay, "Bayesian Interpolation", Neural Computation 1992),
    log L(λ) = −½ Σ_i log(1 + w_i/λ) − n_s/2 · log(1 − b_sᵀ (A_s + λ I)⁻¹ b_s / q_s),
where w_i are the eigenvalues of A_s. Without a response it is 0. θ_s is the mean over the penalties
and no response, weighted by L. A column is first scaled by the probability that it matters at all.

The client's response is the mean of no response, θ_0, θ_1 and θ_20, weighted by how well they
explain the seasonal differences of its validation part (maths/candidates.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedproto_app.maths.candidates import TRAINING_SHARE, shares
from fedproto_app.strategies.response.features import (
    FEATURES,
    LARGEST,
    Columns,
    Floats,
    Part,
    Response,
    features,
)

WEEK = 7  # periods
FEWEST_PER_FEATURE = 3  # values of a client behind each feature of the sums that it sends
BINS = 24  # of a standardised value's range ±3, in which clients count their values
FEWEST_IN_BIN = 24  # values of all clients, for a bin to count as seen

_PENALTIES = np.array([1e-3, 1e-2, 1e-1, 1.0, 10.0])  # λ
_STRENGTHS = (0.0, 1.0, 20.0)  # s
_INDEPENDENT = 3.0  # seasonal differences of a day
_NO_RESPONSE, _MOST_PRIOR = 0.1, 20.0  # prior weights, relative to a client's own response
_TINY, _LARGEST_LOG = 1e-12, 500.0
_ETA = 1.0  # how much a day of validation counts (candidates.shares)


@dataclass(frozen=True)
class Sums:
    """A [D, D], b [D] and q: means over seasonal differences.

    days: of the client, or of an average client. differences: the number that a client has.
    """

    gram: Floats
    moment: Floats
    square: float
    days: float
    differences: int = 0

    def of(self, features: NDArray[np.bool_]) -> Sums:
        """Return the sums of these features alone."""
        gram = self.gram[np.ix_(features, features)]
        return replace(self, gram=gram, moment=self.moment[features])

    def scaled(self, factors: Floats) -> Sums:
        """Return the sums of the features times these factors, [D]."""
        gram = self.gram * factors * factors[:, None]
        return replace(self, gram=gram, moment=self.moment * factors)

    def pooled(self, everybody: Sums, strength: float) -> Sums:
        """Return A_s, b_s and q_s with the days that they are worth."""
        share = strength / (1 + strength)
        gram = self.gram + share * (everybody.gram - self.gram)
        moment = self.moment + share * (everybody.moment - self.moment)
        square = self.square + share * (everybody.square - self.square)
        variance = 1 / self.days + strength**2 / max(self.days, everybody.days)
        return Sums(gram, moment, square, (1 + strength) ** 2 / variance)


@dataclass(frozen=True)
class History:
    """A client's values on the standard scale and its standardised columns, up to the end of its
    validation part.

    values: [T], NaN where missing. v: [T, 3, k]. positions: [T], on the source's clock. train,
    validation: the parts. lags: see `lags_of`. period: in steps.
    """

    values: Floats
    v: Floats
    positions: NDArray[np.int64]
    train: slice
    validation: slice
    lags: tuple[int, ...]
    period: int

    def features(self, columns: Columns) -> Floats:
        """Return φ, [T, D]."""
        return features(self.v, self.positions, self.period, columns)

    @property
    def train_days(self) -> float:
        """The periods of the train part."""
        return max(1.0, float(self.train.stop - self.train.start) / self.period)


def lags_of(period: int, *, has_weeks: bool) -> tuple[int, ...]:
    """Return the lags of the seasonal differences, in steps."""
    return (period, WEEK * period) if has_weeks else (period,)


def pairs(values: Floats, lag: int, part: slice, first: int = 0) -> NDArray[np.int64]:
    """Return the steps of a part with a value and another a lag before, not before `first`."""
    steps: NDArray[np.int64] = np.arange(max(part.start, first + lag), part.stop)
    has_both: NDArray[np.bool_] = np.isfinite(values[steps]) & np.isfinite(values[steps - lag])
    return steps[has_both]


def seasonal_sums(history: History, phi: Floats) -> Sums:
    """Return the sums over the seasonal differences of the train part, zeros if it has none."""
    width, count = phi.shape[1], 0
    gram, moment, square = np.zeros((width, width)), np.zeros(width), 0.0
    used = phi.any(axis=0)
    for lag in history.lags:
        steps = pairs(history.values, lag, history.train, history.train.start)
        of_features = phi[np.ix_(steps, used)] - phi[np.ix_(steps - lag, used)]
        of_values = history.values[steps] - history.values[steps - lag]
        gram[np.ix_(used, used)] += of_features.T @ of_features
        moment[used] += of_features.T @ of_values
        square += float(of_values @ of_values)
        count += len(steps)
    divisor = max(count, 1)
    days = history.train_days
    return Sums(gram / divisor, moment / divisor, square / divisor, days, count)


def seen(v: Floats, train: slice) -> Floats:
    """Return how many values of the train part lie in each bin of ±3, [3, k, bins]."""
    places = np.clip(((v[train] + LARGEST) * BINS / (2 * LARGEST)).astype(int), 0, BINS - 1)
    counts: Floats = (places[..., None] == np.arange(BINS)).sum(axis=0).astype(float)
    return counts


def seen_range(counts: Floats) -> tuple[Floats, Floats]:
    """Return the lowest and the highest value, [3, k], that enough values of all clients support.

    counts: [3, k, bins]. Without such a bin both are 0.
    """
    enough = counts >= FEWEST_IN_BIN
    edges = np.linspace(-LARGEST, LARGEST, BINS + 1)
    lowest = edges[:-1][enough.argmax(axis=-1)]
    highest = edges[1:][BINS - 1 - enough[..., ::-1].argmax(axis=-1)]
    exists = enough.any(axis=-1)
    return np.where(exists, lowest, 0.0), np.where(exists, highest, 0.0)


def evidence(sums: Sums) -> tuple[Floats, Floats]:
    """Return log L(λ) for every penalty, [P], and the solutions θ(λ), [P, D]."""
    values, vectors = np.linalg.eigh(sums.gram)
    values, turned = np.maximum(values, 0.0), vectors.T @ sums.moment
    shrunk = turned / (values + _PENALTIES[:, None])
    explained = np.minimum(shrunk @ turned / max(sums.square, _TINY), 1 - _TINY)
    logs = -0.5 * np.log1p(values / _PENALTIES[:, None]).sum(axis=1)
    logs = logs - _INDEPENDENT / 2 * sums.days * np.log1p(-explained)
    return logs, shrunk @ vectors.T


def mean_solution(sums: Sums) -> Floats:
    """Return the mean of the solutions and of no response, weighted by their evidence, [D]."""
    logs, solutions = evidence(sums)
    weights = np.exp(logs - max(logs.max(), 0.0))
    nothing = len(weights) * np.exp(-max(logs.max(), 0.0))  # it weighs as much as all penalties
    mean: Floats = weights @ solutions / (weights.sum() + nothing)
    return mean


def column_weights(sums: Sums, columns: Columns) -> Floats:
    """Return for each feature the probability that its column alone matters, [D]."""
    weights = np.zeros((FEATURES, len(columns.is_used)))
    for column in np.flatnonzero(columns.is_used):
        is_of_column = np.zeros(weights.shape, dtype=bool)
        is_of_column[:, column] = True
        logs, _ = evidence(sums.of(is_of_column.ravel() & columns.features))
        log_odds = np.logaddexp.reduce(logs) - np.log(len(logs))
        weights[:, column] = 1 / (1 + np.exp(-np.clip(log_odds, -_LARGEST_LOG, _LARGEST_LOG)))
    return weights.ravel()


def fitted(
    history: History,
    columns: Columns,
    own: Sums,
    everybody: Sums | None,
    seen_by_all: tuple[Floats, Floats],
) -> Response:
    """Return the client's response.

    own: its sums. everybody: the means over all clients, None without any. seen_by_all: see
    `seen_range`.
    """
    strengths = _STRENGTHS[: 1 if everybody is None else None]
    pooled = [own if not s or everybody is None else own.pooled(everybody, s) for s in strengths]
    factors = column_weights(pooled[-1], columns)
    used = columns.features & (factors > 0)
    solutions = np.zeros((1 + len(pooled), len(used)))  # the first is no response
    for row, sums in enumerate(pooled, start=1):
        scaled = sums.scaled(factors).of(used)
        solutions[row, used] = factors[used] * mean_solution(scaled)
    more_days = 1.0 if everybody is None else max(1.0, everybody.days / own.days)
    shared = min(more_days, _MOST_PRIOR) / max(len(pooled) - 1, 1)
    prior = [_NO_RESPONSE, 1.0, *[shared] * (len(pooled) - 1)]
    ranges = (_range_of(history.v[history.train]), seen_by_all)
    places = np.array([0, 0, *[1] * (len(pooled) - 1)])  # whose range a solution is cut to
    errors = _errors(history, columns, ranges, solutions, places)
    validated = (history.validation.stop - history.validation.start) / history.period
    weights = shares(
        torch.from_numpy(errors),
        torch.tensor(validated),
        _ETA,
        torch.tensor(prior, dtype=torch.float64),
    ).numpy()
    parts = [
        Part(weights[places == place] @ solutions[places == place], *within)
        for place, within in enumerate(ranges)
    ]
    return Response(columns, tuple(parts))


def _range_of(v: Floats) -> tuple[Floats, Floats]:
    """Return the lowest and the highest of the values [T, 3, k], 0 without any."""
    if not len(v):
        return np.zeros(v.shape[1:]), np.zeros(v.shape[1:])
    return v.min(axis=0), v.max(axis=0)


def _errors(
    history: History,
    columns: Columns,
    ranges: Sequence[tuple[Floats, Floats]],
    solutions: Floats,
    places: NDArray[np.int64],
) -> Floats:
    """Return each candidate's error, [C]: the mean square of the seasonal difference of the
    residual on the validation part, and a tenth of the same on the train part.

    solutions: [C, D]. places: [C], the number of the range that a candidate is cut to.
    """
    explained = np.zeros((len(history.values), len(solutions)))
    for place, within in enumerate(ranges):
        chosen = places == place
        phi = features(np.clip(history.v, *within), history.positions, history.period, columns)
        explained[:, chosen] = phi @ solutions[chosen].T
    residuals = history.values[:, None] - explained
    lag, errors = history.lags[0], np.zeros(len(solutions))
    train, validation = history.train, history.validation
    for steps, share in (
        (pairs(history.values, lag, validation), 1.0),
        (pairs(history.values, lag, train, train.start), TRAINING_SHARE),
    ):
        if len(steps):
            errors += share * ((residuals[steps] - residuals[steps - lag]) ** 2).mean(axis=0)
    return errors
