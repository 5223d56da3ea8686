"""Who is like whom, as weights; and how candidates share a forecast by their errors."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def kinship(divergence: Tensor, temperature: float) -> Tensor:
    """[N, N] row n: the weights of the other clients in client n's prior; its own weight is 0.

    softmax over m ≠ n of −D[n, m] / (temperature · median of all D > 0). An infinite
    temperature, or clients that do not differ, make all others alike. divergence: [N, N], N ≥ 2.
    """
    divergence = divergence.double()
    apart = ~torch.eye(len(divergence), dtype=torch.bool)
    unlike = divergence[apart & (divergence > 0)].numpy()
    scale = temperature * float(np.median(unlike)) if unlike.size else 0.0
    nearness = -divergence / scale if 0 < scale < math.inf else torch.zeros_like(divergence)
    return nearness.where(apart, -torch.inf).softmax(dim=1)


def shares(errors: Tensor, samples: Tensor, eta: float) -> Tensor:
    """[K, C] the weights of C candidates at each of K clients, by exponential weighting.

    softmax over the candidates of −η · n/2 · (MSE / least MSE − 1): for η = 1 the likelihood of n
    validation samples under normal errors of the best candidate's variance; less trusts a short
    validation part less. errors: [K, C], NaN for a candidate that failed; samples: n, [K].
    """
    errors = errors.double().nan_to_num(nan=torch.inf).clamp(min=1e-12)
    excess = errors / errors.amin(dim=1, keepdim=True) - 1
    return (-eta / 2 * samples.double().unsqueeze(1) * excess).softmax(dim=1)
