"""FedDA (Zhang, Dang, Shihada, Alouini, INFOCOM 2021), server half.

Before the first training the server asks for everyone's weekly statistics. By them, and by places
where it knows them, clients fall into clusters; on them it trains the quasi-global model, with
which the rounds begin. In a round the clients' models become one for each cluster by dual
attention, and the clusters' models one for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Arrays
from fedproto_app.core.round import Guidance, Round, SentModel
from fedproto_app.core.sends import Expected
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import Ask
from fedproto_app.strategies.compared.fedda import FedDaSettings
from fedproto_app.strategies.compared.fedda.learner import STATISTICS, WEEKS
from fedproto_app.strategies.compared.fedda.strategy import attended, quasi_global_model
from fedproto_app.strategies.compared.fedda.traffic_clusters import TrafficClusters
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.trust.outliers import largest

_QUASI, _CLUSTER = "quasi-global.", "cluster-"  # of the state's names

Models = dict[ClientKey, Arrays]


class FedDaStrategy(FedAvgStrategy):
    """State: the clusters, the quasi-global model, and each cluster's last one."""

    section: FedDaSettings

    def __init__(self, settings: Settings, section: FedDaSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        # Of all cores, threads would mostly wait for each other: the tensors are small.
        torch.set_num_threads(settings.threads)
        self._clusters = TrafficClusters(settings, section, federation)
        self._quasi: Arrays = {}
        self._of_cluster: dict[int, Arrays] = {}

    def eligible(self, clients: list[ClientKey]) -> list[ClientKey]:
        """Those whose cluster is known."""
        return [key for key in clients if key in self._clusters.label_of]

    def average(self, models: Sequence[SentModel], round_: Round) -> Arrays:
        """Also where nobody's model came: then the one that was sent stays."""
        near = self._near(models, round_)
        return self._attended(near) if near else self.model

    def state(self) -> dict[str, NDArray[Any]]:
        if not self._quasi:
            return {}
        named = {_QUASI + name: value for name, value in self._quasi.items()}
        for label, model in self._of_cluster.items():
            named |= {f"{_CLUSTER}{label}.{name}": value for name, value in model.items()}
        return {**self._clusters.state(), **named}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._clusters.restore(state)
        self._quasi = _named(state, _QUASI)
        prefixes = {label: f"{_CLUSTER}{label}." for label in self._clusters.label_of.values()}
        found = {label: _named(state, prefix) for label, prefix in prefixes.items()}
        self._of_cluster = {label: model for label, model in found.items() if model}

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """``traffic-clusters``: names, nodes, and the cluster of each."""
        return {"traffic-clusters": self._clusters.members()} if self._quasi else {}

    def begin(self, round_: Round, ask: Ask) -> None:
        """Ask those that are there for the statistics that they have not sent yet; the first ones
        make the clusters and the quasi-global model, and their rounds begin with it."""
        clusters = self._clusters
        missing, question = clusters.askable(round_), {WEEKS: float(clusters.weeks)}
        shape = (clusters.weeks, self.settings.data.period)
        replies = ask(
            missing,
            lambda keys: Guidance(options=question),
            Expected(per_client={STATISTICS: shape}),
            once=True,
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
        """Without those that are far farther from the model sent than the others: attention would
        be theirs alone."""
        arrays = {sent.key: sent.arrays for sent in models}
        distances = {key: _distance(model, self.model) for key, model in arrays.items()}
        reason = "its model is not used: its distance from the one sent is"
        beyond = largest(distances, reason)
        round_.refused |= beyond
        return {key: arrays[key] for key in sorted(arrays) if key not in beyond}

    def _attended(self, models: Models) -> Arrays:
        """Dual attention within the clusters, then between them."""
        quasi = _tensors(self._quasi)
        by_label: dict[int, list[Arrays]] = {}
        for key, model in models.items():
            by_label.setdefault(self._clusters.label_of[key], []).append(model)
        made = {}
        for label, members in sorted(by_label.items()):
            anchor = _tensors(self._of_cluster.get(label, self._quasi))
            made[label] = self._step(members, anchor, quasi)
        if self.section.cluster_anchor == "last":
            self._of_cluster |= made
        return self._step(list(made.values()), _tensors(self.model), quasi)

    def _step(
        self, models: list[Arrays], anchor: dict[str, Tensor], quasi: dict[str, Tensor]
    ) -> Arrays:
        stacked = {
            name: torch.from_numpy(np.stack([one[name] for one in models])) for name in quasi
        }
        section = self.section
        made = attended(stacked, anchor, quasi, section.attention_step, section.quasi_global_pull)
        return {name: value.numpy() for name, value in made.items()}


def _tensors(model: Arrays) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in model.items()}


def _named(state: Mapping[str, NDArray[Any]], prefix: str) -> Arrays:
    return {n.removeprefix(prefix): value for n, value in state.items() if n.startswith(prefix)}


def _distance(model: Arrays, other: Arrays) -> float:
    """Of two models, all tensors together."""
    squares = [
        float(np.square(value.astype(np.float64) - other[name]).sum())
        for name, value in model.items()
    ]
    return float(np.sqrt(sum(squares)))
