"""θ: a client's response, fitted to its own sums and to everybody's.

A client takes differences of values that are L steps apart, for L = one period and, where periods
are days, also seven. They remove level, trend and daily profile, which would otherwise hide in θ:
    A = mean of Δφ Δφᵀ,  b = mean of Δφ Δy,  q = mean of (Δy)².

Neighbouring hours have nearly the same weather, and so have neighbouring clients. Therefore sums
are weighed by days and not by values. The sums of a client with d days are worth n = 3 d
independent differences, and the mean of all clients' sums is worth 3 D, for the D days of an
average client. The sums then tell how strong a penalty must be, and whether there is a response at
all, through the marginal likelihood of a linear model with a normal prior of θ (MacKay, "Bayesian
Interpolation", Neural Computation 1992):
    θ(λ) = (A + λ I)⁻¹ b,   log L(λ) = −½ Σ_i log(1 + w_i/λ) − n/2 · log(1 − bᵀ θ(λ) / q),
where w_i are the eigenvalues of A. Without a response, log L is 0. The posterior mean of θ is the
mean, weighted by L, of θ(λ) over all penalties and of 0 for no response. Before that, each column
is scaled by the probability that it matters, which comes from the sums of all clients.

A client has four candidates: no response, its own response, everybody's response θ', and θ' plus
the client's deviation δ from it. δ is the posterior mean for (A, b − A θ', q − 2 θ'ᵀb + θ'ᵀA θ').
The weight of a candidate comes from the likelihood of the client's train part and from how well it
explains the seasonal differences of the validation part. A client's own part of the response does
not extrapolate beyond the client's values, and θ' does not extrapolate beyond all clients' values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedproto_app.strategies.response.features import (
    FEATURES,
    LARGEST,
    Columns,
    Floats,
    Part,
    Response,
    explained,
    features,
)

WEEK = 7  # periods
FEWEST_PER_FEATURE = 3  # values that a client needs for each feature of the sums that it sends
BINS = 24  # bins of the range ±3 of a standardised value, in which clients count their values
FEWEST_IN_BIN = 24  # values of all clients together that a bin needs to count as seen

_PENALTIES = np.array([1e-3, 1e-2, 1e-1, 1.0, 10.0])  # λ
_INDEPENDENT = 3.0  # independent seasonal differences in a day
_MOST_PRIOR = 5.0  # prior weight of everybody's response, for their longer history
_MOST_DAYS = 10.0  # the most days of the train part that count, as all are of one season
_ETA = 0.5  # how much a day of validation counts
_TINY, _LARGEST_LOG = 1e-9, 500.0


@dataclass(frozen=True)
class Sums:
    """A [D, D], b [D] and q, which are means over seasonal differences.

    days: the days of the client, or of an average client.
    """

    gram: Floats
    moment: Floats
    square: float
    days: float

    def select(self, features: NDArray[np.bool_]) -> Sums:
        """Return the sums of these features alone."""
        gram = self.gram[np.ix_(features, features)]
        return replace(self, gram=gram, moment=self.moment[features])

    def scaled(self, factors: Floats) -> Sums:
        """Return the sums of the features multiplied by these factors, [D]."""
        gram = self.gram * factors * factors[:, None]
        return replace(self, gram=gram, moment=self.moment * factors)

    def without(self, response: Floats) -> Sums:
        """Return the sums of the differences after a response [D] is subtracted."""
        moment = self.moment - self.gram @ response
        square = self.square - (self.moment + moment) @ response
        return replace(self, moment=moment, square=max(float(square), _TINY))


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


def pairs(values: Floats, lag: int, part: slice) -> NDArray[np.int64]:
    """Return the steps of a part that have a value, and another value one lag before."""
    steps: NDArray[np.int64] = np.arange(max(part.start, lag), part.stop)
    has_both: NDArray[np.bool_] = np.isfinite(values[steps]) & np.isfinite(values[steps - lag])
    return steps[has_both]


def seasonal_sums(history: History, phi: Floats) -> Sums:
    """Return the sums over the seasonal differences of the train part, zeros if it has none."""
    width, count = phi.shape[1], 0
    gram, moment, square = np.zeros((width, width)), np.zeros(width), 0.0
    used = phi[history.train].any(axis=0)
    used_phi = phi if used.all() else phi[:, used]
    used_phi, values = used_phi[history.train], history.values[history.train]
    for lag in history.lags:
        value_changes = values[lag:] - values[:-lag]
        has_both = np.isfinite(value_changes)
        value_changes = np.where(has_both, value_changes, 0.0)
        feature_changes = used_phi[lag:] - used_phi[:-lag]
        feature_changes[~has_both] = 0.0
        gram[np.ix_(used, used)] += feature_changes.T @ feature_changes
        moment[used] += feature_changes.T @ value_changes
        square += float(value_changes @ value_changes)
        count += int(has_both.sum())
    divisor = max(count, 1)
    return Sums(gram / divisor, moment / divisor, square / divisor, history.train_days)


def bin_counts(v: Floats, train: slice) -> Floats:
    """Return how many train values lie in each bin of the range ±3, [3, k, bins]."""
    shape = v.shape[1:]
    places = np.clip(((v[train] + LARGEST) * BINS / (2 * LARGEST)).astype(int), 0, BINS - 1)
    places += BINS * np.arange(np.prod(shape)).reshape(shape)
    counts = np.bincount(places.ravel(), minlength=BINS * int(np.prod(shape)))
    return counts.astype(float).reshape(*shape, BINS)


def supported_range(counts: Floats) -> tuple[Floats, Floats]:
    """Return the lowest and the highest value, [3, k], in bins with enough values of all clients.

    counts: [3, k, bins]. Both are 0 if no bin has enough.
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
    explained = np.clip(shrunk @ turned / max(sums.square, _TINY), 0.0, 1 - _TINY)
    logs = -0.5 * np.log1p(values / _PENALTIES[:, None]).sum(axis=1)
    logs = logs - _INDEPENDENT / 2 * sums.days * np.log1p(-explained)
    return logs, shrunk @ vectors.T


