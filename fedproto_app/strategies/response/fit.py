"""θ: a client's response, from its own sums and from everybody's.

A client forms differences of values that are L steps apart, for L = one period and, where periods
are days, also seven. They remove level, trend and daily profile, which else hide in θ:
    A = mean of Δφ Δφᵀ,  b = mean of Δφ Δy.
With A', b' the means of the other clients', its candidates are
    no response,  θ = (A + λ I)⁻¹ b,  and  θ = (A + s A' + (1 + s) λ I)⁻¹ (b + s b').
The penalty is λ = c · m / d for m features and d days behind the sums. Neighbouring hours have
nearly the same weather, so days, not hours, are what a response is learned from.

The client's response is the mean of its candidates, weighted by how well they explain the seasonal
differences of its validation part (maths/candidates.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedproto_app.maths.candidates import TRAINING_SHARE, shares
from fedproto_app.strategies.response.features import (
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

_PENALTIES = (0.005, 0.02, 0.08)  # c
_STRENGTHS = (1.0, 20.0)  # s
_MOST_PRIOR = 5.0
_ETA = 1.0  # how much a day of validation counts (candidates.shares)


class Sums(NamedTuple):
    """A [D, D] and b [D], means over n seasonal differences."""

    gram: Floats
    moment: Floats
    differences: int


@dataclass(frozen=True)
class Others:
    """What all other clients sent. means: A' and b'. days: of an average client."""

    gram: Floats
    moment: Floats
    days: float


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

    def features(self, columns: Columns, part: Part | None = None) -> Floats:
        """Return φ [T, D], cut to the range of a part."""
        v = self.v if part is None else part.cut(self.v)
        return features(v, self.positions, self.period, columns)

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
    gram, moment = np.zeros((width, width)), np.zeros(width)
    used = phi.any(axis=0)
    for lag in history.lags:
        steps = pairs(history.values, lag, history.train, history.train.start)
        of_features = phi[np.ix_(steps, used)] - phi[np.ix_(steps - lag, used)]
        gram[np.ix_(used, used)] += of_features.T @ of_features
        moment[used] += of_features.T @ (history.values[steps] - history.values[steps - lag])
        count += len(steps)
    return Sums(gram / max(count, 1), moment / max(count, 1), count)


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


def fitted(
    history: History,
    columns: Columns,
    own: Sums,
    others: Others | None,
    seen_by_all: tuple[Floats, Floats],
) -> Response:
    """Return the client's response.

    own: its sums. others: None if nobody else sent any. seen_by_all: see `seen_range`.
    """
    used = columns.features
    trained = history.v[history.train]
    if not len(trained):
        trained = np.zeros((1, *history.v.shape[1:]))
    mine = _part(trained.min(axis=0), trained.max(axis=0), used)
    shared = _part(*seen_by_all, used)
    days, eye = history.train_days, np.eye(int(used.sum()))
    gram, moment = own.gram[np.ix_(used, used)], own.moment[used]
    fits = {0: [_solved(gram, moment, c * len(eye) / days * eye) for c in _PENALTIES], 1: []}
    prior = {0: 1.0, 1: 1.0}
    if others is not None:
        penalty = len(eye) / max(days, others.days)
        other_gram, other_moment = others.gram[np.ix_(used, used)], others.moment[used]
        fits[1] = [
            _solved(gram + s * other_gram, moment + s * other_moment, (1 + s) * c * penalty * eye)
            for s in _STRENGTHS
            for c in _PENALTIES
        ]
        prior[1] = float(np.clip(others.days / days, 1.0, _MOST_PRIOR))
    candidates = [np.zeros((2, len(eye)))]
    weights = [1.0]
    for place, of_place in fits.items():
        for fit in of_place:
            both = np.zeros((2, len(eye)))
            both[place] = fit
            candidates.append(both)
            weights.append(prior[place] / len(of_place))
    errors = _errors(history, columns, (mine, shared), np.array(candidates), used)
    validation_days = (history.validation.stop - history.validation.start) / history.period
    weighed = shares(
        torch.from_numpy(errors),
        torch.tensor(validation_days),
        _ETA,
        torch.tensor(weights, dtype=torch.float64),
    ).numpy()
    mean = np.einsum("c,cpf->pf", weighed, np.array(candidates))
    parts = []
    for part, of_part in zip((mine, shared), mean, strict=True):
        coefficients = np.zeros(len(used))
        coefficients[used] = of_part
        parts.append(Part(coefficients, part.lowest, part.highest))
    return Response(columns, tuple(parts))


def _part(lowest: Floats, highest: Floats, used: NDArray[np.bool_]) -> Part:
    return Part(np.zeros(len(used)), lowest, highest)


def _solved(gram: Floats, moment: Floats, penalty: Floats) -> Floats:
    return np.asarray(np.linalg.solve(gram + penalty, moment), dtype=np.float64)


def _errors(
    history: History,
    columns: Columns,
    parts: Sequence[Part],
    candidates: Floats,
    used: NDArray[np.bool_],
) -> Floats:
    """Return each candidate's error, [C]: the mean square of the seasonal difference of the
    residual on the validation part, and a tenth of the same on the train part.

    candidates: [C, parts, used features].
    """
    explained = np.zeros((len(history.values), len(candidates)))
    for part, coefficients in zip(parts, candidates.transpose(1, 2, 0), strict=True):
        explained += history.features(columns, part)[:, used] @ coefficients
    residuals = history.values[:, None] - explained
    lag, errors = history.lags[0], np.zeros(len(candidates))
    train, validation = history.train, history.validation
    for steps, share in (
        (pairs(history.values, lag, validation), 1.0),
        (pairs(history.values, lag, train, train.start), TRAINING_SHARE),
    ):
        if len(steps):
            errors += share * ((residuals[steps] - residuals[steps - lag]) ** 2).mean(axis=0)
    return errors
