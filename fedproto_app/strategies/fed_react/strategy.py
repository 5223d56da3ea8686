"""Phase 2, server half (Fed-REACT, Algorithm 2).

Clients are clustered by their heads: AFFECT finds how much of the past to keep, the clusters keep
their names from round to round, and each one's head is smoothed over the rounds (A1, A2, A3). With
``clustering = "snapshot"`` every round stands alone (Fed-REACT, Algorithm 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import rand_score

from fedproto_app.core.clients import ClientKey, key_arrays, keys_of
from fedproto_app.core.round import Round, of_group, under
from fedproto_app.maths.cluster_identity import ABSENT, clusters_of_before, match_labels
from fedproto_app.maths.clustering import MOST_CLUSTERS, Matrix, head_similarity
from fedproto_app.maths.linear_heads import Head
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.cluster_history import ClusterHistory
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import Ask
from fedproto_app.strategies.fed_react import FedReactSettings
from fedproto_app.strategies.fed_react.affect import Affect, affect, remember
from fedproto_app.strategies.fed_react.clustered_heads import (
    ClusteredHeadStrategy,
    Fitted,
)
from fedproto_app.strategies.fed_react.head_smoothing import HeadSmoother
from fedproto_app.strategies.fed_react.learner import HEAD
from fedproto_app.strategies.fed_react.strategy import PairMemory, Rows, make_smoother, probe_vector


class EvolutionaryClusterStrategy(ClusteredHeadStrategy):
    """ψ̂ [N, N] of all clients ever heard, each client's cluster, each cluster's head.

    Only clients of connected nodes are clustered. The latest heads and the rows of ψ̂ of the
    others stay as they were, for their return.
    """

    def __init__(
        self, settings: Settings, section: FedReactSettings, federation: Federation
    ) -> None:
        super().__init__(settings, section, federation)
        self._keys: list[ClientKey] = []  # in the order in which they were first heard
        self._past = PairMemory(np.nan)  # ψ̂ of the last round in which both were there
        self._together = PairMemory(0)  # such rounds, where ψ̂ is their mean
        self._labels: dict[ClientKey, int] = {}  # of the last round, in the order of _keys
        self._smoothers: dict[int, HeadSmoother] = {}
        self._history = ClusterHistory()
        self._probe: NDArray[np.float64] | None = None  # [D], where heads are compared by it

    def begin(self, round_: Round, ask: Ask) -> None:
        if self.section.similarity == "predictions" and self._probe is None:
            self._probe = probe_vector(self.model, self.task)

    def cluster(self, fitted: Fitted, round_: Round) -> dict[ClientKey, Head]:
        if not fitted:
            return {}
        known = set(self._keys)
        self._keys += [key for key in fitted if key not in known]
        before = self._labels
        psi, forgetting = self._find_clusters()
        new = self._new_heads(fitted, before, forgetting, round_.number)
        self._note(round_, psi, forgetting, len(new))
        return new

    def _find_clusters(self) -> tuple[Matrix, float]:
        """Cluster the clients that are there by their latest heads; returns their ψ̂_t and α_t."""
        chosen = self.section
        connected = set(self.federation.members.clients())
        rows = np.array([row for row, key in enumerate(self._keys) if key in connected])
        there = [self._keys[row] for row in rows]
        heads = self.received.stacked(HEAD, there)
        observed = head_similarity(heads, chosen.similarity, self._probe)  # W_t
        labels, forgetting, psi = self._estimate(observed, rows, there)
        previous = np.array([self._labels.get(key, ABSENT) for key in there])
        labels = match_labels(previous, labels, chosen.clusters or MOST_CLUSTERS)
        self._labels = dict(zip(there, labels.tolist(), strict=True))
        return psi, forgetting

    def _estimate(self, observed: Matrix, rows: Rows, there: list[ClientKey]) -> Affect:
        """ψ̂_t of these clients with its clusters, as the settings say, remembered for t + 1.

        observed: their W_t. rows: their places in _keys.
        """
        chosen, heard = self.section, len(self._keys)
        clusters = min(chosen.clusters, len(there))
        past = None
        if len(self._past.values) and chosen.clustering != "snapshot":
            past = self._past.of(rows, heard)
        if chosen.clustering == "snapshot":
            estimate = remember(past, observed, clusters, 0.0)
        elif chosen.forgetting == "adaptive":
            estimate = affect(past, observed, clusters, chosen.affect_iterations)
        elif chosen.forgetting == "toolbox":
            start = clusters_of_before([self._labels.get(key, ABSENT) for key in there])
            estimate = affect(past, observed, clusters, chosen.affect_iterations, start, True)
        elif chosen.forgetting == "all-rounds":
            rounds = self._together.of(rows, heard)  # behind the past of every two clients
            estimate = remember(past, observed, clusters, rounds / (rounds + 1))
            self._together.remember(rounds + 1, rows, heard)
        else:
            estimate = remember(past, observed, clusters, chosen.forgetting)
        self._past.remember(estimate.psi, rows, heard)
        return estimate

    def _new_heads(
        self,
        fitted: Fitted,
        before: Mapping[ClientKey, int],
        forgetting: float,
        server_round: int,
    ) -> dict[ClientKey, Head]:
        """The smoothed head for each client of a cluster that gets one this round.

        A cluster gets one if it has the same clients as the round before, or in the last round; a
        snapshot has no round before. With ``history = "all"`` every cluster gets one.
        """
        always = self.section.clustering == "snapshot" or self.section.history == "all"
        always = always or server_round == self.settings.all_rounds
        new: dict[ClientKey, Head] = {}
        old = _by_cluster(before)
        for cluster, members in sorted(_by_cluster(self._labels).items()):
            answered = [fitted[key] for key in sorted(members) if key in fitted]
            if all(before.get(key) != cluster for key in members):  # a new one
                self._smoothers[cluster] = make_smoother(self.section)
            if not answered or not (members == old.get(cluster) or always):
                continue
            smoothed = self._smoothers[cluster].update(self.head_of(answered), forgetting)
            new |= dict.fromkeys(members, smoothed.astype(np.float32))
        return new

    def _note(self, round_: Round, psi: Matrix, forgetting: float, sent: int) -> None:
        """Note the round for the artefacts."""
        groups = [round_.facts[key].group for key in self._labels]
        labels = np.array(list(self._labels.values()))
        rand = float(rand_score(groups, labels)) if all(groups) else None
        round_.figures |= {
            "rand_index": rand,
            "forgetting_factor": forgetting,
            "clusters": float(len(set(labels.tolist()))),
            "clients_sent_a_head": float(sent),
        }
        self._history.add(round_.number, self._labels, psi, forgetting, rand)

    def state(self) -> dict[str, NDArray[Any]]:
        state = super().state()
        if not self._keys:
            return state
        state |= under("history", self._history.state(self._keys))
        if len(self._together.values):
            state["rounds-together"] = self._together.values
        for cluster, smoother in self._smoothers.items():
            state |= under(_smoother(cluster), smoother.state())
        return {
            **state,
            **key_arrays(self._keys),
            "labels": np.array([self._labels.get(key, ABSENT) for key in self._keys]),
            "heads": self.received.stacked(HEAD, self._keys),
            "similarity": self._past.values,
            "smoothers": np.array(list(self._smoothers)),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().restore(state)
        if "labels" not in state:
            return
        self._keys = keys_of(state)
        self.received.restore({**key_arrays(self._keys), HEAD: state["heads"]})
        self._past.values = state["similarity"]
        self._together.values = state.get("rounds-together", self._together.values)
        labels = dict(zip(self._keys, state["labels"].tolist(), strict=True))
        self._labels = {key: label for key, label in labels.items() if label != ABSENT}
        self._history.restore(of_group(state, "history"), self._keys)
        for cluster in state["smoothers"].tolist():
            self._smoothers[cluster] = make_smoother(self.section)
            self._smoothers[cluster].restore(of_group(state, _smoother(cluster)))

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """``clusters``: who was in which cluster in each round, and what decided it."""
        return self._history.findings(self._keys, self.federation.members.facts)


def _smoother(cluster: int) -> str:
    return f"smoother-{cluster}"


def _by_cluster(labels: Mapping[ClientKey, int]) -> dict[int, list[ClientKey]]:
    """The clients of each cluster, in the order of the labels."""
    clusters: dict[int, list[ClientKey]] = defaultdict(list)
    for key, cluster in labels.items():
        clusters[cluster].append(key)
    return clusters
