"""Predictions from the nearest remembered samples (kNN-Per; Marfoq et al., ICML 2022).

Shapes: K clients, B queries, M places of a client's memory, D width of a representation, m the
largest number of neighbours, C classes, H values of a prediction. The kernel is
exp(−Euclidean distance).
"""

from __future__ import annotations

import torch
from torch import Tensor

QUERIES_AT_ONCE = 256  # of each client, which bounds the memory that distances take


def nearest(
    queries: Tensor, memory: Tensor, counts: Tensor, most_neighbours: int
) -> tuple[Tensor, Tensor]:
    """Return the distances of the nearest remembered vectors, [K, B, m] float64, and their places.

    queries: [K, B, D]; memory: [K, M, D]; counts: [K], each client's filled places. The nearest
    comes first; with too few vectors the distance is infinite. m = min(most_neighbours, M).
    """
    empty = torch.arange(memory.shape[1], device=memory.device) >= counts.unsqueeze(1)  # (K, M)
    remembered, nearest_of_chunks = memory.double(), []
    for chunk in torch.split(queries.double(), QUERIES_AT_ONCE, dim=1):
        far = torch.cdist(chunk, remembered).masked_fill(empty.unsqueeze(1), torch.inf)
        nearest_of_chunks.append(
            far.topk(min(most_neighbours, memory.shape[1]), dim=2, largest=False)
        )
    distances, places = zip(*nearest_of_chunks, strict=True)
    return torch.cat(distances, dim=1), torch.cat(places, dim=1)


def kernel_weights(distances: Tensor, neighbours: Tensor) -> Tensor:
    """Return the weights of each client's k nearest vectors, summing to 1: [K, B, m].

    neighbours: k by client, [K]. Vectors beyond k have weight 0, and all have in an empty memory.
    """
    beyond = torch.arange(distances.shape[2], device=distances.device) >= neighbours.unsqueeze(1)
    weights = (-distances).masked_fill(beyond.unsqueeze(1), -torch.inf).softmax(dim=2)
    return weights.nan_to_num()


def votes(weights: Tensor, places: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the weighted share of each class among the neighbours, [K, B, C]. labels: [K, M]."""
    of_neighbours = _at_places(labels, places)
    shares = weights.new_zeros(*weights.shape[:2], classes)
    for number in range(
        weights.shape[2]
    ):  # in a loop, so that the sum has the same order on any device
        rank = slice(number, number + 1)
        shares = shares.scatter_add(2, of_neighbours[..., rank], weights[..., rank])
    return shares


def means(weights: Tensor, places: Tensor, targets: Tensor) -> Tensor:
    """Return the weighted mean of the neighbours' targets, [K, B, H]. targets: [K, M, H]."""
    step_means = [
        (weights * _at_places(targets[..., step], places)).sum(dim=2)
        for step in range(targets.shape[2])
    ]
    return torch.stack(step_means, dim=2)


def _at_places(values: Tensor, places: Tensor) -> Tensor:
    """Return the values [K, M] at places [K, B, m]: [K, B, m]."""
    return values.unsqueeze(1).expand(-1, places.shape[1], -1).gather(2, places)
