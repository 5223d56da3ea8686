"""FedDA (Zhang, Dang, Shihada, Alouini, INFOCOM 2021), server half.

Before the first training the server asks all clients for weekly statistics. It clusters the clients
by their statistics, and also by their places if it has these. It trains the quasi-global model on
the statistics, and the rounds begin with that model. In a round, dual attention merges the clients'
models into one for each cluster, and the clusters' models into one for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from torch import Tensor

from fedproto_app.core.clients import ClientKey, key_arrays, keys_of
from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.round import ClientReply, Round, SentModel, of_group, under
from fedproto_app.core.sends import Expected
from fedproto_app.core.stored import AnyArray
from fedproto_app.data.windows import (
    lookback,
    lookback_text,
    sample_inputs,
    shortest_length,
)
from fedproto_app.maths.clustering import Labels, by_first_appearance
from fedproto_app.maths.steps import length
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.forecasting.task import Batch, ForecastingTask
from fedproto_app.trust.outliers import largest
from fedproto_compared.common.client_graph import ClientGraph
from fedproto_compared.fedda import FedDaSettings
from fedproto_compared.fedda.learner import STATISTICS, WEEKS, weeks_needed

# FedDA's clusters (Zhang et al., INFOCOM 2021) use the clients' measurements and their places.

MOST_TURNS = 20

Points = NDArray[np.float64]


def two_view_clusters(
    patterns: Points, places: Points | None, clusters: int, seed: int = 0
) -> Labels:
    """Run k-means on patterns and places in turn, each starting from the other's clusters.

    It stops when the clusters of the patterns no longer change, or after 20 turns. Without places
    it is k-means of the patterns. Labels [N] are numbered by first appearance. If points are equal,
    there may be fewer than C clusters. patterns: [N, m]. places: [N, 2]. clusters: C ≤ N. seed:
    draws the first centres (k-means++).
    """
    first = KMeans(min(clusters, len(np.unique(patterns, axis=0))), n_init=10, random_state=seed)
    labels = by_first_appearance(first.fit(patterns).labels_.astype(np.int64))
    for _ in range(MOST_TURNS if places is not None else 0):
        assert places is not None
        before = labels
        labels = _k_means(patterns, _k_means(places, labels))
        if (labels == before).all():
            break
    return labels


def centroids(points: Points, labels: Labels) -> Points:
    """Return the mean point of each of the clusters 0 … C−1, [C, m]."""
    return np.stack([points[labels == label].mean(axis=0) for label in range(labels.max() + 1)])


def nearest(points: Points, centres: Points) -> Labels:
    """Return the index of the nearest centre [C, m] for each of the points [N, m]: [N]."""
    distances = ((points[:, None] - centres) ** 2).sum(axis=2)
    labels: Labels = distances.argmin(axis=1)
    return labels


def _k_means(points: Points, start: Labels) -> Labels:
    """Run Lloyd's algorithm from the centroids of these clusters."""
    centres = np.unique(centroids(points, start), axis=0)
    fitted = KMeans(len(centres), init=centres, n_init=1).fit(points)
    return by_first_appearance(fitted.labels_.astype(np.int64))


# Standardised statistics have mean square 1 or 0, and noise adds its variance, apart from chance.
LARGEST_FACTOR = 2.0
MOST_CLUSTERS, CLIENTS_OF_CLUSTER = 16, 4  # unless fedda.clusters sets the number

Statistics = dict[ClientKey, NDArray[np.float32]]  # [W, B] each


