"""Graphs over clients: weights of edges, normalisation, communities.

An adjacency is [N, N] float32, symmetric, with weights ≥ 0 and a diagonal of 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Adjacency = NDArray[np.float32]
Points = NDArray[np.float64]

FAINTEST = 0.1  # smaller weights become 0 in graphs of places (DCRNN: Li et al., ICLR 2018)
BLOCK = 1024  # rows whose neighbours are searched at a time


def weights_of_places(places: Points) -> Adjacency:
    """Return exp(−d²/σ²) for each pair of places [N, 2] at distance d, [N, N].

    σ is the standard deviation of all distances, or the distance itself if all are equal. Weights
    below `FAINTEST` are 0.
    """
    distances = np.hypot(*(axis[:, None] - axis for axis in places.T))
    pairs = distances[np.triu_indices(len(places), 1)]
    if not pairs.size:
        return np.zeros((len(places), len(places)), np.float32)
    spread = float(pairs.std())
    spread = spread if spread > 1e-9 * float(pairs.max()) else float(pairs.max()) or 1.0
    weights = np.exp(-np.square(distances / spread))
    weights[weights < FAINTEST] = 0.0
    np.fill_diagonal(weights, 0.0)
    adjacency: Adjacency = weights.astype(np.float32)
    return adjacency


def weights_of_profiles(profiles: Points, neighbours: int) -> Adjacency:
    """Return max(0, ρ) for the correlation ρ of each profile [N, B] with the k most similar ones.

    Two clients have an edge if either is among the other's k. A constant profile has no edge.
    """
    centred = profiles - profiles.mean(axis=1, keepdims=True)
    sizes = np.linalg.norm(centred, axis=1, keepdims=True)
    constant = sizes <= 1e-9 * np.abs(profiles).max(axis=1, keepdims=True, initial=0)
    directions = np.where(constant, 0.0, centred / np.where(constant, 1.0, sizes))
    count = len(profiles)
    weights = np.zeros((count, count), np.float32)
    for first in range(0, count, BLOCK):
        alike = directions[first : first + BLOCK] @ directions.T
        rows = np.arange(len(alike))
        alike[rows, first + rows] = -np.inf
        # Stable, so that ties take the first profile, whatever the block size.
        nearest = np.argsort(-alike, axis=1, kind="stable")[:, : min(neighbours, count - 1)]
        chosen = np.take_along_axis(alike, nearest, axis=1)
        weights[first + rows[:, None], nearest] = np.maximum(chosen, 0.0)
    either: Adjacency = np.maximum(weights, weights.T)
    return either


def normalised(adjacency: Adjacency) -> Adjacency:
    """Return D^(−1/2) (A + I) D^(−1/2), D the row sums of A + I (Kipf and Welling, ICLR 2017)."""
    with_self = adjacency.astype(np.float64) + np.eye(len(adjacency))
    scale = 1 / np.sqrt(with_self.sum(axis=1))
    scaled: Adjacency = (scale[:, None] * with_self * scale).astype(np.float32)
    return scaled


def communities(adjacency: Adjacency, seed: int) -> NDArray[np.int64]:
    """Return the community of each vertex by Louvain's method (Blondel et al. 2008): [N].

    Communities are numbered by their first vertices. A vertex without edges forms its own.
    """
    import networkx as nx  # slow to import

    graph = nx.from_numpy_array(adjacency.astype(np.float64))
    groups = nx.community.louvain_communities(graph, weight="weight", seed=seed)
    labels = np.empty(len(adjacency), np.int64)
    for number, members in enumerate(sorted(map(sorted, groups))):
        labels[members] = number
    return labels
