"""FedALA's mixture of a client's own model and the received one (Zhang et al., AAAI 2023).

Models are dictionaries of tensors, [K, …] each; K clients, W of the shapes of the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def mixed(
    own: Mapping[str, Tensor], received: Mapping[str, Tensor], weights: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """θ_own + (θ_received − θ_own) ⊙ W, element by element, of the parameters that have weights."""
    return {
        name: own[name] + (received[name] - own[name]) * weight for name, weight in weights.items()
    }


def stepped(
    weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], rate: float
) -> dict[str, Tensor]:
    """W after a step down its gradient, held in 0 … 1. The gradient with respect to W is that with
    respect to the mixture, times θ_received − θ_own."""
    return {name: (weight - rate * gradients[name]).clamp(0, 1) for name, weight in weights.items()}


def settled(losses: Tensor, threshold: float, looked_back_on: int) -> Tensor:
    """Which clients' losses [epochs, K] have come to rest, [K] bool: there are more than so many,
    and the deviation of the newest ones is below the threshold."""
    if len(losses) <= looked_back_on:
        return torch.zeros(losses.shape[1], dtype=torch.bool, device=losses.device)
    return losses[-looked_back_on:].std(dim=0, correction=0) < threshold
