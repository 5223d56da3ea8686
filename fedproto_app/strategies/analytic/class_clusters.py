"""Which clients mean the same by each class: clusters by evidence, from sums of classes (ours).

Samples of class c at a client of cluster k are Gaussian with mean µ_kc and the covariance S within
classes. The means of a class differ from cluster to cluster and lie around the mean of all samples,
with a variance of their own in each of the C − 1 directions in which classes differ most. Given
these variances, how likely a cluster's sums are has a closed form. Which clients are together has
the prior of a Chinese restaurant. Two clusters become one while that makes the whole likelier, so
nobody has to say how many there are.
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

_NOISE = 10.0  # of the penalty: noise that is taken for too small makes clusters where none are
MOST_PASSES = 10  # the directions hang on the clusters, and these on the directions


def class_clusters(gram: Tensor, moments: Tensor, counts: Tensor, penalty: float) -> Labels:
    """The cluster of each client: [N], numbered by first appearance.

    gram: Σ x xᵀ over all clients [D, D]; moments: Σ_c x of each client [N, C, D]; counts: [N, C].
    penalty: of S, as `precision_factor` has it; where S is not known well, it is taken for larger,
    and clusters differ less. It begins with a cluster for each client, and begins again with the
    directions of the clusters that it found until these are the same. Sums that no samples can have
    give no covariance; all are then one cluster.
    """
    labels = np.arange(len(counts))
    for _ in range(MOST_PASSES):
        points, variances = _in_directions(gram, moments, counts, labels, penalty)
        if not points.isfinite().all():
            return np.zeros_like(labels)
        found = merged(points, counts, variances)
        if np.array_equal(found, labels):
            break
        labels = found
    return labels


def merged(points: Tensor, counts: Tensor, variances: Tensor) -> Labels:
    """Clusters, of which every two are likelier two, merged pair by pair, the likeliest first: [N].

    points: Σ (x − m) in units of the deviation within classes [N, C, R]; counts: [N, C];
    variances: of the means of a class [R], in the squares of these units. Work grows with N².
    """
    points, counts = points.clone(), counts.clone()
    single, clients = evidence(points, counts, variances), torch.ones(len(points)).double()
    labels, there = np.arange(len(points)), torch.ones(len(points), dtype=torch.bool)

    def gains_of(row: int) -> Tensor:
        """What merging with each other cluster gains [N]; −∞ for itself and those that are gone."""
        has = counts[row] > 0  # in other classes there is nothing to gain
        both = evidence(
            points[:, has] + points[row, has], counts[:, has] + counts[row, has], variances
        )
        gains = (both - single[:, has] - single[row, has]).sum(dim=1)
        gains += _prior(clients + clients[row]) - _prior(clients) - _prior(clients[row])
        gains[~there] = -torch.inf
        gains[row] = -torch.inf
        return gains

    best = [gains_of(row).max(dim=0) for row in range(len(points))]
    most = torch.stack([gain for gain, _ in best])
    partner = torch.stack([who for _, who in best])
    exact = torch.ones_like(there)  # else `most` is an upper bound, as the partner is no more
    while most.max() >= 0:
        first = int(most.argmax())
        if not exact[first]:
            most[first], partner[first] = gains_of(first).max(dim=0)
            exact[first] = True
            continue
        keeps, goes = sorted((first, int(partner[first])))
        points[keeps] += points[goes]
        counts[keeps] += counts[goes]
        clients[keeps] += clients[goes]
        single[keeps] = evidence(points[keeps], counts[keeps], variances)
        labels[labels == goes] = keeps
        there[goes], most[goes] = False, -torch.inf

        gains = gains_of(keeps)
        most[keeps], partner[keeps] = gains.max(dim=0)
        exact &= (partner != keeps) & (partner != goes)
        nearer = gains > most
        most = torch.where(nearer, gains, most)
        partner = torch.where(nearer, keeps, partner)
        exact |= nearer
        exact[keeps] = True
    return by_first_appearance(labels)


def evidence(points: Tensor, counts: Tensor, variances: Tensor) -> Tensor:
    """[…, C] ln p of a cluster's sums of each class if it has a mean of its own there, over that if
    it has the mean of all samples.

    With n samples whose sum is M, unit variance within the class and means ~ N(0, b), of each
    direction: ½ M² b / (1 + n b) − ½ ln(1 + n b). points: M […, C, R]; counts: n […, C];
    variances: b [R].
    """
    spread = counts.unsqueeze(-1) * variances
    explained = points.square() * variances / (1 + spread)
    return (explained - spread.log1p()).sum(dim=-1) / 2


def within_clusters(total: ClassSums, moments: Tensor, counts: Tensor) -> ClassSums:
    """The total with the products that it would have if all clusters meant the same by a class.

    Its covariance within classes is that around the means of each cluster's classes. moments:
    [clusters, C, D]; counts: [clusters, C].
    """
    between = _scatter(moments, counts) - _scatter(total.moment, total.counts)
    return ClassSums(total.gram - between, total.moment, total.counts)


def sums_of(labels: NDArray[np.int64], each: Tensor) -> Tensor:
    """[N, …] of clients → [clusters, …] of clusters, labelled 0, 1, … without a gap."""
    made = each.new_zeros(int(labels.max()) + 1, *each.shape[1:])
    return made.index_add_(0, torch.from_numpy(labels), each)


def _prior(clients: Tensor) -> Tensor:
    """ln Γ of a cluster's size: what it adds to that of a partition (Chinese restaurant, α = 1)."""
    return torch.lgamma(clients)


def _in_directions(
    gram: Tensor, moments: Tensor, counts: Tensor, labels: Labels, penalty: float
) -> tuple[Tensor, Tensor]:
    """Each client's Σ (x − m) of its classes [N, C, R] along the directions in which the means of
    these clusters' classes differ most, and the variance of such means along each [R].

    The variances are those of an analysis of variance in which S is known: with G clusters' classes
    of n_g samples, E Σ_g M_g² / n_g = G − 1 + b · (n − Σ n_g² / n).
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
    rest = max(len(gram) - (counts.shape[1] - 1), 0)
    squares, directions = squares[rest:], directions[:, rest:]

    sizes = of_clusters[1][of_clusters[1] > 0]
    samples = sizes.sum().clamp(min=1)
    weight = (samples - sizes.square().sum() / samples).clamp(min=1)
    variances = ((squares - (len(sizes) - 1)) / weight).clamp(min=0)
    along = torch.linalg.solve_triangular(factor.T, directions, upper=True)
    return (moments - counts.unsqueeze(-1) * centre) @ along, variances


def _deviation(total: ClassSums, of_clusters: tuple[Tensor, Tensor], penalty: float) -> Tensor:
    """The Cholesky factor of S by n − G degrees of freedom, G being the means taken from n samples.

    Where that is less than half of n, the clusters' means are little but their few samples. Then S
    is that around the means of all, which is too large rather than too small.
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
    """Σ M Mᵀ / n [D, D] over all classes, of clusters too, with samples. [..., C, D], [..., C]."""
    flat = moments.reshape(-1, moments.shape[-1])
    return class_means(flat, counts.reshape(-1)).T @ flat
