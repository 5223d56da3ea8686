"""FedGRU (Liu, Yu, Kang, Niyato, Zhang, IEEE IoT Journal 2020).

A client trains the model of its organisation's cluster as in FedAvg. It forecasts with the mean of
those of all clusters' models that have the lowest error together on its validation samples.

Clients belong to organisations, and organisations to clusters, by constrained k-means over their
places or profiles. Each cluster has a model, the mean of its clients' weighted by samples: which is
the mean inside each organisation, and then that over the cluster's organisations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from fedproto_app.core.clients import ClientKey, key_arrays
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Arrays, Order
from fedproto_app.core.method import Method
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.round import Guidance, Received, Round, SentModel
from fedproto_app.core.section import Count, CountOrZero, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.maths.graph import communities
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.model import Model
from fedproto_app.settings import Settings, Training
from fedproto_app.strategies.common.client_graph import ClientGraph
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import Context, Contribution, Phase
from fedproto_app.strategies.common.profile import PROFILE, profile
from fedproto_app.strategies.common.strategy import Ask
from fedproto_app.strategies.compared.fedgru import (
    CHOICE,
    Ensemble,
    StackedGru,
    constrained_kmeans,
    member,
    name_alone,
    of_member,
)
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.forecasting.task import ForecastingTask


class FedGruSettings(Section):
    """``[fedgru]``: organisations of several clients, and models of clusters of organisations."""

    layers: Count = setting(2, "GRUs on top of each other")
    hidden: Count = setting(50, "width of each")
    organisations: CountOrZero = setting(
        10, "groups of clients with neighbouring names; 0: the communities of the graph"
    )
    clusters: Annotated[int, Field(ge=1, le=4)] = setting(
        2, "C, of organisations that are near each other in the graph, with a model each"
    )
    smallest: Count = setting(1, "organisations that a cluster has at least")

    @model_validator(mode="after")
    def _organisations_fill_the_clusters(self) -> FedGruSettings:
        if 0 < self.organisations < self.clusters * self.smallest:
            raise ValueError(
                f"fedgru.organisations = {self.organisations}: fewer than fedgru.clusters = "
                f"{self.clusters} × fedgru.smallest = {self.smallest}"
            )
        return self


class FedGruLearner(SoloLearner):
    """With one cluster FedAvg's; else each client sends its own cluster's model, which nodes cannot
    average, and an order to train brings the number of each client's cluster by its name."""

    section: FedGruSettings
    task: ForecastingTask

    def __init__(self, training: Training, section: FedGruSettings, task: ForecastingTask) -> None:
        super().__init__(training, section, task)
        self._clusters = section.clusters
        self._alone = self._clusters == 1  # FedAvg

    @classmethod
    def sends(cls, section: FedGruSettings, sizes: Sizes) -> Sequence[Sends]:
        profile = Sends(
            "profile", {PROFILE: (sizes.period,)}, when="question", reveals="its mean day"
        )
        if section.clusters == 1:
            return [model(sizes.encoder, sizes.head, clip=""), profile]
        # Each client sends the model of its cluster, under the names of a model alone.
        own = {name_alone(n): s for n, s in sizes.parameters.items() if n.split(".")[1] == "0"}
        every = model(sizes.encoder, sizes.head, arrays=own, combine="each", clip="")
        return [every, profile]

    def initial_parameters(self) -> dict[str, Tensor]:
        model = self.task.initial_parameters()
        if self._alone:
            return model
        return {**model, CHOICE: torch.full((self._clusters,), 1 / self._clusters)}

    def phases(self) -> list[Phase]:
        return [Phase("local", self.shared, self.training.local_epochs)]

    def context(self, order: Order, cohort: Cohort) -> Context:
        """While it trains, a client has its own cluster's model alone."""
        if not self._alone:
            own = cohort.parameters[CHOICE]
            own.zero_()
            for row, name in enumerate(cohort.names):
                own[row, int(order.options[name])] = 1.0
        return Context()

    def model_to_send(self, cohort: Cohort) -> dict[str, Tensor]:
        """Each client's model of its own cluster, under the names of a model alone."""
        if self._alone:
            return super().model_to_send(cohort)
        chosen = cohort.parameters[CHOICE].argmax(dim=1).tolist()
        members = [member(cohort.parameters, one) for one in range(self._clusters)]
        return {
            name: torch.stack([members[one][name][row] for row, one in enumerate(chosen)])
            for name in members[0]
        }

    def answer(self, cohort: Cohort, order: Order) -> Contribution:
        return profile(cohort, self.task)

    def receive(self, cohort: Cohort, order: Order) -> list[int]:
        """Choose among all clusters' models, and the means of several."""
        if self._alone:
            return []
        parameters = dict(cohort.parameters)
        choices = subsets(self._clusters)
        errors = []
        for choice in choices:
            parameters[CHOICE] = choice.to(self.task.device).expand(len(cohort.names), -1)
            errors.append(self.task.validation_error(parameters, cohort.samples))
        best = torch.stack(errors).nan_to_num(nan=torch.inf).argmin(dim=0)
        cohort.parameters[CHOICE].copy_(torch.stack(choices).to(best.device)[best])
        return list(range(len(cohort.names)))