class TrafficClusters:
    """State: each client's cluster, and the clusters' mean statistics [C, W·B].

    label_of: the cluster of each client whose statistics were accepted. Raises `SettingsError` if
    the history that clients train on is too short for statistics.
    """

    def __init__(self, settings: Settings, section: FedDaSettings, federation: Federation) -> None:
        self._settings, self._section, self._federation = settings, section, federation
        self._graph = (
            ClientGraph(settings, federation) if settings.graph.source == "positions" else None
        )
        self.label_of: dict[ClientKey, int] = {}
        self._centres: NDArray[np.float64] | None = None
        self._needed = weeks_needed(settings.data)
        history = settings.data.history
        if 0 < history < section.week * self._needed:
            raise SettingsError(f"data.history = {history}: {self._what_it_needs()}")

    @property
    def weeks(self) -> int:
        """W, the number of weeks that all clients had at the beginning."""
        if self._centres is not None:
            return int(self._centres.shape[1]) // self._settings.data.period
        facts = self._federation.members.facts
        weeks_of_clients = [
            self._weeks(facts[key].samples) for key in self._federation.members.clients()
        ]
        return min(
            (weeks for weeks in weeks_of_clients if weeks >= self._needed), default=self._needed
        )

    def askable(self, round_: Round) -> list[ClientKey]:
        """Return the connected clients without accepted statistics whose history is long enough.

        A client with a shorter history is refused, with the length needed.
        """
        weeks, able = self.weeks, []
        for key in self._federation.members.clients():
            samples = round_.facts[key].samples
            if key in self.label_of:
                continue
            if self._weeks(samples) >= weeks:
                able.append(key)
            else:
                periods = samples // self._settings.data.period
                reason = f"it trains on {periods} periods; {self._what_it_needs(weeks)}"
                round_.refused[key] = reason
        return able

    def why_nobody(self) -> str:
        """Return why no client's statistics can be used."""
        return f"no client has statistics that can be used; {self._what_it_needs()}"

    def standardised(self, replies: Sequence[ClientReply], round_: Round) -> Statistics:
        """Return the statistics in these replies. Clients with unstandardised ones are refused."""
        limit = LARGEST_FACTOR * (1 + self._section.statistics_noise**2)
        usable: Statistics = {}
        for reply in replies:
            statistics = reply.arrays[STATISTICS]
            if (size := float(np.square(statistics.astype(np.float64)).mean())) > limit:
                reason = f"its statistics have mean square {size:.3g}, more than {limit:g}"
                round_.refused[reply.key] = reason
            else:
                usable[reply.key] = statistics
        return usable

    def begin(self, statistics: Statistics) -> None:
        """Cluster these clients."""
        keys = sorted(statistics)
        patterns = _flat(statistics, keys)
        clusters = self._section.clusters or min(
            MOST_CLUSTERS, max(1, len(keys) // CLIENTS_OF_CLUSTER)
        )
        places = None if self._graph is None else self._graph.places(keys)
        if places is not None and not np.isfinite(places).all():
            places = None  # a client has no place, so statistics are used alone
        labels = two_view_clusters(patterns, places, min(clusters, len(keys)), self._settings.seed)
        self._centres = centroids(patterns, labels)
        self.label_of = dict(zip(keys, labels.tolist(), strict=True))

    def join(self, statistics: Statistics) -> None:
        """Assign later clients to the cluster with the nearest mean statistics."""
        assert self._centres is not None
        keys = sorted(statistics)
        if keys:
            labels = nearest(_flat(statistics, keys), self._centres)
            self.label_of |= dict(zip(keys, labels.tolist(), strict=True))

    def members(self) -> dict[str, AnyArray]:
        """Return names, nodes and clusters, rows in the same order."""
        keys = sorted(self.label_of)
        return {**key_arrays(keys), "clusters": np.array([self.label_of[key] for key in keys])}

    def state(self) -> dict[str, AnyArray]:
        assert self._centres is not None
        return {**self.members(), "centres": self._centres}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        if state:
            labels = state["clusters"].tolist()
            self.label_of = dict(zip(keys_of(state), labels, strict=True))
            self._centres = state["centres"]

    def _weeks(self, samples: int) -> int:
        return samples // (self._section.week * self._settings.data.period)

    def _what_it_needs(self, weeks: int | None = None) -> str:
        data, weeks = self._settings.data, weeks or self._needed
        periods = self._section.week * weeks
        return (
            f"method = 'fedda' needs {periods} periods to train on, which a series of "
            f"{shortest_length(data, periods)} steps has: {weeks} weeks of fedda.week = "
            f"{self._section.week} periods, for {lookback_text(data)}"
        )


def _flat(statistics: Statistics, keys: list[ClientKey]) -> NDArray[np.float64]:
    """Return the clients' statistics as rows, [N, W·B]."""
    return np.stack([statistics[key].ravel() for key in keys]).astype(np.float64)


# FedDA's dual attention (Zhang, Dang, Shihada, Alouini, INFOCOM 2021): the next server model.
#
# Tensor by tensor, the model moves towards the received models, most towards the farthest of them.
# It also moves towards the quasi-global model, most in the tensors that are farthest from it.


def attended(
    models: Mapping[str, Tensor],
    anchor: Mapping[str, Tensor],
    quasi_global: Mapping[str, Tensor],
    step: float,
    pull: float,
) -> dict[str, Tensor]:
    """Take one step of dual attention from the anchor, for each tensor k:
        w_k − ε·( Σ_i α_ik·(w_k − w_i,k) + ρ·ω_k·(w_k − q_k) )
    with α_k = softmax over i of ‖w_k − w_i,k‖ and ω = softmax over k of ‖w_k − q_k‖.

    models: [n, …] each, w_i. anchor: w. quasi_global: q. step: ε. pull: ρ.
    """
    far = torch.stack([(anchor[name] - quasi_global[name]).norm() for name in anchor])
    stepped = {}
    for (name, start), share in zip(anchor.items(), far.softmax(dim=0), strict=True):
        apart = start - models[name]  # (n, …)
        attention = apart.flatten(start_dim=1).norm(dim=1).softmax(dim=0)  # (n,)
        toward = torch.tensordot(attention, apart, dims=1)
        stepped[name] = start - step * (toward + pull * share * (start - quasi_global[name]))
    return stepped


# FedDA's quasi-global model: the server trains it on its clients' statistics before round 1.


def quasi_global_model(
    task: ForecastingTask, start: Arrays, statistics: NDArray[np.float32], section: FedDaSettings
) -> tuple[Arrays, float]:
    """Return the model trained by Adam on windows of the statistics, and the last epoch's loss.

    statistics: [N, W, B], for each client a series of W periods whose first value has phase 0.
    start: the model before training, without the client axis. The learning rate falls to a tenth
    after half of the epochs and again after three quarters.
    """
    seed = task.settings.seed
    inputs, targets = _windows(statistics, task.settings.data)
    drawn = torch.randperm(len(inputs), generator=torch_stream(seed, "fedda", "share"))
    chosen = drawn[: max(1, int(section.warm_up_share * len(inputs)))]
    inputs, targets = inputs[chosen], targets[chosen]

    parameters = {name: torch.tensor(value[None]).requires_grad_() for name, value in start.items()}
    optimizer = torch.optim.Adam(parameters.values(), lr=section.warm_up_rate)
    epochs, loss = section.warm_up_epochs, 0.0
    falls = [max(1, epochs // 2), max(1, epochs * 3 // 4)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, falls)
    for epoch in range(epochs):
        order = torch.randperm(len(inputs), generator=torch_stream(seed, "fedda", "order", epoch))
        losses = []
        for rows in torch.split(order, section.warm_up_batch_size):
            batch = _batch(inputs[rows], targets[rows])
            optimizer.zero_grad()
            error = _loss(task, parameters, batch)
            error.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(error.item())
        schedule.step()
        loss = float(np.mean(losses))
    return {name: value.detach()[0].numpy() for name, value in parameters.items()}, loss


def _loss(task: ForecastingTask, parameters: dict[str, Tensor], batch: Batch) -> Tensor:
    prediction = task.predict(parameters, task.represent(parameters, batch), batch)
    return task.loss(prediction, batch).sum()


def _windows(statistics: NDArray[np.float32], settings: DataSettings) -> tuple[Tensor, Tensor]:
    """Return samples [n, …] and targets [n, H] from all clients' statistics.

    Where models see the day of the week, they see the number of the week instead.
    """
    series = statistics.reshape(len(statistics), -1)
    firsts = np.arange(lookback(settings), series.shape[1] - settings.horizon + 1)
    targets = series[:, firsts[:, None] + np.arange(settings.horizon)]
    inputs = sample_inputs(series, firsts, firsts, settings)
    flat = (torch.from_numpy(array.reshape(-1, array.shape[2])) for array in (inputs, targets))
    return next(flat), next(flat)


def _batch(inputs: Tensor, targets: Tensor) -> Batch:
    """Return a batch of one client."""
    present = torch.ones_like(targets)
    return Batch(inputs[None], None, targets[None], present[None], torch.zeros(1))


_QUASI = "quasi-global"  # a group of the state's arrays

Models = dict[ClientKey, Arrays]


class FedDaStrategy(FedAvgStrategy):
    """State: the clusters, the quasi-global model, and each cluster's last model."""

    section: FedDaSettings

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self._clusters = TrafficClusters(settings, self.section, federation)
        self._quasi: Arrays = {}
        self._of_cluster: dict[int, Arrays] = {}

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """Return the clients that have a cluster."""
        return [key for key in clients if key in self._clusters.label_of]

    def average(self, models: Sequence[SentModel], round_: Round) -> Arrays:
        """Merge the models by dual attention. If there are none, the shared model stays."""
        near = self._near(models, round_)
        return self._attended(near) if near else self.model

    def state(self) -> dict[str, AnyArray]:
        if not self._quasi:
            return {}
        arrays = under(_QUASI, self._quasi)
        for label, model in self._of_cluster.items():
            arrays |= under(_cluster(label), model)
        return {**self._clusters.state(), **arrays}

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        self._clusters.restore(state)
        self._quasi = of_group(state, _QUASI)
        labels = set(self._clusters.label_of.values())
        models = {label: of_group(state, _cluster(label)) for label in labels}
        self._of_cluster = {label: model for label, model in models.items() if model}

    def findings(self) -> dict[str, dict[str, AnyArray]]:
        """``traffic-clusters``: names, nodes, and the cluster of each."""
        return {"traffic-clusters": self._clusters.members()} if self._quasi else {}

    def begin(self, round_: Round) -> None:
        """Ask the connected clients for statistics that they have not sent yet.

        The first statistics give the clusters and the quasi-global model. Training begins with
        that model.
        """
        clusters = self._clusters
        missing, question = clusters.askable(round_), {WEEKS: float(clusters.weeks)}
        shape = (clusters.weeks, self.settings.data.period)
        ask = self.federation.asking(round_.number)
        replies = ask(
            missing,
            lambda keys: Guidance(options=question),
            Expected(per_client={STATISTICS: shape}),
            once_per_run=True,
        )
        usable = clusters.standardised(replies, round_)
        if self._quasi:
            clusters.join(usable)
            return
        if not usable:
            raise FederationError(clusters.why_nobody())
        clusters.begin(usable)
        task = self.learner.task
        assert isinstance(task, ForecastingTask)
        statistics = np.stack([usable[key] for key in sorted(usable)])
        self._quasi, loss = quasi_global_model(task, self.model, statistics, self.section)
        self.model = self._quasi
        round_.figures |= {
            "statistics_weeks": float(clusters.weeks),
            "traffic_clusters": float(len(set(clusters.label_of.values()))),
            "warm_up_loss": loss,
        }

    def _near(self, models: Sequence[SentModel], round_: Round) -> Models:
        """Return the models, without those much farther from the shared model than the others.

        Attention would move to such models alone.
        """
        arrays = {sent_model.key: sent_model.arrays for sent_model in models}
        distances = {key: length(model, self.model) for key, model in arrays.items()}
        reason = "its model is not used: its distance from the shared model is"
        beyond = largest(distances, reason)
        round_.refused |= beyond
        return {key: arrays[key] for key in sorted(arrays) if key not in beyond}

    def _attended(self, models: Models) -> Arrays:
        """Apply dual attention within the clusters, then between them."""
        quasi = _tensors(self._quasi)
        by_label: dict[int, list[Arrays]] = {}
        for key, model in models.items():
            by_label.setdefault(self._clusters.label_of[key], []).append(model)
        cluster_models = {}
        for label, members in sorted(by_label.items()):
            anchor = _tensors(self._of_cluster.get(label, self._quasi))
            cluster_models[label] = self._step(members, anchor, quasi)
        self._of_cluster |= cluster_models
        return self._step(list(cluster_models.values()), _tensors(self.model), quasi)

    def _step(
        self, models: list[Arrays], anchor: dict[str, Tensor], quasi: dict[str, Tensor]
    ) -> Arrays:
        stacked = {
            name: torch.from_numpy(np.stack([member[name] for member in models])) for name in quasi
        }
        section = self.section
        stepped = attended(
            stacked, anchor, quasi, section.attention_step, section.quasi_global_pull
        )
        return {name: value.numpy() for name, value in stepped.items()}


def _cluster(label: int) -> str:
    return f"cluster-{label}"


def _tensors(model: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in model.items()}
