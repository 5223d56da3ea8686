"""The sums of the response in a form that noise can protect: a row of bounded length per client.

With *private* columns everything that a client sends is in the row: A, b, q, and its number of days
times the mean diagonal of A. Clipping the row scales all of it alike, which leaves the client's
solution as it is. So rows may be clipped, and usually are. The total gets its scale back: the mean
diagonal of A is set to the usual value for standardised columns.

With *public* columns, such as weather, A and the values that a client has seen need no noise. The
row holds b and q, relative to their usual size, so that a clip of 1 shortens few rows.

The server raises the eigenvalues of A to at least those that noise alone would have. Where the
columns say little, this also damps the noise of b.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedproto_app.maths.ridge import definite, symmetric, triangle_size
from fedproto_app.strategies.response.features import FEATURES, LARGEST, WIDTHS, Floats
from fedproto_app.strategies.response.fit import BINS, FEWEST_IN_BIN, Sums

_LARGEST_USUAL = 2.0  # clients are assumed to have standardised values up to this size
_USUAL_DIAGONAL = 0.75  # of A, because neighbouring days have similar weather
_USUAL_ROW = 2.5  # length of b and q together, for a single column
_USUAL_DAYS = 40.0  # so that the days are neither hidden by the noise nor most of a row


def private_size(features: int) -> int:
    """Return the length of a row for this many features that may differ from 0."""
    return triangle_size(features) + features + 2


def private_row(sums: Sums, features: NDArray[np.bool_]) -> Floats:
    """Return A, b, q and the days as a row. features: [D], those that may differ from 0."""
    used = sums.select(features)
    upper = used.gram[np.triu_indices(len(used.moment))]
    days = np.diag(used.gram).mean() * sums.days / _USUAL_DAYS
    return np.concatenate([upper, used.moment, [sums.square, days]])


def private_sums(total: Floats, features: NDArray[np.bool_], deviation: float) -> Sums:
    """Return the means of the clients' sums, computed from the total of their rows.

    deviation: the standard deviation of the noise on each entry.
    """
    width = int(features.sum())
    upper, moment, (square,), (days,) = np.split(total, np.cumsum([triangle_size(width), width, 1]))
    gram = symmetric(torch.from_numpy(upper), width).numpy()
    diagonal = max(np.diag(gram).mean(), deviation, np.finfo(float).tiny)
    scale = _USUAL_DIAGONAL / diagonal
    certain_days = max((days - deviation) * _USUAL_DAYS / diagonal, 1.0)
    sums = _expanded(gram, moment, square, features, deviation)
    return Sums(scale * sums.gram, scale * sums.moment, scale * sums.square, certain_days)


def public_row(sums: Sums) -> Floats:
    """Return b and q as a row."""
    return np.append(sums.moment, sums.square) / _usual(len(sums.moment))


def public_sums(total: Floats, gram: Floats, features: NDArray[np.bool_], deviation: float) -> Sums:
    """Return the totals of the clients' sums, without their days.

    total: the total of the rows. gram: the clients' A, [D, D]. deviation: the standard deviation of
    the noise on each entry of a row.
    """
    row = total * _usual(len(gram))
    of_used = gram[np.ix_(features, features)]
    noise = deviation * _usual(len(gram))
    return _expanded(of_used, row[:-1][features], row[-1], features, noise)


def _expanded(
    gram: Floats, moment: Floats, square: float, features: NDArray[np.bool_], deviation: float
) -> Sums:
    """Return sums of all D features from sums of some, with A from `maths.ridge.definite`."""
    width = len(features)
    raised = definite(torch.from_numpy(gram), deviation).numpy() if deviation else gram
    sums = Sums(np.zeros((width, width)), np.zeros(width), max(square, 0.0), 0.0)
    sums.gram[np.ix_(features, features)] = raised
    sums.moment[features] = moment
    return sums


def usual_bin_counts(columns: int) -> Floats:
    """Return counts in bins as if clients had values up to ±2, [3, columns, bins]."""
    middles = LARGEST * (2 * np.arange(BINS) + 1 - BINS) / BINS
    counts = np.where(np.abs(middles) < _LARGEST_USUAL, float(FEWEST_IN_BIN), 0.0)
    return np.broadcast_to(counts, (WIDTHS, columns, BINS)).copy()


def _usual(width: int) -> float:
    return float(_USUAL_ROW * np.sqrt(width / FEATURES))
