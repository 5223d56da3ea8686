"""Cluster clients whose classes have the same meaning, by the evidence of their class sums (ours).

Samples of class c at a client of cluster k are Gaussian with mean µ_kc and the covariance S within
classes. The means of a class differ between clusters and are distributed around the mean of all
samples, with a separate variance along each of the C − 1 directions of largest differences between
classes. Given these variances, the likelihood of a cluster's sums has a closed form. The prior over
partitions is a Chinese restaurant process. Two clusters are merged while that raises the posterior,
so the number of clusters need not be set.
Shapes: N clients, C classes, D features, R = C − 1 directions. Everything is float64.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.maths.class_gaussian import (
    ClassSums,
    class_means,
    overall_mean,
    precision_factor,
)
from fedproto_app.maths.clustering import Labels, by_first_appearance

_NOISE = 10.0  # factor of the penalty: underestimated noise gives false clusters
MOST_PASSES = 10  # the directions depend on the clusters, and the clusters on the directions


def class_clusters(gram: Tensor, moments: Tensor, counts: Tensor, penalty: float) -> Labels:
    """Return the cluster of each client, [N], numbered by first appearance.

    gram: Σ x xᵀ over all clients [D, D]; moments: Σ_c x of each client [N, C, D]; counts: [N, C].
    penalty: of S, as in `precision_factor`; it enlarges an uncertain S, so that clusters differ
    less. The search starts with a cluster for each client and is repeated with the directions of
    the resulting clusters until these no longer change. If the sums cannot come from samples, S
    does not exist and all clients are one cluster.
    """
    labels = np.arange(len(counts))
    for _ in range(MOST_PASSES):
        points, variances = _in_directions(gram, moments, counts, labels, penalty)
        if not points.isfinite().all():
            return np.zeros_like(labels)
        new_labels = merged(points, counts, variances)
        if np.array_equal(new_labels, labels):
            break
        labels = new_labels
    return labels


def merged(points: Tensor, counts: Tensor, variances: Tensor) -> Labels:
    """Merge clusters pair by pair, best pair first, while that raises the posterior: labels [N].

    points: Σ (x − m) in units of the deviation within classes [N, C, R]; counts: [N, C];
    variances: of the means of a class [R], in the squares of these units. The cost grows with N².
    """
    points, counts = points.clone(), counts.clone()
    single, clients = evidence(points, counts, variances), torch.ones(len(points)).double()
    labels, alive = np.arange(len(points)), torch.ones(len(points), dtype=torch.bool)

    def gains_of(row: int) -> Tensor:
        """Return the gain of merging with each other cluster [N]; −∞ for itself and merged rows."""
        has = counts[row] > 0  # other classes gain nothing
        joint = evidence(
            points[:, has] + points[row, has], counts[:, has] + counts[row, has], variances
        )
        gains = (joint - single[:, has] - single[row, has]).sum(dim=1)
        gains += _prior(clients + clients[row]) - _prior(clients) - _prior(clients[row])
        gains[~alive] = -torch.inf
        gains[row] = -torch.inf
        return gains

    best = [gains_of(row).max(dim=0) for row in range(len(points))]
    best_gain = torch.stack([gain for gain, _ in best])
    partner = torch.stack([row for _, row in best])
    # Where not exact, the partner has been merged and `best_gain` is an upper bound.
    exact = torch.ones_like(alive)
    while best_gain.max() >= 0:
        first = int(best_gain.argmax())
        if not exact[first]:
            best_gain[first], partner[first] = gains_of(first).max(dim=0)
            exact[first] = True
            continue
        keeps, goes = sorted((first, int(partner[first])))
        points[keeps] += points[goes]
        counts[keeps] += counts[goes]
        clients[keeps] += clients[goes]
        single[keeps] = evidence(points[keeps], counts[keeps], variances)
        labels[labels == goes] = keeps
        alive[goes], best_gain[goes] = False, -torch.inf

        gains = gains_of(keeps)
        best_gain[keeps], partner[keeps] = gains.max(dim=0)
        exact &= (partner != keeps) & (partner != goes)
        nearer = gains > best_gain
        best_gain = torch.where(nearer, gains, best_gain)
        partner = torch.where(nearer, keeps, partner)
        exact |= nearer
        exact[keeps] = True
    return by_first_appearance(labels)


def evidence(points: Tensor, counts: Tensor, variances: Tensor) -> Tensor:
    """Return the log Bayes factor of a separate mean for a cluster's class against the mean of all
    samples, […, C].

    With n samples whose sum is M, unit variance within the class and means ~ N(0, b), each
    direction adds ½ M² b / (1 + n b) − ½ ln(1 + n b). points: M […, C, R]; counts: n […, C];
    variances: b [R].
    """
    spread = counts.unsqueeze(-1) * variances
    explained = points.square() * variances / (1 + spread)
    return (explained - spread.log1p()).sum(dim=-1) / 2


def within_clusters(total: ClassSums, moments: Tensor, counts: Tensor) -> ClassSums:
    """Return the total without the products between the clusters' means of a class.

    Its covariance within classes is the covariance around the class means of each cluster. moments:
    [clusters, C, D]; counts: [clusters, C].
    """
    between = _scatter(moments, counts) - _scatter(total.moment, total.counts)
    return ClassSums(total.gram - between, total.moment, total.counts)


def sums_of(labels: NDArray[np.int64], values: Tensor) -> Tensor:
    """Sum clients' values [N, …] by cluster, [clusters, …]; labels are 0, 1, … without a gap."""
    sums = values.new_zeros(int(labels.max()) + 1, *values.shape[1:])
    return sums.index_add_(0, torch.from_numpy(labels), values)