def posterior(sums: Sums, factors: Floats) -> tuple[Floats, float]:
    """Return the posterior mean of θ, [D], and the logarithm of its likelihood relative to no
    response, which has half the prior weight. factors: [D], which scale the features first."""
    used = factors > 0
    logs, solutions = evidence(sums.scaled(factors).select(used))
    logs = np.append(logs - np.log(len(logs)), 0.0)
    total = np.logaddexp.reduce(logs)
    solution = np.zeros(len(used))
    solution[used] = factors[used] * (np.exp(logs[:-1] - total) @ solutions)
    return solution, float(total - np.log(2))


def column_weights(sums: Sums, columns: Columns) -> Floats:
    """Return for each feature the probability that its column alone matters, [D]. It is 0 for
    features that are always 0."""
    weights = np.zeros((FEATURES, len(columns.is_used)))
    if columns.is_used.sum() == 1:  # the fit itself decides
        return columns.features.astype(float)
    for column in np.flatnonzero(columns.is_used):
        is_of_column = np.zeros(weights.shape, dtype=bool)
        is_of_column[:, column] = True
        logs, _ = evidence(sums.select(is_of_column.ravel() & columns.features))
        log_odds = np.logaddexp.reduce(logs) - np.log(len(logs))
        weights[:, column] = 1 / (1 + np.exp(-np.clip(log_odds, -_LARGEST_LOG, _LARGEST_LOG)))
    return weights.ravel() * columns.features


def fitted(
    history: History,
    columns: Columns,
    sums: Sums,
    mean_sums: Sums | None,
    range_of_all: tuple[Floats, Floats],
) -> Response:
    """Return the client's response.

    sums: the client's sums. mean_sums: the means over all clients, or None if there are none.
    range_of_all: see `supported_range`.
    """
    ranges = (_range_of(history.v[history.train]), range_of_all)
    solutions, logs = _candidates(sums, mean_sums, columns)
    errors = _errors(history, columns, ranges, solutions)
    validated = (history.validation.stop - history.validation.start) / history.period
    if errors.min() > _TINY:
        logs = logs - _ETA * validated * (errors / errors.min() - 1)
    weights = np.exp(logs - np.logaddexp.reduce(logs))
    mean = np.einsum("c,cpd->pd", weights, solutions)
    parts = [Part(of_part, *within) for of_part, within in zip(mean, ranges, strict=True)]
    return Response(columns, tuple(parts))


def _candidates(sums: Sums, mean_sums: Sums | None, columns: Columns) -> tuple[Floats, Floats]:
    """Return each candidate's θ for features cut to the client's range and to all clients' range,
    [C, 2, D], and the logarithm of its weight according to the train part, [C]."""
    if mean_sums is not None:
        mean_sums = replace(mean_sums, days=max(mean_sums.days, sums.days))
    factors = column_weights(mean_sums or sums, columns)
    zeros = np.zeros(len(factors))
    share = min(1.0, _MOST_DAYS / sums.days)  # how much of the train likelihood counts
    local, log_local = posterior(sums, factors)
    solutions, logs = [(zeros, zeros), (local, zeros)], [0.0, share * log_local]
    if mean_sums is not None:
        common, _ = posterior(mean_sums, factors)
        remainder = sums.without(common)
        deviation, log_deviation = posterior(remainder, factors)
        log_unexplained = np.log(remainder.square / sums.square) if sums.square > 0 else 0.0
        log_common = -_INDEPENDENT / 2 * sums.days * log_unexplained
        prior = np.log(min(_MOST_PRIOR, mean_sums.days / sums.days) / 2)
        solutions += [(zeros, common), (deviation, common)]
        logs += [prior + share * log_common, prior + share * (log_common + log_deviation)]
    return np.array(solutions), np.array(logs)


def _range_of(v: Floats) -> tuple[Floats, Floats]:
    """Return the lowest and the highest of the values [T, 3, k], or 0 if there are none."""
    if not len(v):
        return np.zeros(v.shape[1:]), np.zeros(v.shape[1:])
    return v.min(axis=0), v.max(axis=0)


def _errors(
    history: History,
    columns: Columns,
    ranges: Sequence[tuple[Floats, Floats]],
    solutions: Floats,
) -> Floats:
    """Return, for each candidate, the mean squared seasonal difference over the validation part
    after its response is subtracted, [C], or 0 if that part has no differences.

    solutions: [C, 2, D], for features cut to each of the two ranges.
    """
    steps = pairs(history.values, history.lags[0], history.validation)
    if not len(steps):
        return np.zeros(len(solutions))
    first = int(steps[0]) - history.lags[0]
    residuals = np.repeat(history.values[first:, None], len(solutions), axis=1)
    for place, within in enumerate(ranges):
        v, positions = np.clip(history.v[first:], *within), history.positions[first:]
        residuals -= explained(v, positions, history.period, columns, solutions[:, place])
    differences = residuals[steps - first] - residuals[steps - first - history.lags[0]]
    return np.asarray((differences**2).mean(axis=0), dtype=np.float64)