def subsets(clusters: int) -> list[Tensor]:
    """[C] the weights of every mean of one or more of C models, the smallest means first."""
    made = []
    for size in range(1, clusters + 1):
        for some in combinations(range(clusters), size):
            weights = torch.zeros(clusters)
            weights[list(some)] = 1 / size
            made.append(weights)
    return made


Labels = NDArray[np.int64]


class FedGruStrategy(FedAvgStrategy):
    """State: that of the graph. With one cluster it is FedAvg."""

    section: FedGruSettings

    def __init__(self, settings: Settings, section: FedGruSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        self._uses_graph = section.clusters > 1 or section.organisations == 0
        self._graph = ClientGraph(settings, federation) if self._uses_graph else None
        self._cluster_of: dict[ClientKey, int] = {}

    def begin(self, round_: Round, ask: Ask) -> None:
        if self._graph is not None:
            self._graph.complete(round_, ask)
        everyone, organisations, clusters = self._groups()
        self._cluster_of = dict(zip(everyone, clusters.tolist(), strict=True))
        figures = {"organisations": organisations, "clusters": clusters}
        round_.figures |= {n: float(len(set(labels.tolist()))) for n, labels in figures.items()}

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """The number of each client's cluster, where there are several."""
        if self.section.clusters == 1:
            return Guidance()
        return Guidance(options={key.client: float(self._cluster_of[key]) for key in clients})

    def guide_evaluation(
        self, received: Received, clients: Sequence[ClientKey], round_: Round
    ) -> Guidance:
        return Guidance()

    def average(self, models: Sequence[SentModel], round_: Round) -> Arrays | None:
        """The mean of each cluster's models, in place of the cluster's; those of others stay."""
        if self.section.clusters == 1:
            return super().average(models, round_)
        merged = dict(self.model)
        for cluster in range(self.section.clusters):
            own = [one for one in models if self._cluster_of[one.key] == cluster]
            mean = self.averaging.model([(one.arrays, one.samples) for one in own], self.model)
            if mean is not None:
                merged |= {of_member(name, cluster): array for name, array in mean.items()}
        return merged

    def _groups(self) -> tuple[list[ClientKey], Labels, Labels]:
        """All clients that ever came, the organisation of each, and its cluster.

        Both depend on who has come alone, so that they are the same after a resumption. Who brings
        no place or profile does not count; an organisation of such clients is in cluster 0.
        """
        everyone = sorted(self.federation.members.facts)
        organisations = self._organisations(everyone)
        clusters, smallest = self.section.clusters, self.section.smallest
        found = np.zeros(len(everyone), np.int64)
        if clusters == 1 or self._graph is None:
            return everyone, organisations, found
        places = self._graph.places(everyone)
        there = np.isfinite(places).all(axis=1)
        known = sorted(set(organisations[there].tolist()))
        if len(known) >= clusters * smallest:
            members = [organisations == one for one in known]
            centres = np.stack([places[there & some].mean(axis=0) for some in members])
            draws = numpy_stream(self.settings.seed, "clusters of organisations")
            labels = constrained_kmeans(centres, clusters, smallest, draws)
            for some, label in zip(members, labels.tolist(), strict=True):
                found[some] = label
        return everyone, organisations, found

    def _organisations(self, everyone: list[ClientKey]) -> Labels:
        """Of neighbouring names, as even in size as can be, or communities of the graph."""
        wanted = self.section.organisations
        if wanted == 0:
            assert self._graph is not None
            return communities(self._graph.adjacency(everyone), self.settings.seed)
        parts = np.array_split(np.arange(len(everyone)), min(wanted, max(1, len(everyone))))
        return np.repeat(np.arange(len(parts)), [len(part) for part in parts])

    def state(self) -> dict[str, NDArray[Any]]:
        return self._graph.state() if self._graph is not None else {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if self._graph is not None:
            self._graph.restore(state)

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """``organisations``: of each client the numbers of its organisation and of its cluster."""
        everyone, organisations, clusters = self._groups()
        told = {"organisation": organisations, "cluster": clusters}
        return {"organisations": {**key_arrays(everyone), **told}}


def gru_of_clusters(settings: Settings, layout: WindowLayout) -> Model:
    """The model, or those of several clusters together."""
    section = settings.method_table(FedGruSettings)
    alone = StackedGru(section.layers, section.hidden, layout)
    return alone if section.clusters == 1 else Ensemble(alone, section.clusters)


def organisations_have_places(settings: Settings) -> None:
    """Raises `SettingsError` where nothing tells how near organisations are to each other."""
    if settings.method_table(FedGruSettings).clusters > 1 and settings.graph.source == "file":
        raise SettingsError(
            "graph.source = 'file': weights of edges tell no places by which organisations could "
            "be clustered; set 'profiles', 'positions' or fedgru.clusters = 1"
        )


METHOD = Method(
    name="fedgru",
    strategy=FedGruStrategy,
    learner=FedGruLearner,
    settings=FedGruSettings,
    tasks=("forecasting",),
    model=f"{__name__}:gru_of_clusters",
    check=organisations_have_places,
    small={"fedgru.hidden": 8, "fedgru.organisations": 4},
)
