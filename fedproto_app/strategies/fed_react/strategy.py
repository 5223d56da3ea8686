"""Phase 2, server half (Fed-REACT, Algorithm 2).

Clients are clustered by their heads. AFFECT estimates the weight of the past, clusters are matched
from round to round, and each cluster's head is smoothed over the rounds (A1, A2, A3). With
``clustering = "snapshot"`` every round is clustered on its own (Fed-REACT, Algorithm 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import rand_score

from fedproto_app.core.clients import ClientKey, key_arrays, keys_of
from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Arrays
from fedproto_app.core.randomness import numpy_stream
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
from fedproto_app.strategies.fed_react.head_smoothing import (
    ForgettingMean,
    HeadSmoother,
    KalmanSmoothing,
    NoSmoothing,
    RunningMean,
)
from fedproto_app.strategies.fed_react.learner import HEAD
from fedproto_app.tasks.sequences.task import SequenceTask

_WALKS, _STEPS = 32, 100  # random walks, and the steps of each


def probe_vector(encoder: Arrays, task: SequenceTask) -> NDArray[np.float64]:
    """Return the mean vector of random walks under the encoder, [D].

    The server compares heads by their predictions at this vector, so it needs no client's data.
    Walks are used because neighbouring steps of real sequences are similar; each dimension is
    standardised like most data. Raise `FederationError` if the vector is not finite.
    """
    generator = numpy_stream(task.settings.seed, "probe")
    walks = generator.normal(size=(_WALKS, _STEPS, *task.shape.inputs)).cumsum(axis=1)
    walks -= walks.mean(axis=1, keepdims=True)
    walks /= walks.std(axis=1, keepdims=True)
    values = torch.from_numpy(walks.astype(np.float32)).unsqueeze(0)
    lengths = torch.full((1, _WALKS), _STEPS)
    stacked = {name: torch.from_numpy(array).unsqueeze(0) for name, array in encoder.items()}
    vector = task.encode_all(stacked, values, lengths)[0].double().mean(dim=0)
    if not vector.isfinite().all():
        raise FederationError(
            "fed-react.similarity = 'predictions': the encoder makes NaN or infinite values of "
            "random walks, so heads cannot be compared"
        )
    mean_vector: NDArray[np.float64] = vector.numpy()
    return mean_vector


Rows = NDArray[np.intp]  # rows of clients, in the order of their first report


class PairMemory:
    """A value for every two clients, [N, N], while clients join, leave and return.

    It covers all clients that ever reported; two that were never present together have `unknown`.
    The value of a pair does not change while either client is absent.
    """

    def __init__(self, unknown: float) -> None:
        self._unknown = unknown
        self.values: Matrix = np.zeros((0, 0), np.float32)

    def select(self, rows: Rows, clients: int) -> Matrix:
        """Return the values of these clients, [n, n]. clients: how many ever reported, N."""
        values = self._with_newcomers(clients)
        return values if len(rows) == clients else values[np.ix_(rows, rows)]

    def remember(self, values: Matrix, rows: Rows, clients: int) -> None:
        """Store new values of these clients, [n, n]."""
        if len(rows) == clients:
            self.values = values
        else:
            self.values = self._with_newcomers(clients)
            self.values[np.ix_(rows, rows)] = values

    def _with_newcomers(self, clients: int) -> Matrix:
        """Return a copy with rows and columns for new clients."""
        return np.pad(self.values, (0, clients - len(self.values)), constant_values=self._unknown)


def make_smoother(settings: FedReactSettings) -> HeadSmoother:
    """Return a new smoother by ``fed-react.smoothing``."""
    match settings.smoothing:
        case "none":
            return NoSmoothing()
        case "mean":
            return RunningMean()
        case "forgetting":
            return ForgettingMean()
        case "kalman":
            return KalmanSmoothing(
                settings.process_variance, settings.measurement_variance, settings.em_iterations
            )


class EvolutionaryClusterStrategy(ClusteredHeadStrategy):
    """State: ψ̂ [N, N] of all clients that ever reported, the clusters and the clusters' heads.

    Only clients of connected nodes are clustered. The heads of absent clients and their rows of ψ̂
    are kept for their return.
    """

    def __init__(
        self, settings: Settings, section: FedReactSettings, federation: Federation
    ) -> None:
        super().__init__(settings, section, federation)
        self._keys: list[ClientKey] = []  # in the order of their first report
        self._past = PairMemory(np.nan)  # ψ̂ of the last round with both clients
        self._together = PairMemory(0)  # the number of such rounds, if ψ̂ is their mean
        self._labels: dict[ClientKey, int] = {}  # of the last round, in the order of _keys
        self._smoothers: dict[int, HeadSmoother] = {}
        self._history = ClusterHistory()
        self._probe: NDArray[np.float64] | None = None  # [D], to compare heads by predictions

    def begin(self, round_: Round, ask: Ask) -> None:
        if self.section.similarity == "predictions" and self._probe is None:
            self._probe = probe_vector(self.model, self.task)

    def cluster(self, fitted: Fitted, round_: Round) -> dict[ClientKey, Head]:
        if not fitted:
            return {}
        previous_keys = set(self._keys)
        self._keys += [key for key in fitted if key not in previous_keys]
        before = self._labels
        psi, forgetting = self._find_clusters()
        new = self._new_heads(fitted, before, forgetting, round_.number)
        self._note(round_, psi, forgetting, len(new))
        return new

    def _find_clusters(self) -> tuple[Matrix, float]:
        """Cluster the connected clients by their latest heads; return their ψ̂_t and α_t."""
        chosen = self.section
        connected = set(self.federation.members.clients())
        rows = np.array([row for row, key in enumerate(self._keys) if key in connected])
        present = [self._keys[row] for row in rows]
        heads = self.received.stacked(HEAD, present)
        observed = head_similarity(heads, chosen.similarity, self._probe)  # W_t
        labels, forgetting, psi = self._estimate(observed, rows, present)
        previous = np.array([self._labels.get(key, ABSENT) for key in present])
        labels = match_labels(previous, labels, chosen.clusters or MOST_CLUSTERS)
        self._labels = dict(zip(present, labels.tolist(), strict=True))
        return psi, forgetting

    def _estimate(self, observed: Matrix, rows: Rows, present: list[ClientKey]) -> Affect:
        """Return ψ̂_t of these clients and its clusters, by the settings, and store ψ̂_t for t + 1.

        observed: their W_t. rows: their places in _keys.
        """
        chosen, clients = self.section, len(self._keys)
        clusters = min(chosen.clusters, len(present))
        past = None
        if len(self._past.values) and chosen.clustering != "snapshot":
            past = self._past.select(rows, clients)
        if chosen.clustering == "snapshot":
            estimate = remember(past, observed, clusters, 0.0)
        elif chosen.forgetting == "adaptive":
            estimate = affect(past, observed, clusters, chosen.affect_iterations)
        elif chosen.forgetting == "toolbox":
            start = clusters_of_before([self._labels.get(key, ABSENT) for key in present])
            estimate = affect(past, observed, clusters, chosen.affect_iterations, start, True)
        elif chosen.forgetting == "all-rounds":
            rounds = self._together.select(rows, clients)  # in the past of every two clients
            estimate = remember(past, observed, clusters, rounds / (rounds + 1))
            self._together.remember(rounds + 1, rows, clients)
        else:
            estimate = remember(past, observed, clusters, chosen.forgetting)
        self._past.remember(estimate.psi, rows, clients)
        return estimate

    def _new_heads(
        self,
        fitted: Fitted,
        before: Mapping[ClientKey, int],
        forgetting: float,
        server_round: int,
    ) -> dict[ClientKey, Head]:
        """Return the smoothed head for each client of a cluster with a new head.

        A cluster gets a new head if its clients are the same as in the last round, and always in
        the final round, in a snapshot, and with ``history = "all"``.
        """
        always = self.section.clustering == "snapshot" or self.section.history == "all"
        always = always or server_round == self.settings.all_rounds
        new: dict[ClientKey, Head] = {}
        old = _by_cluster(before)
        for cluster, members in sorted(_by_cluster(self._labels).items()):
            answered = [fitted[key] for key in sorted(members) if key in fitted]
            if all(before.get(key) != cluster for key in members):  # a new cluster
                self._smoothers[cluster] = make_smoother(self.section)
            if not answered or not (members == old.get(cluster) or always):
                continue
            smoothed = self._smoothers[cluster].update(self.head_of(answered), forgetting)
            new |= dict.fromkeys(members, smoothed.astype(np.float32))
        return new

    def _note(self, round_: Round, psi: Matrix, forgetting: float, heads_sent: int) -> None:
        """Record the round for the artefacts."""
        groups = [round_.facts[key].group for key in self._labels]
        labels = np.array(list(self._labels.values()))
        rand = float(rand_score(groups, labels)) if all(groups) else None
        round_.figures |= {
            "rand_index": rand,
            "forgetting_factor": forgetting,
            "clusters": float(len(set(labels.tolist()))),
            "clients_sent_a_head": float(heads_sent),
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
        """Return ``clusters``: the clusters, similarities and forgetting factors of the rounds."""
        return self._history.findings(self._keys, self.federation.members.facts)


def _smoother(cluster: int) -> str:
    return f"smoother-{cluster}"


def _by_cluster(labels: Mapping[ClientKey, int]) -> dict[int, list[ClientKey]]:
    """Return the clients of each cluster, in the order of the labels."""
    clusters: dict[int, list[ClientKey]] = defaultdict(list)
    for key, cluster in labels.items():
        clusters[cluster].append(key)
    return clusters
