"""Classes in closed form, server half: sums of fixed features, and clusters of clients."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.clients import ClientFacts, ClientKey, key_arrays, keys_of
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.round import Received, Round, of_group, under
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.class_gaussian import (
    ClassSums,
    class_means,
    overall_mean,
    precision_factors,
)
from fedproto_app.maths.clustering import Labels, by_first_appearance
from fedproto_app.maths.ridge import symmetric, triangle
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.class_fit import (
    CLUSTER_COUNTS,
    CLUSTER_MOMENT,
    COUNTS,
    GRAM,
    HOLDERS,
    MOMENT,
    SCATTER,
    arrived,
)
from fedproto_app.strategies.common.client_sums import SumsOfClasses, SumsStrategy
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.findings import ClusterHistory

# Clusters of clients whose classes have the same meaning, found from the clients' class sums (our
# own method).
#
# The samples of class c at a client of cluster k are Gaussian with mean µ_kc and the covariance S
# within classes. The means of a class differ between clusters and are distributed around the mean
# of all samples, with a separate variance along each of the C − 1 directions where classes
# differ most. Given these variances, the likelihood of a cluster's sums has a closed form. The
# prior over partitions is a Chinese restaurant process. Two clusters are merged while that raises
# the posterior, so the number of clusters need not be set. Shapes: N clients, C classes, D
# features, R = C − 1 directions. Everything is float64.

_NOISE = 10.0  # factor of the penalty, because underestimated noise gives false clusters
MOST_PASSES = 10  # the directions depend on the clusters, and the clusters on the directions


def class_clusters(gram: Tensor, moments: Tensor, counts: Tensor, penalty: float) -> Labels:
    """Return the cluster of each client, [N], numbered by first appearance.

    gram: Σ x xᵀ over all clients [D, D]. moments: Σ_c x of each client [N, C, D]. counts: [N, C].
    penalty: the penalty of S, as in `precision_factors`. It enlarges an uncertain S, so that
    clusters differ less. The search starts with one cluster per client and is repeated with the
    directions of the resulting clusters until these no longer change. If the sums cannot come from
    samples, S does not exist and all clients are one cluster.
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
    """Merge pairs of clusters, best pair first, while that raises the posterior. Return labels [N].

    points: Σ (x − m) in units of the deviation within classes [N, C, R]. counts: [N, C]. variances:
    the variances of a class's means [R], in squares of these units. The cost grows with N².
    """
    points, counts = points.clone(), counts.clone()
    single, clients = evidence(points, counts, variances), torch.ones(len(points)).double()
    labels, alive = np.arange(len(points)), torch.ones(len(points), dtype=torch.bool)

    def gains_of(row: int) -> Tensor:
        """Return the gain from merging with each cluster [N], −∞ for itself and merged rows."""
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
    # Where `exact` is false, the partner has since been merged, and `best_gain` is an upper bound.
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
    """Return the log Bayes factor, […, C], of a separate mean for each class of a cluster against
    the mean of all samples.

    With n samples whose sum is M, unit variance within the class and means ~ N(0, b), each
    direction adds ½ M² b / (1 + n b) − ½ ln(1 + n b). points: M […, C, R]. counts: n […, C].
    variances: b [R].
    """
    spread = counts.unsqueeze(-1) * variances
    explained = points.square() * variances / (1 + spread)
    return (explained - spread.log1p()).sum(dim=-1) / 2


def within_clusters(total: ClassSums, moments: Tensor, counts: Tensor) -> ClassSums:
    """Return the total without the products between the clusters' means of a class.

    The result's covariance within classes is the covariance around the class means of each cluster.
    moments: [clusters, C, D]. counts: [clusters, C].
    """
    between = _scatter(moments, counts) - _scatter(total.moment, total.counts)
    return ClassSums(total.gram - between, total.moment, total.counts)


