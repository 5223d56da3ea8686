"""What the nearest of remembered samples say (kNN-Per; Marfoq et al., ICML 2022).

Shapes: K clients, B queries, M places of a client's memory, D width of a representation, m the most
neighbours looked for, C classes, H numbers of an answer. The kernel is exp(−Euclidean distance).
"""

from __future__ import annotations

import torch
from torch import Tensor

QUERIES_AT_ONCE = 256  # of each client, which bounds the memory that distances take


def nearest(queries: Tensor, memory: Tensor, counts: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The distances of the nearest remembered vectors, [K, B, m] float64, and their places.

    queries: [K, B, D]; memory: [K, M, D], of which a client's first `counts` [K] mean something.
    The nearest comes first; where there are too few, the distance is infinite. m = min(most, M).
    """
    empty = torch.arange(memory.shape[1], device=memory.device) >= counts.unsqueeze(1)  # (K, M)
    remembered, found = memory.double(), []
    for some in torch.split(queries.double(), QUERIES_AT_ONCE, dim=1):
        far = torch.cdist(some, remembered).masked_fill(empty.unsqueeze(1), torch.inf)
        found.append(far.topk(min(most, memory.shape[1]), dim=2, largest=False))
    distances, places = zip(*found, strict=True)
    return torch.cat(distances, dim=1), torch.cat(places, dim=1)


def kernel_weights(distances: Tensor, neighbours: Tensor) -> Tensor:
    """What each of a client's so many [K] nearest weighs, summing to 1: [K, B, m], 0 for the others
    and for all where there is none."""
    beyond = torch.arange(distances.shape[2], device=distances.device) >= neighbours.unsqueeze(1)
    weights = (-distances).masked_fill(beyond.unsqueeze(1), -torch.inf).softmax(dim=2)
    return weights.nan_to_num()


def votes(weights: Tensor, places: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The share of each class among the neighbours, [K, B, C]. labels: [K, M]."""
    of_neighbours = _at(labels, places)
    shares = weights.new_zeros(*weights.shape[:2], classes)
    for one in range(weights.shape[2]):  # one after the other: the sum has the same order anywhere
        rank = slice(one, one + 1)
        shares = shares.scatter_add(2, of_neighbours[..., rank], weights[..., rank])
    return shares


def means(weights: Tensor, places: Tensor, targets: Tensor) -> Tensor:
    """The mean of the neighbours' numbers, [K, B, H]. targets: [K, M, H]."""
    each = [
        (weights * _at(targets[..., step], places)).sum(dim=2) for step in range(targets.shape[2])
    ]
    return torch.stack(each, dim=2)


def _at(values: Tensor, places: Tensor) -> Tensor:
    """[K, M] at [K, B, m] → [K, B, m]."""
    return values.unsqueeze(1).expand(-1, places.shape[1], -1).gather(2, places)
