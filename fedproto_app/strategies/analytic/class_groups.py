"""Clusters of clients that mean the same by each class, and what their clients are told of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import rand_score
from torch import Tensor

from fedproto_app.core.clients import ClientFacts, ClientKey, key_arrays, keys_of
from fedproto_app.core.messages import Arrays
from fedproto_app.core.round import Guidance, Received, Round, of_group, under
from fedproto_app.maths.class_gaussian import ClassSums
from fedproto_app.maths.clustering import Labels
from fedproto_app.maths.ridge import symmetric, triangle
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
from fedproto_app.strategies.common.cluster_history import ClusterHistory

# Clients of a cluster that is told its sums, and of all others together: of two, each could take
# its own sums from the cluster's; and whoever is told these could take them from the total. A node
# with several clients still can: so sites must allow it.
LEAST_TOLD = 3
MOST_WEIGHT = 3  # median clients' samples: no client counts for more where clusters are looked for
MOST_WORK = 2e9  # N²·C·R, some minutes on a core

_log = logging.getLogger(__name__)


class ClassGroups:
    """Of all clients ever heard from, by their sums of classes."""

    def __init__(self, penalty: float) -> None:
        self._penalty = penalty
        self._keys: list[ClientKey] = []  # of the last round
        self._history = ClusterHistory()
        self._within: Arrays = {}  # for everyone
        self._moments: Tensor = torch.zeros(0)  # of the clusters
        self._counts: Tensor = torch.zeros(0)
        self._cluster_of: dict[ClientKey, int] = {}  # of the clients that get its sums

    def find(self, latest: Received, totals: Arrays, round_: Round) -> None:
        """Find the clusters. totals: the sums over all of `latest`, which are not none."""
        self._keys, total = latest.clients, arrived(totals, torch.device("cpu"))
        moments, counts = (
            torch.from_numpy(latest.stacked(name)).double() for name in (MOMENT, COUNTS)
        )
        labels = self._clusters(latest, total, moments, counts)
        self._note(labels, round_)
        self._moments, self._counts = sums_of(labels, moments), sums_of(labels, counts)
        within = packed(within_clusters(total, self._moments, self._counts))
        self._within = {WITHIN: _float32(within[GRAM])}
        has = (counts.sum(dim=1) > 0).numpy()  # without samples it is of no cluster in particular
        sizes = np.bincount(labels, has)[labels]
        large = has & (sizes >= LEAST_TOLD) & (has.sum() - sizes >= LEAST_TOLD)
        self._cluster_of = {key: labels[row] for row, key in enumerate(self._keys) if large[row]}

    def sums_for(self, clients: Sequence[ClientKey]) -> Guidance:
        """The sums of their clusters for these clients of a node; nothing before any are found, or
        where none is large enough."""
        if not self._cluster_of:
            return Guidance()
        informed = [key for key in clients if key in self._cluster_of]
        rows = [self._cluster_of[key] for key in informed]
        own = {CLUSTER_MOMENT: self._moments[rows], CLUSTER_COUNTS: self._counts[rows]}
        arrays = {name: _float32(value) for name, value in own.items()}
        return Guidance({**self._within, **arrays}, informed)

    def _clusters(
        self, latest: Received, total: ClassSums, moments: Tensor, counts: Tensor
    ) -> Labels:
        """By sums in which no client has more than a few times the median client's samples: else
        one that declares many alike samples would make all others' differences look large."""
        clients, classes = counts.shape
        if clients**2 * classes * (classes - 1) > MOST_WORK:
            _log.warning("no clusters are looked for among %d clients of %d classes", *counts.shape)
            return np.zeros(clients, np.int64)
        samples = counts.sum(dim=1)
        usual = torch.where(samples > 0, samples, torch.nan).nanmedian()  # of those that have any
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
        """The clusters, for the artefacts."""
        groups = [round_.facts[key].group for key in self._keys]
        rand = float(rand_score(groups, labels)) if all(groups) else None
        round_.figures |= {"clusters": float(labels.max() + 1), "rand_index": rand}
        labelled = dict(zip(self._keys, labels.tolist(), strict=True))
        self._history.add(round_.number, labelled, None, None, rand)

    def state(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint."""
        if not self._keys:
            return {}
        return under("clusters", {**self._history.state(self._keys), **key_arrays(self._keys)})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """What `state` gave."""
        if mine := of_group(state, "clusters"):
            self._keys = keys_of(mine)
            self._history.restore(mine, self._keys)

    def findings(
        self, facts: Mapping[ClientKey, ClientFacts]
    ) -> dict[str, dict[str, NDArray[Any]]]:
        """``clusters``: see docs/artefacts.md."""
        return self._history.findings(self._keys, facts)


def _float32(values: Tensor) -> NDArray[np.float32]:
    return values.float().numpy()