def _prior(clients: Tensor) -> Tensor:
    """Return ln Γ of a cluster's size, its term in the log prior of a partition (Chinese restaurant
    process, α = 1)."""
    return torch.lgamma(clients)


def _in_directions(
    gram: Tensor, moments: Tensor, counts: Tensor, labels: Labels, penalty: float
) -> tuple[Tensor, Tensor]:
    """Return each client's Σ (x − m) by class along R directions [N, C, R], and variances [R].

    The class means of these clusters differ most along the directions. The variances of the class
    means follow from an analysis of variance with given S: for G classes of clusters with n_g
    samples, E Σ_g M_g² / n_g = G − 1 + b · (n − Σ n_g² / n).
    """
    of_clusters = sums_of(labels, moments), sums_of(labels, counts)
    total = ClassSums(gram, moments.sum(dim=0), counts.sum(dim=0))
    centre = overall_mean(total)
    factor = _deviation(total, of_clusters, penalty)
    apart = of_clusters[0] - of_clusters[1].unsqueeze(-1) * centre
    between = _scatter(apart, of_clusters[1])
    half = torch.linalg.solve_triangular(factor, between, upper=False)
    whitened = torch.linalg.solve_triangular(factor, half.T, upper=False)
    squares, directions = torch.linalg.eigh(whitened.nan_to_num())
    start = max(len(gram) - (counts.shape[1] - 1), 0)
    squares, directions = squares[start:], directions[:, start:]

    sizes = of_clusters[1][of_clusters[1] > 0]
    samples = sizes.sum().clamp(min=1)
    weight = (samples - sizes.square().sum() / samples).clamp(min=1)
    variances = ((squares - (len(sizes) - 1)) / weight).clamp(min=0)
    along = torch.linalg.solve_triangular(factor.T, directions, upper=True)
    return (moments - counts.unsqueeze(-1) * centre) @ along, variances


def _deviation(total: ClassSums, of_clusters: tuple[Tensor, Tensor], penalty: float) -> Tensor:
    """Return the Cholesky factor of S, with n − G degrees of freedom for G means of n samples.

    If n − G is less than n/2, the clusters' means rest on very few samples. Then S is computed
    around the overall class means, which makes it too large rather than too small.
    """
    samples = total.counts.sum()
    spread, means = within_clusters(total, *of_clusters), (of_clusters[1] > 0).sum()
    if samples - means < samples / 2:
        spread, means = total, (total.counts > 0).sum()
    return (
        precision_factor(spread, _NOISE * penalty)
        * (samples / (samples - means).clamp(min=1)).sqrt()
    )


def _scatter(moments: Tensor, counts: Tensor) -> Tensor:
    """Return Σ M Mᵀ / n [D, D] over the classes (of all clusters) with samples.

    moments: [..., C, D]; counts: [..., C].
    """
    flat = moments.reshape(-1, moments.shape[-1])
    return class_means(flat, counts.reshape(-1)).T @ flat
