"""Clusters of clients that mean the same by each class, and what their clients are told of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import rand_score
from torch import Tensor

from fedproto_app.learners.class_fit import (
    CLUSTER_COUNTS,
    CLUSTER_MOMENT,
    COUNTS,
    GRAM,
    MOMENT,
    WITHIN,
    arrived,
    packed,
)
from fedproto_app.maths.class_clusters import class_clusters, sums_of, within_clusters
from fedproto_app.maths.cluster_identity import ABSENT, match_labels
from fedproto_app.maths.clustering import Labels
from fedproto_app.messages import Arrays, Order
from fedproto_app.server.federation import Federation
from fedproto_app.server.roster import ClientKey, key_arrays, keys_of
from fedproto_app.strategies.cluster_history import ClusterHistory
from fedproto_app.strategies.latest_arrays import LatestArrays
from fedproto_app.strategies.state_groups import of_group, under

# Clients of a cluster that is told its sums, and of all others together: of two, each could take
# its own sums from the cluster's; and whoever is told these could take them from the total.
LEAST_TOLD = 3
Telling = Callable[[Order, list[ClientKey]], Order]


class ClassGroups:
    """Of all clients ever heard from, by their sums of classes."""

    def __init__(self, federation: Federation, penalty: float) -> None:
        self._federation, self._penalty = federation, penalty
        self._labels: dict[ClientKey, int] = {}
        self._history = ClusterHistory()

    def found(self, latest: LatestArrays, totals: Arrays, server_round: int) -> Telling:
        """Find the clusters; returns what puts their sums into an order to some clients of a node.

        totals: the sums over all of `latest`, which are not none.
        """
        keys, total = latest.clients(), arrived(totals, torch.device("cpu"))
        moments, counts = (
            torch.from_numpy(latest.stacked(name)).double() for name in (MOMENT, COUNTS)
        )
        labels = class_clusters(total.gram, moments, counts, self._penalty)
        self._note(keys, labels, server_round)
        if not labels.any():  # one cluster: what all are told is all that there is
            return lambda order, _: order
        of_clusters = sums_of(labels, moments), sums_of(labels, counts)
        within = packed(within_clusters(total, *of_clusters))[GRAM]
        has = (counts.sum(dim=1) > 0).numpy()  # without samples it is of no cluster in particular
        sizes = np.bincount(labels, has)[labels]
        is_told = has & (sizes >= LEAST_TOLD) & (has.sum() - sizes >= LEAST_TOLD)
        cluster_of = {key: labels[row] for row, key in enumerate(keys) if is_told[row]}
        if not cluster_of:
            return lambda order, _: order

        def tell(order: Order, asked: list[ClientKey]) -> Order:
            told = [key for key in asked if key in cluster_of]
            rows = [cluster_of[key] for key in told]
            moment, counts = (_float32(each[rows]) for each in of_clusters)
            arrays = {WITHIN: _float32(within), CLUSTER_MOMENT: moment, CLUSTER_COUNTS: counts}
            guided = [key.client for key in told]
            return replace(order, arrays={**order.arrays, **arrays}, guided=guided)

        return tell

    def _note(self, keys: list[ClientKey], found: Labels, server_round: int) -> None:
        """The clusters with the numbers of those of the round before, for the artefacts."""
        before = np.array([self._labels.get(key, ABSENT) for key in keys])
        numbers = int(found.max()) + 1 + len(set(self._labels.values()))
        labels = match_labels(before, found, max(numbers, int(before.max()) + 1))
        self._labels = dict(zip(keys, labels.tolist(), strict=True))
        groups = [self._federation.roster.facts[key].group for key in keys]
        rand = float(rand_score(groups, labels)) if all(groups) else None
        self._federation.note({"clusters": float(len(set(labels.tolist()))), "rand_index": rand})
        self._history.add(server_round, self._labels, None, None, rand)

    def state(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint."""
        if not self._labels:
            return {}
        keys = list(self._labels)
        return under("clusters", {**self._history.state(keys), **key_arrays(keys)})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """What `state` gave."""
        if mine := of_group(state, "clusters"):
            keys = keys_of(mine)
            self._history.restore(mine, keys)
            last = mine["labels"][-1].tolist()
            self._labels = dict(zip(keys, last, strict=True))

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """``clusters``: see docs/artefacts.md."""
        return self._history.findings(list(self._labels), self._federation.roster.facts)


def _float32(values: Tensor) -> NDArray[np.float32]:
    return values.float().numpy()
