"""The supervised loss for series, with one value per client.

Sources: A = the AAAI 2025 paper, P = its preprint with appendix.
"""

from __future__ import annotations

from torch import Tensor


def prediction_loss(prediction: Tensor, target: Tensor, present: Tensor) -> Tensor:
    """Return the mean squared error over present targets (A, eq. 4; P, eq. 14): [K, …] → [K].

    A client without any present target in the batch has loss 0.
    """
    squared = ((target - prediction).square() * present).flatten(start_dim=1)
    return squared.sum(dim=1) / present.flatten(start_dim=1).sum(dim=1).clamp(min=1)
