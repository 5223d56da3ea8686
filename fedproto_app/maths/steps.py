"""Lengths of clients' steps: how far a client's model moves from the model that it received.

A node shortens steps that are longer than a limit before it averages, so that no client moves the
mean by more than its share of the limit. This is norm clipping (Sun et al., "Can you really
backdoor federated learning?", 2019) with a limit that follows the clients' median.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_SLACK = 1e-3  # relative. A node's mean travels in float32


def shortened_steps(
    models: Mapping[str, Tensor], start: Mapping[str, NDArray[np.float32]], longest: float
) -> tuple[dict[str, Tensor], list[float]]:
    """Limit how far each model has moved from `start`. Return the models and the steps' lengths.

    A step longer than `longest` is scaled down to that, unless the limit is 0. models: [K, …] each.
    start: the same arrays without the client axis. Lengths are Euclidean, over all arrays together.
    """
    starts = {name: torch.from_numpy(start[name]).to(value) for name, value in models.items()}
    squares = [
        (value - starts[name]).double().square().flatten(start_dim=1).sum(dim=1)
        for name, value in models.items()
    ]
    lengths = torch.stack(squares).sum(dim=0).sqrt()  # (K,)
    if not longest or not (lengths > longest).any():
        return dict(models), lengths.tolist()
    factors = (longest / lengths).clamp(max=1.0)
    shortened = {}
    for name, value in models.items():
        by_client = factors.view(-1, *[1] * (value.dim() - 1)).to(value.dtype)
        cut = starts[name] + by_client * (value - starts[name])
        shortened[name] = torch.where(by_client < 1, cut, value)
    return shortened, lengths.clamp(max=longest).tolist()


def length(
    model: Mapping[str, NDArray[np.float32]], start: Mapping[str, NDArray[np.float32]]
) -> float:
    """Return the length of the step from `start` to `model`."""
    squares = (
        np.square(value.astype(np.float64) - start[name]).sum() for name, value in model.items()
    )
    return math.sqrt(sum(map(float, squares)))


def longest_mean(lengths: Sequence[float], weights: Sequence[int]) -> float:
    """Return how long the mean of steps of these lengths can be at most, weighted or not."""
    weighted = sum(length * weight for length, weight in zip(lengths, weights, strict=True))
    return max(sum(lengths) / len(lengths), weighted / sum(weights))


def mean_fault(size: float, lengths: Sequence[float], weights: Sequence[int]) -> str | None:
    """Return why steps of these lengths cannot have a mean of this size, or None if they can."""
    limit = longest_mean(lengths, weights)
    if size > limit * (1 + _SLACK) + _SLACK:
        return f"its mean model moved by {size:.3g}, its clients' steps allow at most {limit:.3g}"
    return None
