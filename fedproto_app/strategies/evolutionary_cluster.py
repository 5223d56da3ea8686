"""Fed-REACT, phase 2, server half: Algorithm 2.

Clients are clustered by their heads: AFFECT finds how much of the past to keep (section 2), the
clusters keep their names from round to round, and each one's head is smoothed over the rounds (A1,
A2, A3). With ``clustering = "snapshot"`` it is Algorithm 3 of the appendix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.affect import affect
from fedproto_app.cluster_identity import match_labels, rand_index
from fedproto_app.clustering import (
    MOST_CLUSTERS,
    agglomerate,
    agglomerate_by_silhouette,
    head_similarity,
)
from fedproto_app.federation import Federation
from fedproto_app.head_smoothing import HeadSmoother, make_smoother
from fedproto_app.heads import Head
from fedproto_app.roster import ClientKey
from fedproto_app.settings import Settings
from fedproto_app.strategies.cluster_history import ClusterHistory
from fedproto_app.strategies.clustered_heads import ClusteredHeadStrategy, Fitted, weighted_head


class EvolutionaryClusterStrategy(ClusteredHeadStrategy):
    """ψ̂ [N, N] of all clients ever heard, whose cluster each is in, each cluster's head."""

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self._keys: list[ClientKey] = []  # in the order in which they were first heard
        self._heads: dict[ClientKey, Head] = {}  # each client's latest
        self._past: NDArray[np.float32] | None = None  # ψ̂ of the round before
        self._labels: dict[ClientKey, int] = {}
        self._smoothers: dict[int, HeadSmoother] = {}
        self._history = ClusterHistory()

    def cluster(
        self, fitted: Mapping[ClientKey, Fitted], server_round: int
    ) -> dict[ClientKey, Head]:
        if not fitted:
            return {}
        self._heads |= {key: one.head for key, one in fitted.items()}
        self._keys += [key for key in fitted if key not in self._labels]
        before = dict(self._labels)
        forgetting = self._find_clusters()
        new = self._new_heads(fitted, before, forgetting, server_round)
        self._tell(server_round, forgetting, len(new))
        return new

    def _find_clusters(self) -> float:
        """Cluster all clients by their latest heads; returns the forgetting factor α_t."""
        chosen = self.settings.fed_react
        heads = np.stack([self._heads[key] for key in self._keys])
        observed = head_similarity(heads, chosen.similarity)  # W_t
        clusters = min(chosen.clusters, len(self._keys))
        if chosen.clustering == "snapshot":
            labels = (
                agglomerate(observed, clusters) if clusters else agglomerate_by_silhouette(observed)
            )
            forgetting, self._past = 0.0, observed
        else:
            past = self._past_with_newcomers()
            labels, forgetting, self._past = affect(
                past, observed, clusters, chosen.affect_iterations
            )
        previous = np.array([self._labels.get(key, -1) for key in self._keys])
        labels = match_labels(previous, labels, clusters or MOST_CLUSTERS)
        self._labels = dict(zip(self._keys, labels.tolist(), strict=True))
        return forgetting

    def _past_with_newcomers(self) -> NDArray[np.float32] | None:
        """ψ̂ of the round before, NaN where a client has no past."""
        if self._past is None:
            return None
        newcomers = len(self._keys) - len(self._past)
        return np.pad(self._past, (0, newcomers), constant_values=np.nan)

    def _new_heads(
        self,
        fitted: Mapping[ClientKey, Fitted],
        before: Mapping[ClientKey, int],
        forgetting: float,
        server_round: int,
    ) -> dict[ClientKey, Head]:
        """The smoothed head for each client of a cluster that gets one this round.

        A cluster gets one if it has the same clients as the round before, or in the last round; a
        snapshot has no round before.
        """
        always = self.settings.fed_react.clustering == "snapshot"
        always = always or server_round == self.settings.all_rounds
        new: dict[ClientKey, Head] = {}
        for cluster in sorted(set(self._labels.values())):
            members = [key for key in self._keys if self._labels[key] == cluster]
            answered = [fitted[key] for key in sorted(members) if key in fitted]
            same = members == [key for key in self._keys if before.get(key) == cluster]
            if all(before.get(key) != cluster for key in members):  # a new one
                self._smoothers[cluster] = make_smoother(self.settings.fed_react)
            if not answered or not (same or always):
                continue
            smoothed = self._smoothers[cluster].update(weighted_head(answered), forgetting)
            new |= dict.fromkeys(members, smoothed.astype(np.float32))
        return new

    def _tell(self, server_round: int, forgetting: float, sent: int) -> None:
        """Note the round for the artefacts."""
        assert self._past is not None
        groups = [self.federation.roster.facts[key].group for key in self._keys]
        labels = np.array([self._labels[key] for key in self._keys])
        rand = rand_index(labels, np.array(groups)) if all(groups) else None
        self.federation.log.figures = {
            "rand_index": rand,
            "forgetting_factor": forgetting,
            "clusters": float(len(set(labels.tolist()))),
            "clients_sent_a_head": float(sent),
        }
        self._history.add(server_round, self._labels, self._past, forgetting, rand)

    def state(self) -> dict[str, NDArray[Any]]:
        if not self._keys:
            return {}
        assert self._past is not None
        smoothed = {
            f"smoother-{cluster}/{name}": array
            for cluster, smoother in self._smoothers.items()
            for name, array in smoother.state().items()
        }
        return {
            "names": np.array([key.client for key in self._keys]),
            "nodes": np.array([key.node for key in self._keys]),
            "labels": np.array([self._labels[key] for key in self._keys]),
            "heads": np.stack([self._heads[key] for key in self._keys]),
            "similarity": self._past,
            **smoothed,
        }

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """``clusters``: who was in which cluster in each round, and what decided it."""
        return self._history.findings(self._keys, self.federation.roster.facts)
