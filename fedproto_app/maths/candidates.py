"""The mean of many linear fits, weighted by their errors on a client's data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# This share of a fit's training error is added to its validation error. A short validation part may
# be one easy day. Without the share, fits that suit only that day got nearly all of the weight.
TRAINING_SHARE = 0.1


class Family(NamedTuple):
    """Fits [C, …] between which this prior weight is divided."""

    weight: float
    fits: Tensor


class Candidates:
    """The C fits of all families together, and their prior weights [C].

    A family's weight does not depend on its number of fits, so a family of many similar fits does
    not outvote a small one. All fits in one array can take half a gigabyte. They are therefore
    joined only if a method asks for it.
    """

    def __init__(self, families: Sequence[Family]) -> None:
        self.families = families
        self.prior = torch.cat(
            [
                torch.full((len(fits),), weight / len(fits), dtype=fits.dtype, device=fits.device)
                for weight, fits in families
            ]
        )

    @property
    def fits(self) -> Tensor:
        """All fits in one array [C, …]."""
        return torch.cat([family.fits for family in self.families])

    def mean(self, validation: Tensor, training: Tensor, samples: Tensor, eta: float) -> Tensor:
        """Return the weighted mean of the fits […].

        validation, training: the mean squared errors [C]. samples, eta: as in `shares`. If there
        are no validation samples, the prior weights alone decide.
        """
        errors = validation + TRAINING_SHARE * training
        weights = shares(errors, samples, eta, self.prior)
        parts = torch.split(weights, [len(family.fits) for family in self.families])
        mean: Tensor = sum(
            torch.tensordot(part.to(fits.dtype), fits.nan_to_num(), dims=1)
            for part, (_, fits) in zip(parts, self.families, strict=True)
        )
        return mean


def shares(errors: Tensor, samples: Tensor, eta: float, prior: Tensor) -> Tensor:
    """Return the weights [C] of C candidates by exponential weighting.

    The weights are prior · exp(−η · n/2 · (error / least error − 1)), scaled to sum to 1. For η = 1
    the second factor is the likelihood of n samples whose errors are normal with the best
    candidate's variance. A smaller η trusts few samples less.
    errors: [C], NaN for a candidate that failed. samples: n. prior: [C].
    """
    errors = errors.double().nan_to_num(nan=torch.inf).clamp(min=1e-12)
    excess = errors / errors.min() - 1
    return (prior.double().log() - eta / 2 * samples.double() * excess).softmax(dim=0)
