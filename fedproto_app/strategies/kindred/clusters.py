"""Priors of thousands of clients, without the matrix of all pairs.

k-means puts clients with similar prototypes into a cluster. The divergence of clients n and m is
approximated by way of the centre of m's cluster:
    D[n, m] ≈ D(n, centre of m) + D(m, centre of m).
So the sum over a cluster of exp(−D[n, m] / scale) (A_m, B_m) is the product of a number that
depends on client n and a sum that does not. The cost is N clients times G clusters (docs/scale.md:
the error).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from fedproto_app.maths.divergence import divergence_from, prototype_distributions

FEWEST_CLUSTERS, MOST_CLUSTERS = 64, 256
_ROUNDS = 20  # of k-means
_ALONE = 1e-9  # a client is alone if the others in its cluster weigh less than this


class Clusters:
    """The clusters of N clients, and the weights of the clusters and of the clients within them.

    prototypes: [N, B, d]. scale: the scale of the divergences, above 0. draws: chooses the first
    centres. labels: the clients' clusters, [N]. share: a client's share of its cluster's weight,
    [N].
    """

    def __init__(self, prototypes: Tensor, scale: float, draws: np.random.Generator) -> None:
        clients = len(prototypes)
        self.count = min(
            clients, max(FEWEST_CLUSTERS, min(MOST_CLUSTERS, round(math.sqrt(clients))))
        )
        shares = prototype_distributions(prototypes)
        first = torch.from_numpy(draws.permutation(clients)[: self.count])
        # Between square roots of distributions, squared distances are nearly proportional to
        # Jensen-Shannon divergences.
        self.labels = k_means(shares.sqrt().flatten(start_dim=1), first)
        rows = torch.arange(clients)
        members = self.labels.bincount(minlength=self.count)
        means = shares.new_zeros(self.count, *shares.shape[1:]).index_add_(0, self.labels, shares)
        means /= members.clamp(min=1)[:, None, None]
        used = members > 0
        self.centres = torch.where(used[:, None, None], means.log(), 0.0)  # of softmax
        nearness = divergence_from(prototypes, self.centres).double().neg_().div_(scale)
        to_centre = nearness[rows, self.labels]  # of each client to its cluster's centre
        # Shares of a cluster's weight add up to 1, and its weight is kept as a logarithm, because
        # exp(−D / scale) of an outlier is 0 in every number format.
        nearest = to_centre.new_full((self.count,), -torch.inf)
        nearest.scatter_reduce_(0, self.labels, to_centre, "amax")
        weights = (to_centre - nearest[self.labels]).exp_()
        sums = weights.new_zeros(self.count).index_add_(0, self.labels, weights)
        self.share = weights / sums[self.labels]
        logits = nearness.add_(torch.where(used, sums.log() + nearest, -torch.inf))
        remainder = 1 - self.share
        logits[rows, self.labels] += torch.where(remainder > _ALONE, remainder, 0.0).log()
        self._weights = logits.softmax(dim=1)

    def sums(self, values: Tensor, rows: slice) -> Tensor:
        """Return each cluster's weighted sum over the clients in these rows, [G, D].

        values: the values of these clients, [K, D].
        """
        parts = self.share[rows, None] * values
        return parts.new_zeros(self.count, parts.shape[1]).index_add_(0, self.labels[rows], parts)

    def priors(self, means: Tensor, values: Tensor, rows: Tensor) -> Tensor:
        """Return, for the clients in these rows, the weighted means over the other clients, [K, D].

        means: the `sums` over all clients. values: the values of these clients, [K, D]. In a
        client's own cluster, the mean over the others is (mean − share · value) / (1 − share).
        """
        places = torch.arange(len(values)), self.labels[rows]
        weights, share = self._weights[rows], self.share[rows]
        more = torch.where(1 - share > _ALONE, weights[places] * share / (1 - share), 0.0)
        weights[places] += more
        return (weights @ means).addcmul_(values, more[:, None], value=-1)


def k_means(points: Tensor, first: Tensor) -> Tensor:
    """Return the cluster of each point by Lloyd's algorithm: [N, D] → [N].

    first: the points [G] that are the first centres. A cluster that loses all its points keeps its
    centre.
    """
    centres = points[first]
    for _ in range(_ROUNDS):
        labels = (points @ centres.T - centres.square().sum(dim=1) / 2).argmax(dim=1)
        members = labels.bincount(minlength=len(centres))[:, None]
        sums = torch.zeros_like(centres).index_add_(0, labels, points)
        centres = torch.where(members > 0, sums / members.clamp(min=1), centres)
    return labels
