"""Phase 2, server half (Fed-REACT, Algorithm 2).

Clients are clustered by their heads. AFFECT estimates the weight of the past, clusters are matched
from round to round, and each cluster's head is smoothed over the rounds (A1, A2, A3). With
``clustering = "snapshot"`` every round is clustered on its own (Fed-REACT, Algorithm 3).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey, key_arrays, keys_of
from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Arrays
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.round import Round, of_group, under
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.clustering import (
    ABSENT,
    MOST_CLUSTERS,
    Labels,
    Matrix,
    clusters_of_before,
    find_clusters,
    head_similarity,
    match_labels,
    spans,
)
from fedproto_app.maths.linear_heads import Head
from fedproto_app.maths.threads import in_threads
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.findings import ClusterHistory
from fedproto_app.strategies.fed_react import FedReactSettings
from fedproto_app.strategies.fed_react.clustered_heads import ClusteredHeadStrategy, Fitted
from fedproto_app.strategies.fed_react.learner import HEAD
from fedproto_app.strategies.fed_react.smoothing import (
    ForgettingMean,
    HeadSmoother,
    KalmanSmoothing,
    NoSmoothing,
    RunningMean,
)
from fedproto_app.tasks.sequences.task import SequenceTask

# AFFECT, adaptive evolutionary clustering, as Fed-REACT uses it: Xu, Kliger, Hero 2014, "Adaptive
# evolutionary clustering", Data Mining and Knowledge Discovery 28. See Fed-REACT, section 2 and
# Fed-REACT, appendix C. Shapes: N clients, C clusters. W, the similarity of this round, and ψ, its
# estimate, are [N, N] float32, and W is symmetric.

Table = NDArray[np.float64]

ROWS = 64  # at a time: the float64 values of 10,000 clients then fit in the processor's cache
BLENDED_ROWS = 8  # at a time, few enough to reuse memory. No sum depends on this number


class BlockStatistics(NamedTuple):
    """Mean and variance of W in each block of two clusters (Fed-REACT, eqs. 28 to 30).

    mean, variance: [C, C]. Within a cluster they leave out the diagonal, and are 0 for a cluster of
    one client, which has no other entry. diagonal_mean, diagonal_variance: [C], means over the
    cluster's clients. The divisor is the cluster's size, where Fed-REACT, eq. 29 prints C.
    """

    mean: Table
    variance: Table
    diagonal_mean: Table
    diagonal_variance: Table


class Affect(NamedTuple):
    """labels: [N], the clusters of psi. alpha: α_t, in [0, 1]. psi: [N, N], the estimate ψ̂_t."""

    labels: Labels
    alpha: float
    psi: Matrix


def affect(
    past: Matrix | None,
    current: Matrix,
    clusters: int,
    iterations: int = 5,
    start: Labels | None = None,
    unbiased: bool = False,
) -> Affect:
    """Return α_t, ψ̂_t and the clusters of ψ̂_t after AFFECT's iterations (Fed-REACT, Algorithm 4).

    past: ψ̂_{t−1}, or None in the first round, where α = 0 and ψ̂ = W. It is NaN for two clients
    without a common past, whose ψ̂ is then W. current: W_t. clusters: C, or 0 to choose it by
    silhouette. start: the first clusters, [N] labels 0, 1, … without a gap. By default these are
    the clusters of W alone (α = 0). Each iteration estimates α from the last clusters and then
    clusters the new ψ̂, so the three results belong together. Iteration stops when the clusters
    repeat. unbiased: use the sample variance, as does the toolbox of AFFECT's authors, which also
    starts from the last round's clusters. The result's psi may be `current` itself.
    """
    alpha, psi = 0.0, current
    if past is None:
        return Affect(find_clusters(psi, clusters), alpha, psi)
    blended = np.empty_like(current)  # reused in each iteration
    labels = find_clusters(psi, clusters) if start is None else start
    for _ in range(iterations):
        alpha = forgetting_factor(past, current, labels, unbiased)
        psi = blend(past, current, alpha, blended)
        before, labels = labels, find_clusters(psi, clusters)
        if np.array_equal(before, labels):
            break
    return Affect(labels, alpha, psi)


def remember(past: Matrix | None, current: Matrix, clusters: int, share: float | Matrix) -> Affect:
    """Return ψ̂_t for a given share of the past (Fed-REACT, eq. 3), and its clusters.

    past, current, clusters: as in `affect`. share: α_t, as one number or a value for each pair of
    clients, [N, N]. The result's alpha is the largest share, which the clients present longest
    have, or 0 without a past.
    """
    if past is None:
        return Affect(find_clusters(current, clusters), 0.0, current)
    psi = blend(past, current, share)
    return Affect(find_clusters(psi, clusters), float(np.max(share)), psi)


def forgetting_factor(
    past: Matrix, current: Matrix, labels: Labels, unbiased: bool = False
) -> float:
    """Return α_t = Σ Var / Σ [(ψ̂_{t−1} − E)² + Var] over all pairs (Fed-REACT, eq. 27), in [0, 1].

    E and Var are the means and variances of W_t = `current` in its blocks (`block_statistics`).
    Entries where `past` is NaN are part of E and Var but not of the sums. If both sums are 0, so is
    α_t. Then W_t equals its mean and the past, or there is no past, so every α gives the same ψ̂.
    """
    statistics = block_statistics(current, labels, unbiased)
    order = np.argsort(labels, kind="stable")

    def sums(rows: slice) -> tuple[float, float]:
        values = _sorted(past, order, rows)
        has_past = ~np.isnan(values)
        expected = _spread(statistics.mean, statistics.diagonal_mean, labels, order, rows)
        drift = float(np.sum((values - expected) ** 2, where=has_past))
        variance = _spread(statistics.variance, statistics.diagonal_variance, labels, order, rows)
        return drift, float(np.sum(variance, where=has_past))

    noise = drift = 0.0
    for more_drift, more_noise in in_threads(sums, spans(len(past), ROWS)):
        drift, noise = drift + more_drift, noise + more_noise
    return noise / (drift + noise) if noise > 0 else 0.0


def block_statistics(current: Matrix, labels: Labels, unbiased: bool = False) -> BlockStatistics:
    """Return Fed-REACT, eqs. 28 to 30 for W = `current` [N, N] and labels [N] that use 0 … C−1.

    Variances are population variances, or with `unbiased` sample variances, where the mean costs a
    degree of freedom: a block of two clusters with c and d clients has cd − 1, a diagonal c − 1. A
    block within a cluster has c(c−1)/2 distinct entries, each twice, so its sum of squares is
    divided by c(c−1) − 2. A block with a single distinct entry has variance 0.
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    entries = np.outer(sizes, sizes) - np.diag(sizes)
    total = _block_sums(lambda rows: _sorted(current, order, rows), labels[order])
    mean = total / np.maximum(entries, 1)

    diagonal = current.diagonal().astype(np.float64)
    diagonal_mean = np.bincount(labels, diagonal) / sizes
    spent = 1 if unbiased else 0
    free = entries - spent * (1 + np.eye(len(sizes)))
    diagonal_squares = np.bincount(labels, (diagonal - diagonal_mean[labels]) ** 2)
    diagonal_variance = diagonal_squares / np.maximum(sizes - spent, 1)

    def squares(rows: slice) -> Table:
        values = _sorted(current, order, rows)
        return (values - _spread(mean, diagonal_mean, labels, order, rows)) ** 2

    variance = _block_sums(squares, labels[order]) / np.maximum(free, 1)
    return BlockStatistics(mean, variance, diagonal_mean, diagonal_variance)


