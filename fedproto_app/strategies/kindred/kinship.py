"""Who is like whom, as weights."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

ROWS_AT_ONCE = 256  # clients; of thousands every further matrix of all pairs is gigabytes


def kinship(divergence: Tensor, temperature: float) -> Tensor:
    """[N, N] float64, row n: the weights of the other clients in client n's prior; its own is 0.

    softmax over m ≠ n of −D[n, m] / (temperature · median of all D > 0). An infinite
    temperature, or clients that do not differ, make all others alike. divergence: [N, N], N ≥ 2,
    symmetric.
    """
    scale = temperature * _median_of_unlike(divergence)
    weights = divergence.to(torch.float64, copy=True)
    if 0 < scale < math.inf:
        weights.neg_().div_(scale)
    else:
        weights.zero_()
    weights.fill_diagonal_(-torch.inf)
    for rows in torch.split(weights, ROWS_AT_ONCE):
        rows.copy_(rows.softmax(dim=1))
    return weights


def _median_of_unlike(divergence: Tensor) -> float:
    """Of the divergences above 0, 0 if there are none; of the upper triangle, as the lower one has
    the same."""
    rows = (row[n + 1 :] for n, row in enumerate(divergence.numpy()))
    unlike = np.concatenate([row[row > 0] for row in rows])
    return float(np.median(unlike.astype(np.float64), overwrite_input=True)) if unlike.size else 0.0
