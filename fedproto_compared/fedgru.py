"""FedGRU (Liu, Yu, Kang, Niyato, Zhang, IEEE IoT Journal 2020).

A client trains the model of its organisation's cluster as in FedAvg. It forecasts with the mean of
some clusters' models. It chooses the clusters whose mean has the lowest error on its validation
samples.

Clients belong to organisations. Constrained k-means assigns organisations to clusters by their
places or profiles. Each cluster's model is the mean of its clients' models, weighted by samples.
This equals averaging within each organisation and then over the organisations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedproto_app.core.clients import ClientKey, key_arrays
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.method import Method, RunSettings
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.core.round import Round, SentModel
from fedproto_app.core.section import Count, CountOrZero, Section, setting
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.clustering import Labels, by_first_appearance
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import DECODER
from fedproto_app.models.gru import gru_parameters, gru_states
from fedproto_app.models.linear import with_prefixes
from fedproto_app.models.model import ENCODER, LinearHeadModel, Model
from fedproto_app.settings import Settings, Training
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution, Phase
from fedproto_app.strategies.common.questions import Answers
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_compared.common.adjacency import communities
from fedproto_compared.common.client_graph import PROFILE, ClientGraph, profile

# A forecaster of GRUs on top of each other, which read a sample's values in the order of time.


class StackedGru(LinearHeadModel):
    """r is the last state of the uppermost GRU, followed by the calendar of the first target.

    It reads the values at the largest distance first and the newest value last. Each GRU reads the
    states of the GRU below.
    """

    def __init__(self, layers: int, hidden: int, layout: WindowLayout) -> None:
        super().__init__(hidden + layout.beside_width, layout.horizon, DECODER)
        self._layers, self._hidden, self._layout = layers, hidden, layout

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        layers = {
            _layer(number): gru_parameters(self._hidden, generator, self._hidden if number else 1)
            for number in range(self._layers)
        }
        return with_prefixes(layers)

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (samples,) = inputs
        blocks = self._layout.blocks(samples)
        states = [torch.cat([blocks.lagged.flatten(-2), blocks.close], dim=2)]
        for number in range(self._layers):
            states = gru_states(parameters, _layer(number), torch.cat(states, dim=2))
        return torch.cat([states[-1], blocks.beside()], dim=2)


def _layer(number: int) -> str:
    return f"{ENCODER}layer-{number}."


# Several models of one form, joined into one model whose forecast is a weighted mean of theirs.

CHOICE = "choice"  # [K, C], each member's weight. This parameter is not drawn here


class Ensemble(Model):
    """C members, equal at the start. Member c's parameters have its number after their prefix.

    A member with weight 0 has no effect, even if it forecasts NaN.
    """

    def __init__(self, member: Model, members: int) -> None:
        self._member, self.members = member, members
        self.representation_dim = members * member.representation_dim

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._for_all(self._member.encoder_parameters(generator))

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._for_all(self._member.head_parameters(generator))

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        numbers = range(self.members)
        representations = [
            self._member.encode(member(parameters, number), *inputs) for number in numbers
        ]
        return torch.cat(representations, dim=2)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        parts = representation.chunk(self.members, dim=2)
        weights = parameters[CHOICE].T[:, :, None, None]  # (C, K, 1, 1)
        total = torch.zeros(())
        for number, (part, weight) in enumerate(zip(parts, weights, strict=True)):
            forecast = self._member.predict(member(parameters, number), part)
            total = total.to(forecast.device) + torch.where(weight == 0, 0.0, weight * forecast)
        return total

    def _for_all(self, drawn: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            of_member(name, number): value.clone()
            for number in range(self.members)
            for name, value in drawn.items()
        }


def of_member(name: str, number: int) -> str:
    """Return the name that one member's parameter has in the ensemble."""
    prefix, _, suffix = name.partition(".")
    return f"{prefix}.{number}.{suffix}"


def name_alone(name: str) -> str:
    """Return the name that a parameter of the first member has in a single model."""
    return name.replace(".0.", ".", 1)


