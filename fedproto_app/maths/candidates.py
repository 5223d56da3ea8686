"""The mean of many linear fits, weighed by how well each does on a client's own data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Of a fit's training error, added to its validation error. A short validation part may be one
# easy day: without this, fits that suit that day alone had nearly all of the weight.
TRAINING_SHARE = 0.1


class Family(NamedTuple):
    """Fits [C, …] that together have this weight before any error is known."""

    weight: float
    fits: Tensor


class Candidates:
    """The fits of all families, [C, …], and their weights before any error is known, [C].

    Each family has its weight however many fits are in it: many similar ones do not outvote the
    few of another.
    """

    def __init__(self, families: Sequence[Family]) -> None:
        self.fits = torch.cat([family.fits for family in families])
        self.prior = torch.cat(
            [
                torch.full((len(fits),), weight / len(fits), dtype=fits.dtype, device=fits.device)
                for weight, fits in families
            ]
        )

    def mean(self, validation: Tensor, training: Tensor, samples: Tensor, eta: float) -> Tensor:
        """[…] the weighted mean of the fits.

        validation, training: the mean squared errors, [C]; samples, eta: as in `shares`.
        """
        errors = validation + TRAINING_SHARE * training
        parts = shares(errors, samples, eta, self.prior).to(self.fits.dtype)
        mean: Tensor = torch.tensordot(parts, self.fits.nan_to_num(), dims=1)
        return mean


def shares(errors: Tensor, samples: Tensor, eta: float, prior: Tensor) -> Tensor:
    """[C] the weights of C candidates, by exponential weighting.

    prior · exp(−η · n/2 · (error / least error − 1)), scaled to sum 1: for η = 1 the likelihood of
    n samples under normal errors of the best candidate's variance; less trusts few samples less.
    errors: [C], NaN for a candidate that failed; samples: n; prior: [C].
    """
    errors = errors.double().nan_to_num(nan=torch.inf).clamp(min=1e-12)
    excess = errors / errors.min() - 1
    return (prior.double().log() - eta / 2 * samples.double() * excess).softmax(dim=0)
