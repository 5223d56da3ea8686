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
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.round import Round, SentModel
from fedproto_app.core.sends import Expected
from fedproto_app.data.windows import lookback, time_numbers, window_positions
from fedproto_app.settings import DataSettings, Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import Ask
from fedproto_app.strategies.compared.fedda import FedDaSettings
from fedproto_app.strategies.compared.fedda.learner import STATISTICS, WEEKS
from fedproto_app.strategies.compared.fedda.traffic_clusters import TrafficClusters
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.tasks.forecasting.samples import Batch
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.trust.outliers import largest

# FedDA's dual attention (Zhang, Dang, Shihada, Alouini, INFOCOM 2021): the next server model.
#
# Tensor by tensor the model moves to the models that came, most to those that are farthest away,
# and to the quasi-global model, most in the tensors that are farthest from it.


def attended(
    models: Mapping[str, Tensor],
    anchor: Mapping[str, Tensor],
    quasi_global: Mapping[str, Tensor],
    step: float,
    pull: float,
) -> dict[str, Tensor]:
    """One step of dual attention from the anchor, tensor k by tensor:
        w_k − ε·( Σ_i α_ik·(w_k − w_i,k) + ρ·ω_k·(w_k − q_k) )
    with α_k = softmax over i of ‖w_k − w_i,k‖ and ω = softmax over k of ‖w_k − q_k‖.

    models: [n, …] each, w_i; anchor: w; quasi_global: q; step: ε; pull: ρ.
    """
    far = torch.stack([(anchor[name] - quasi_global[name]).norm() for name in anchor])
    made = {}
    for (name, start), share in zip(anchor.items(), far.softmax(dim=0), strict=True):
        apart = start - models[name]  # (n, …)
        attention = apart.flatten(start_dim=1).norm(dim=1).softmax(dim=0)  # (n,)
        toward = torch.tensordot(attention, apart, dims=1)
        made[name] = start - step * (toward + pull * share * (start - quasi_global[name]))
    return made


# FedDA's quasi-global model: what the server learns of its clients' statistics, before round 1.


def quasi_global_model(
    task: ForecastingTask, start: Arrays, statistics: NDArray[np.float32], section: FedDaSettings
) -> tuple[Arrays, float]:
    """The model after Adam's epochs on windows of the statistics, and the last epoch's mean loss.

    statistics: [N, W, B], each client's a series of W periods whose first value has phase 0.
    start: the model before, without the client axis. The rate falls to a tenth after half of the
    epochs and again after three quarters.
    """
    seed = task.settings.seed
    inputs, targets = _windows(statistics, task.settings.data)
    drawn = torch.randperm(len(inputs), generator=torch_stream(seed, "fedda", "share"))
    kept = drawn[: max(1, int(section.warm_up_share * len(inputs)))]
    inputs, targets = inputs[kept], targets[kept]

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
    """[n, c + Q·H + j] and [n, H]: samples as of a series, of all clients' statistics together.

    The number of a week stands for that of a day, where models see one.
    """
    series = statistics.reshape(len(statistics), -1)
    firsts = np.arange(lookback(settings), series.shape[1] - settings.horizon + 1)
    values = series[:, window_positions(firsts, settings)]
    times = np.broadcast_to(time_numbers(firsts, settings), (*values.shape[:2], settings.times))
    targets = series[:, firsts[:, None] + np.arange(settings.horizon)]
    inputs = np.concatenate([values, times], axis=2)
    flat = (torch.from_numpy(one.reshape(-1, one.shape[2])) for one in (inputs, targets))
    return next(flat), next(flat)


def _batch(inputs: Tensor, targets: Tensor) -> Batch:
    """Of one client."""
    present = torch.ones_like(targets)
    return Batch(inputs[None], None, targets[None], present[None], torch.zeros(1))


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