def member(parameters: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """Return the parameters of one member, under the names of a single model."""
    starts = tuple(f"{prefix}{number}." for prefix in (ENCODER, DECODER))
    return {
        name.replace(f".{number}.", ".", 1): value
        for name, value in parameters.items()
        if name.startswith(starts)
    }


# k-means whose clusters have a smallest size (Bradley, Bennett and Demiriz, MSR-TR-2000-65).
#
# Assigning points to fixed centres is a transport problem. Each cluster has as many places as its
# smallest size. Points that get no such place go to their nearest centre.

Points = NDArray[np.float64]

STARTS, MOST_STEPS = 10, 100


def constrained_kmeans(
    points: Points, clusters: int, smallest: int, rng: np.random.Generator
) -> Labels:
    """Return the cluster of each point, numbered by first appearance: [n, k] → [n].

    The result comes from the run, among `STARTS`, with the least sum of squared distances. Raise
    ValueError if there are fewer points than clusters × smallest.
    """
    if len(points) < clusters * smallest:
        raise ValueError(f"{len(points)} points for {clusters} clusters of {smallest}")
    runs = [_run(points, clusters, smallest, rng) for _ in range(STARTS)]
    labels, _ = min(runs, key=lambda run: run[1])
    return by_first_appearance(labels)


def _run(
    points: Points, clusters: int, smallest: int, rng: np.random.Generator
) -> tuple[Labels, float]:
    centres = points[rng.choice(len(points), clusters, replace=False)]
    labels, cost = _assigned(points, centres, smallest)
    for _ in range(MOST_STEPS):
        centres = np.stack([points[labels == label].mean(axis=0) for label in range(clusters)])
        moved, less = _assigned(points, centres, smallest)
        if less >= cost:
            break
        labels, cost = moved, less
    return labels, cost


def _assigned(points: Points, centres: Points, smallest: int) -> tuple[Labels, float]:
    """Return each point's cluster, and the least sum of squares that the sizes allow."""
    squared = ((points[:, None] - centres) ** 2).sum(axis=2)
    nearest = squared.argmin(axis=1)
    owner = np.repeat(np.arange(len(centres)), smallest)
    free = len(points) - len(owner)
    costs = np.concatenate(
        [squared[:, owner], np.tile(squared.min(axis=1)[:, None], (1, free))], axis=1
    )
    rows, places = linear_sum_assignment(costs)  # rows are 0 … n − 1
    in_place = places < len(owner)
    labels = nearest.astype(np.int64)
    labels[in_place] = owner[places[in_place]]
    return labels, float(costs[rows, places].sum())


class FedGruSettings(Section):
    """``[fedgru]``: organisations of several clients, and models of clusters of organisations."""

    layers: Count = setting(2, "number of stacked GRUs")
    hidden: Count = setting(50, "width of each GRU")
    organisations: CountOrZero = setting(
        10, "groups of clients with neighbouring names (0: the communities of the graph)"
    )
    clusters: Annotated[int, Field(ge=1, le=4)] = setting(
        2,
        "clusters of organisations that are close in the graph. Each has a model (C)",
    )
    smallest: Count = setting(1, "smallest number of organisations in a cluster")

    @model_validator(mode="after")
    def _organisations_fill_the_clusters(self) -> FedGruSettings:
        if 0 < self.organisations < self.clusters * self.smallest:
            raise ValueError(
                f"fedgru.organisations = {self.organisations}: fewer than fedgru.clusters = "
                f"{self.clusters} × fedgru.smallest = {self.smallest}"
            )
        return self


class FedGruLearner(Answers, SoloLearner):
    """With one cluster this is FedAvg's learner.

    With several, each client sends its cluster's model, which nodes cannot average. The server
    sends the number of each client's cluster under the client's name.
    """

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
        # Each client sends the model of its cluster, under the names of a single model.
        parameters = {
            name_alone(n): s for n, s in sizes.parameters.items() if n.split(".")[1] == "0"
        }
        cluster_model = model(sizes.encoder, sizes.head, arrays=parameters, combine="each", clip="")
        return [cluster_model, profile]

    def initial_parameters(self) -> dict[str, Tensor]:
        model = self.task.initial_parameters()
        if self._alone:
            return model
        return {**model, CHOICE: torch.full((self._clusters,), 1 / self._clusters)}

    def phases(self) -> list[Phase]:
        return [Phase("local", self.shared, self.training.local_epochs)]

    def context(self, guidance: Guidance, cohort: Cohort) -> Context:
        """Select each client's cluster model for training."""
        if not self._alone:
            choice = cohort.parameters[CHOICE]
            choice.zero_()
            for row, name in enumerate(cohort.names):
                choice[row, int(guidance.options[name])] = 1.0
        return Context()

    def contribution(self, cohort: Cohort, context: Context) -> Contribution:
        """Send each client's cluster model, under the names of a single model."""
        if self._alone:
            return Contribution()
        chosen = cohort.parameters[CHOICE].argmax(dim=1).tolist()
        members = [member(cohort.parameters, cluster) for cluster in range(self._clusters)]
        cluster_models = {
            name: torch.stack([members[cluster][name][row] for row, cluster in enumerate(chosen)])
            for name in members[0]
        }
        return Contribution(model=cluster_models)

    def answer(self, cohort: Cohort, guidance: Guidance) -> Contribution:
        return profile(cohort, self.task)

    def receive(self, cohort: Cohort, guidance: Guidance) -> list[int]:
        """Choose, for each client, the mean of models that has the least validation error."""
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
    """Return the weights [C] of every mean of one or more of C models, fewest models first."""
    weights_of_means = []
    for size in range(1, clusters + 1):
        for chosen in combinations(range(clusters), size):
            weights = torch.zeros(clusters)
            weights[list(chosen)] = 1 / size
            weights_of_means.append(weights)
    return weights_of_means


class FedGruStrategy(FedAvgStrategy):
    """FedAvg for each cluster. State: the state of the graph."""

    section: FedGruSettings

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self._uses_graph = self.section.clusters > 1 or self.section.organisations == 0
        self._graph = ClientGraph(settings, federation) if self._uses_graph else None
        self.saved = [self._graph] if self._graph is not None else []
        self._cluster_of: dict[ClientKey, int] = {}

    def begin(self, round_: Round) -> None:
        if self._graph is not None:
            self._graph.complete(round_)
        clients, organisations, clusters = self._groups()
        self._cluster_of = dict(zip(clients, clusters.tolist(), strict=True))
        figures = {"organisations": organisations, "clusters": clusters}
        round_.figures |= {n: float(len(set(labels.tolist()))) for n, labels in figures.items()}

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Send the number of each client's cluster if there are several."""
        if self.section.clusters == 1:
            return Guidance()
        return Guidance(options={key.client: float(self._cluster_of[key]) for key in clients})

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        return Guidance()

    def average(self, models: Sequence[SentModel], round_: Round) -> Arrays | None:
        """Average each cluster's models. A cluster without new models keeps its model."""
        if self.section.clusters == 1:
            return super().average(models, round_)
        merged = dict(self.model)
        for cluster in range(self.section.clusters):
            cluster_models = [
                sent_model for sent_model in models if self._cluster_of[sent_model.key] == cluster
            ]
            mean = self.averaging.model(
                [(sent_model.arrays, sent_model.samples) for sent_model in cluster_models],
                self.model,
            )
            if mean is not None:
                merged |= {of_member(name, cluster): array for name, array in mean.items()}
        return merged

    def _groups(self) -> tuple[list[ClientKey], Labels, Labels]:
        """Return all clients that ever connected, and the organisation and cluster of each.

        Both depend only on these clients, so they are the same after a resumption. Clients without
        a place or profile have no part in the clustering. An organisation of only such clients is
        in cluster 0.
        """
        clients = sorted(self.federation.members.facts)
        organisations = self._organisations(clients)
        clusters, smallest = self.section.clusters, self.section.smallest
        cluster_numbers = np.zeros(len(clients), np.int64)
        if clusters == 1 or self._graph is None:
            return clients, organisations, cluster_numbers
        places = self._graph.places(clients)
        has_place = np.isfinite(places).all(axis=1)
        placed = sorted(set(organisations[has_place].tolist()))
        if len(placed) >= clusters * smallest:
            members = [organisations == organisation for organisation in placed]
            centres = np.stack([places[has_place & member].mean(axis=0) for member in members])
            draws = numpy_stream(self.settings.seed, "clusters of organisations")
            labels = constrained_kmeans(centres, clusters, smallest, draws)
            for member, label in zip(members, labels.tolist(), strict=True):
                cluster_numbers[member] = label
        return clients, organisations, cluster_numbers

    def _organisations(self, clients: list[ClientKey]) -> Labels:
        """Return each client's organisation: equal groups of names, or the graph's communities."""
        number = self.section.organisations
        if number == 0:
            assert self._graph is not None
            return communities(self._graph.adjacency(clients), self.settings.seed)
        parts = np.array_split(np.arange(len(clients)), min(number, max(1, len(clients))))
        return np.repeat(np.arange(len(parts)), [len(part) for part in parts])

    def findings(self) -> dict[str, dict[str, AnyArray]]:
        """``organisations``: the numbers of each client's organisation and cluster."""
        clients, organisations, clusters = self._groups()
        labels = {"organisation": organisations, "cluster": clusters}
        return {"organisations": {**key_arrays(clients), **labels}}


def gru_of_clusters(settings: Settings, layout: WindowLayout) -> Model:
    """Return the model of one cluster, or an ensemble of several clusters' models."""
    section = settings.method_table(FedGruSettings)
    alone = StackedGru(section.layers, section.hidden, layout)
    return alone if section.clusters == 1 else Ensemble(alone, section.clusters)


def organisations_have_places(settings: RunSettings) -> None:
    """Raise `SettingsError` if the graph gives no distances between organisations."""
    if settings.method_table(FedGruSettings).clusters > 1 and settings.graph.source == "file":
        raise SettingsError(
            "graph.source = 'file': edge weights give no places by which organisations could be "
            "clustered; set 'profiles', 'positions' or fedgru.clusters = 1"
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