def blend(
    past: Matrix, current: Matrix, alpha: float | Matrix, room: Matrix | None = None
) -> Matrix:
    """Return ψ̂_t = α·ψ̂_{t−1} + (1 − α)·W_t (Fed-REACT, eqs. 3 and 4), [N, N], or W_t where the
    past is NaN.

    alpha: one number, or a value for each pair of clients, [N, N]. room: memory for the result.
    """
    psi = np.empty_like(current) if room is None else room

    def fill(rows: slice) -> None:
        share = alpha if isinstance(alpha, float) else alpha[rows]
        mixed = share * past[rows] + (1 - share) * current[rows]
        psi[rows] = np.where(np.isnan(past[rows]), current[rows], mixed)

    for _ in in_threads(fill, spans(len(psi), BLENDED_ROWS)):
        pass
    return psi


def _sorted(matrix: Matrix, order: NDArray[np.intp], rows: slice) -> Table:
    """Return some rows of the matrix after sorting rows and columns by `order`, in float64."""
    return matrix[order[rows]][:, order].astype(np.float64)


def _spread(
    table: Table, diagonal: Table, labels: Labels, order: NDArray[np.intp], rows: slice
) -> Table:
    """Expand the values of blocks [C, C] and diagonals [C] to rows [n, N] of the sorted matrix."""
    ordered = labels[order]
    spread = np.repeat(table[ordered[rows]], np.bincount(labels), axis=1)
    positions = np.arange(rows.start, rows.stop)
    spread[positions - rows.start, positions] = diagonal[ordered[rows]]
    return spread


