"""Classes in closed form, server half: sums of fixed features, and clusters of clients."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import rand_score
from torch import Tensor

from fedproto_app.core.clients import ClientFacts, ClientKey, key_arrays, keys_of
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.round import Received, Round, of_group, under
from fedproto_app.maths.class_gaussian import ClassSums
from fedproto_app.maths.clustering import Labels
from fedproto_app.maths.ridge import symmetric, triangle
from fedproto_app.settings import Settings
from fedproto_app.strategies.analytic import AnalyticSettings
from fedproto_app.strategies.analytic.class_clusters import class_clusters, sums_of, within_clusters
from fedproto_app.strategies.common.class_fit import (
    CLUSTER_COUNTS,
    CLUSTER_MOMENT,
    COUNTS,
    GRAM,
    MOMENT,
    WITHIN,
    arrived,
    packed,
)
from fedproto_app.strategies.common.class_sums import SumsOfClasses
from fedproto_app.strategies.common.client_sums import SumsStrategy
from fedproto_app.strategies.common.cluster_history import ClusterHistory
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import Ask

# A cluster's clients get its sums only if the cluster and the remaining clients are at least this
# many: in a cluster of two, a client could subtract its sums from the cluster's, and the cluster's
# sums could be subtracted from the total. A node with several clients can still do so, and
# therefore sites must allow it.
LEAST_CLIENTS = 3
MOST_WEIGHT = 3  # a client weighs at most as much as this many median clients in the clustering
MOST_WORK = 2e9  # N²·C·R, some minutes on a core

_log = logging.getLogger(__name__)


class ClassGroups:
    """Clusters of all clients that ever reported, by their class sums."""

    def __init__(self, penalty: float) -> None:
        self._penalty = penalty
        self._keys: list[ClientKey] = []  # the clients of the last round
        self._history = ClusterHistory()
        self._within: Arrays = {}  # the same for all clients
        self._moments: Tensor = torch.zeros(0)  # of the clusters
        self._counts: Tensor = torch.zeros(0)
        self._cluster_of: dict[ClientKey, int] = {}  # of clients that get their cluster's sums

    def find(self, latest: Received, totals: Arrays, round_: Round) -> None:
        """Find the clusters. totals: the totals of `latest`, which must not be empty."""
        self._keys, total = latest.clients, arrived(totals, torch.device("cpu"))
        moments, counts = (
            torch.from_numpy(latest.stacked(name)).double() for name in (MOMENT, COUNTS)
        )
        labels = self._clusters(latest, total, moments, counts)
        self._note(labels, round_)
        self._moments, self._counts = sums_of(labels, moments), sums_of(labels, counts)
        within = packed(within_clusters(total, self._moments, self._counts))
        self._within = {WITHIN: _float32(within[GRAM])}
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
        arrays = {name: _float32(value) for name, value in cluster_sums.items()}
        return Guidance({**self._within, **arrays}, [key.client for key in informed])

    def _clusters(
        self, latest: Received, total: ClassSums, moments: Tensor, counts: Tensor
    ) -> Labels:
        """Cluster by sums with each client's samples capped at a multiple of the median.

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
        groups = [round_.facts[key].group for key in self._keys]
        rand = float(rand_score(groups, labels)) if all(groups) else None
        round_.figures |= {"clusters": float(labels.max() + 1), "rand_index": rand}
        labelled = dict(zip(self._keys, labels.tolist(), strict=True))
        self._history.add(round_.number, labelled, None, None, rand)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for a checkpoint."""
        if not self._keys:
            return {}
        return under("clusters", {**self._history.state(self._keys), **key_arrays(self._keys)})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the arrays of `state`."""
        if arrays := of_group(state, "clusters"):
            self._keys = keys_of(arrays)
            self._history.restore(arrays, self._keys)

    def findings(
        self, facts: Mapping[ClientKey, ClientFacts]
    ) -> dict[str, dict[str, NDArray[Any]]]:
        """Return ``clusters`` (docs/artefacts.md)."""
        return self._history.findings(self._keys, facts)


def _float32(values: Tensor) -> NDArray[np.float32]:
    return values.float().numpy()


class AnalyticClassesStrategy(SumsStrategy):
    """Σ x xᵀ, and Σ x and the number of samples of each class, over all stages so far.

    With ``sharing = "clustered"`` clients also get the class sums of their cluster.
    """

    def __init__(
        self, settings: Settings, section: AnalyticSettings, federation: Federation
    ) -> None:
        super().__init__(settings, section, federation)
        self._groups = ClassGroups(section.penalty)

    def client_sums(self) -> SumsOfClasses:
        sums = SumsOfClasses(self.settings, self.federation, self.received)
        sums.reclassed = self.section.guess_rounds > 0
        return sums

    def shared_names(self) -> Collection[str]:
        return [*super().shared_names(), WITHIN]

    def conclude(self, round_: Round, ask: Ask) -> None:
        super().conclude(round_, ask)
        if self._totals and self.section.sharing == "clustered":
            self._groups.find(self._sums.latest, self._totals, round_)

    def guide_evaluation(
        self, received: Received, clients: Sequence[ClientKey], round_: Round
    ) -> Guidance:
        cluster_guidance = self._groups.sums_for(clients)
        return replace(cluster_guidance, arrays={**self._totals, **cluster_guidance.arrays})

    def state(self) -> dict[str, NDArray[Any]]:
        return super().state() | self._groups.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().restore(state)
        self._groups.restore(state)

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return ``clusters``: the clusters of each round."""
        return self._groups.findings(self.federation.members.facts)