def sums_of(labels: NDArray[np.int64], values: Tensor) -> Tensor:
    """Sum clients' values [N, …] by cluster, [clusters, …]. Labels are 0, 1, … without a gap."""
    sums = values.new_zeros(int(labels.max()) + 1, *values.shape[1:])
    return sums.index_add_(0, torch.from_numpy(labels), values)


def _prior(clients: Tensor) -> Tensor:
    """Return ln Γ of a cluster's size, which is its term in the log prior of a partition (Chinese
    restaurant process, α = 1)."""
    return torch.lgamma(clients)


def _in_directions(
    gram: Tensor, moments: Tensor, counts: Tensor, labels: Labels, penalty: float
) -> tuple[Tensor, Tensor]:
    """Return each client's Σ (x − m) for each class in R directions [N, C, R], and variances [R].

    In these directions the class means of these clusters differ most. The variances of the class
    means follow from an analysis of variance with given S: for G class means of clusters, where
    mean g is over n_g samples, E Σ_g M_g² / n_g = G − 1 + b · (n − Σ n_g² / n).
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
    """Return the Cholesky factor of S, which has n − G degrees of freedom for G means of n samples.

    If n − G is less than n/2, the clusters' means rest on very few samples. Then S is computed
    around the overall class means, which makes it too large rather than too small.
    """
    samples = total.counts.sum()
    spread, means = within_clusters(total, *of_clusters), (of_clusters[1] > 0).sum()
    if samples - means < samples / 2:
        spread, means = total, (total.counts > 0).sum()
    [factor] = precision_factors(spread, [_NOISE * penalty])
    return factor * (samples / (samples - means).clamp(min=1)).sqrt()


def _scatter(moments: Tensor, counts: Tensor) -> Tensor:
    """Return Σ M Mᵀ / n [D, D] over the classes (of all clusters) with samples.

    moments: [..., C, D]. counts: [..., C].
    """
    flat = moments.reshape(-1, moments.shape[-1])
    return class_means(flat, counts.reshape(-1)).T @ flat


# A cluster's clients get its sums only if at least this many clients are in the cluster, and at
# least this many are outside it. In a cluster of two, a client could subtract its own sums from the
# cluster's. With too few clients outside, subtracting the cluster's sums from the total would
# reveal theirs. A node with several clients can still do so, and therefore sites must allow cluster
# sums.
LEAST_CLIENTS = 3
MOST_WEIGHT = 3  # in the clustering, a client weighs at most as much as this many median clients
MOST_WORK = 2e9  # N²·C·R, some minutes on a core

_log = logging.getLogger(__name__)


class ClassGroups:
    """Clusters of all clients that ever reported, found from their class sums."""

    def __init__(self, penalty: float) -> None:
        self._penalty = penalty
        self._keys: list[ClientKey] = []  # the clients of the last round
        self._history = ClusterHistory()
        self._moments: Tensor = torch.zeros(0)  # the clusters' sums
        self._counts: Tensor = torch.zeros(0)
        self._cluster_of: dict[ClientKey, int] = {}  # clients that get their cluster's sums

    def find(self, latest: Received, totals: Arrays, round_: Round) -> None:
        """Find the clusters. totals: the totals of `latest`, which must not be empty."""
        self._keys, total = latest.clients, arrived(totals, torch.device("cpu"))
        moments, counts = (
            torch.from_numpy(latest.stacked(name)).double() for name in (MOMENT, COUNTS)
        )
        labels = self._clusters(latest, total, moments, counts)
        self._note(labels, round_)
        self._moments, self._counts = sums_of(labels, moments), sums_of(labels, counts)
        has = (counts.sum(dim=1) > 0).numpy()  # a client without samples belongs to no cluster
        sizes = np.bincount(labels, has)[labels]
        large = has & (sizes >= LEAST_CLIENTS) & (has.sum() - sizes >= LEAST_CLIENTS)
        self._cluster_of = {key: labels[row] for row, key in enumerate(self._keys) if large[row]}

    def sums_for(self, clients: Sequence[ClientKey]) -> Guidance:
        """Return guidance with the cluster sums for these clients of a node.

        It is empty before the first clustering, or if no cluster is large enough.
        """
        if not self._cluster_of:
            return Guidance()
        informed = [key for key in clients if key in self._cluster_of]
        rows = [self._cluster_of[key] for key in informed]
        cluster_sums = {CLUSTER_MOMENT: self._moments[rows], CLUSTER_COUNTS: self._counts[rows]}
        arrays = {name: value.float().numpy() for name, value in cluster_sums.items()}
        return Guidance(arrays, [key.client for key in informed])

    def _clusters(
        self, latest: Received, total: ClassSums, moments: Tensor, counts: Tensor
    ) -> Labels:
        """Cluster by sums, with each client's samples capped at a multiple of the median.

        Otherwise a client that declares many similar samples would make the differences between
        all other clients look large.
        """
        clients, classes = counts.shape
        if clients**2 * classes * (classes - 1) > MOST_WORK:
            _log.warning("no clusters are looked for among %d clients of %d classes", *counts.shape)
            return np.zeros(clients, np.int64)
        samples = counts.sum(dim=1)
        usual = torch.where(samples > 0, samples, torch.nan).nanmedian()  # of clients with samples
        weights = (MOST_WEIGHT * usual / samples).clamp(max=1)
        gram = triangle(total.gram)
        for row in (weights < 1).nonzero().flatten().tolist():
            sums = latest.latest(self._keys[row])
            assert sums is not None
            gram -= (1 - weights[row]) * torch.from_numpy(sums[GRAM]).double()
        return class_clusters(
            symmetric(gram, moments.shape[-1]),
            moments * weights[:, None, None],
            counts * weights[:, None],
            self._penalty,
        )

    def _note(self, labels: Labels, round_: Round) -> None:
        """Record the clusters for the artefacts."""
        round_.figures["clusters"] = float(labels.max() + 1)
        self._history.add(round_, dict(zip(self._keys, labels.tolist(), strict=True)))

    def state(self) -> dict[str, AnyArray]:
        """Return the arrays for a checkpoint."""
        if not self._keys:
            return {}
        return under("clusters", {**self._history.state(self._keys), **key_arrays(self._keys)})

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the arrays of `state`."""
        if arrays := of_group(state, "clusters"):
            self._keys = keys_of(arrays)
            self._history.restore(arrays, self._keys)

    def findings(self, facts: Mapping[ClientKey, ClientFacts]) -> dict[str, dict[str, AnyArray]]:
        """Return ``clusters`` (docs/artefacts.md)."""
        return self._history.findings(self._keys, facts)


class AnalyticClassesStrategy(SumsStrategy):
    """Σ x xᵀ, and each class's Σ x and number of samples, over all stages so far.

    With ``sharing = "clustered"`` clients also get the class sums of their cluster.
    """

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self._groups = ClassGroups(self.section.penalty)
        self.saved = [self._sums, self._groups]
        self.shared_names = [*self._sums.shapes, SCATTER, HOLDERS]

    def client_sums(self) -> SumsOfClasses:
        sums = SumsOfClasses(self.settings, self.federation, self.received)
        sums.reclassed = self.section.guess_rounds > 0
        return sums

    def conclude(self, round_: Round) -> None:
        super().conclude(round_)
        if self._totals and self.section.sharing == "clustered":
            self._groups.find(self._sums.latest, self._totals, round_)

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        cluster_guidance = self._groups.sums_for(clients)
        return replace(cluster_guidance, arrays={**self._totals, **cluster_guidance.arrays})

    def findings(self) -> dict[str, dict[str, AnyArray]]:
        """Return ``clusters``: the clusters of each round."""
        return self._groups.findings(self.federation.members.facts)
