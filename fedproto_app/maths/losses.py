"""Losses that several methods have, one value per client.

Sources: A = the AAAI 2025 paper, P = its preprint with appendix.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def prediction_loss(prediction: Tensor, target: Tensor, present: Tensor) -> Tensor:
    """Return the mean squared error over present targets (A, eq. 4; P, eq. 14): [K, …] → [K].

    A client without any present target in the batch has loss 0.
    """
    squared = ((target - prediction).square() * present).flatten(start_dim=1)
    return squared.sum(dim=1) / present.flatten(start_dim=1).sum(dim=1).clamp(min=1)


def proximal_term(
    parameters: Mapping[str, Tensor], anchor: Mapping[str, Tensor], proximal_mu: float
) -> Tensor:
    """Return FedProx's term µ/2 · ‖w − w_global‖² per client (Li et al. 2020, eq. 2).

    parameters: [K, …] each. anchor: the global model, without the client axis. Returns [K].
    """
    squares = [
        (parameters[name] - value).square().flatten(start_dim=1).sum(dim=1)
        for name, value in anchor.items()
    ]
    return proximal_mu / 2 * torch.stack(squares).sum(dim=0)