def _block_sums(values_of: Callable[[slice], Table], ordered: Labels) -> Table:
    """Return the sum of each block without the diagonal, [C, C].

    values_of: returns some rows of a matrix in the order of the clusters. The diagonal of these
    rows is then overwritten. ordered: the sorted labels, [N].
    """
    sizes = np.bincount(ordered)
    sums = np.zeros((len(sizes), len(sizes)))

    def of_rows(rows: slice) -> tuple[Labels, Table]:
        values = values_of(rows)
        np.fill_diagonal(values[:, rows.start :], 0)
        by_column = np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=1)  # (n, C)
        present, begins = np.unique(ordered[rows], return_index=True)
        return present, np.add.reduceat(by_column, begins, axis=0)

    for present, more in in_threads(of_rows, spans(len(ordered), ROWS)):
        sums[present] += more
    return sums


_WALKS, _STEPS = 32, 100  # random walks, and the steps of each


def probe_vector(encoder: Arrays, task: SequenceTask) -> NDArray[np.float64]:
    """Return the mean of the vectors that the encoder gives to random walks, [D].

    The server compares heads by their predictions at this vector, so it needs no client's data.
    Random walks resemble real sequences, whose neighbouring steps are similar. Each dimension is
    standardised, as most data are. Raise `FederationError` if the vector is not finite.
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
            "fed-react.similarity = 'predictions': the encoder turns random walks into NaN or "
            "infinite values, so heads cannot be compared"
        )
    mean_vector: NDArray[np.float64] = vector.numpy()
    return mean_vector


Rows = NDArray[np.intp]  # clients' rows, in the order of their first report


class PairMemory:
    """A value for each pair of clients, [N, N], while clients join, leave and return.

    It covers all clients that ever reported. Pairs that were never present together have the value
    `unknown`. The value of a pair does not change while either client is absent.
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
    """Return a new smoother of the kind that ``fed-react.smoothing`` names."""
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
    are kept until the clients return.
    """

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self._keys: list[ClientKey] = []  # in the order of their first report
        self._past = PairMemory(np.nan)  # each pair's ψ̂ of the last round with both clients
        self._together = PairMemory(0)  # the number of these rounds, if ψ̂ is their mean
        self._labels: dict[ClientKey, int] = {}  # of the last round, in the order of _keys
        self._smoothers: dict[int, HeadSmoother] = {}
        self._history = ClusterHistory()
        self._probe: NDArray[np.float64] | None = None  # [D], to compare heads by predictions

    def begin(self, round_: Round) -> None:
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
        """Cluster the connected clients by their latest heads, and return their ψ̂_t and α_t."""
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
        """Return ψ̂_t of these clients and its clusters, and store ψ̂_t for round t + 1.

        observed: W_t of these clients. rows: the clients' places in _keys.
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
            rounds = self._together.select(rows, clients)  # of each pair's common past
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

        A cluster gets a new head if its clients are the same as in the last round. In the final
        round, in a snapshot, and with ``history = "all"``, it always gets one.
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
        self._history.add(round_, self._labels, psi, forgetting)
        round_.figures |= {
            "forgetting_factor": forgetting,
            "clusters": float(len(set(self._labels.values()))),
            "clients_sent_a_head": float(heads_sent),
        }

    def state(self) -> dict[str, AnyArray]:
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

    def restore(self, state: Mapping[str, AnyArray]) -> None:
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

    def findings(self) -> dict[str, dict[str, AnyArray]]:
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
