"""CNFGNN (Meng, Rambhatla, Liu, KDD 2021), client half: FedAvg of a forecaster that is given g.

g is what the server's graph network makes of all clients' encodings h of the same time. A client
trains with g fixed. Between training and evaluation the server asks it twice: for h of its samples,
and for ∂L/∂g, when it has been told g.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.messages import Order
from fedproto_app.core.metrics import Metric
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.data.windows import window_positions
from fedproto_app.maths.losses import prediction_loss
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.graph_forecaster import (
    GraphForecaster,
    GuidedForecaster,
    Seq2SeqForecaster,
)
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Context, Contribution
from fedproto_app.strategies.common.profile import PROFILE, profile
from fedproto_app.strategies.compared.cnfgnn import CnfgnnSettings
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.forecasting.samples import CohortSamples
from fedproto_app.tasks.forecasting.task import EVALUATED_AT_ONCE, ForecastingTask

# Down: g of the guided clients [n, T, d_g]. Up: h [K, T, d_h], or ∂L/∂g [K, T, d_g].
GRAPH, ENCODINGS, GRADIENT = "graph", "encodings", "gradient"
# Which T time steps these are of: so many from a position of the source's clock on, or those that
# an array names, [T] counted from that position.
FIRST, COUNT, STEPS = "first", "count", "steps"


class CnfgnnLearner(SoloLearner):
    """The supervised loss of a model that comes from the server; its mean is unweighted."""

    @classmethod
    def sends(cls, section: Any, sizes: Sizes) -> Sequence[Sends]:
        return [
            # By prefix, as g comes beside the model.
            model(sizes.encoder, sizes.head, weight="clients", clip=""),
            # One for each time step that the question names, so the strategy knows their shapes.
            Sends(
                "encodings",
                {ENCODINGS: ()},
                when="question",
                reveals="its values, to who has the encoder",
            ),
            Sends("gradients", {GRADIENT: ()}, when="question", reveals="its errors"),
            Sends("profile", {PROFILE: (sizes.period,)}, when="question", reveals="its mean day"),
        ]

    @property
    def model(self) -> GraphForecaster:
        """What encodes, and forecasts with g."""
        model = self.task.model
        assert isinstance(model, GraphForecaster)
        return model

    def context(self, order: Order, cohort: Cohort) -> Context:
        cohort.samples = self._with_graph(cohort.samples, order)
        return Context()

    def evaluate(self, cohort: Cohort, order: Order) -> dict[Metric, list[float]]:
        return self.task.evaluate(cohort.parameters, self._with_graph(cohort.samples, order))

    def answer(self, cohort: Cohort, order: Order) -> Contribution:
        if PROFILE in order.options:
            assert isinstance(self.task, ForecastingTask)
            return profile(cohort, self.task)
        chosen = _Chosen(cohort.samples, _positions(order))
        if GRAPH not in order.arrays:
            return Contribution({ENCODINGS: self._encodings(cohort, chosen).cpu().numpy()})
        return Contribution({GRADIENT: self._gradient(cohort, chosen, order).cpu().numpy()})

    @torch.no_grad()
    def _encodings(self, cohort: Cohort, chosen: _Chosen) -> Tensor:
        """h [K, T, d_h], 0 where a client has no sample."""
        samples = cohort.samples
        made = []
        for part in torch.split(chosen.places, EVALUATED_AT_ONCE, dim=1):
            inputs = _taken(samples.inputs, part)
            none = inputs.new_zeros(*part.shape, self.model.graph_width)
            guided = self.model.guided(inputs, self._phases(samples, part), none)
            made.append(self.model.encoding(cohort.parameters, guided))
        return torch.cat(made, dim=1) * chosen.there.unsqueeze(2)

    def _gradient(self, cohort: Cohort, chosen: _Chosen, order: Order) -> Tensor:
        """∂L/∂g [K, T, d_g] of each client's mean squared error over its train targets at these
        time steps; 0 where it has none."""
        samples, task = cohort.samples, self.task
        assert isinstance(task, ForecastingTask)
        sent = torch.from_numpy(order.arrays[GRAPH]).to(task.device)
        row_of = {name: row for row, name in enumerate(order.guided)}
        graph = sent[[row_of[name] for name in cohort.names]].requires_grad_()
        inputs = _taken(samples.inputs, chosen.places)
        guided = self.model.guided(inputs, self._phases(samples, chosen.places), graph)
        forecast = self.model.predict(
            cohort.parameters, self.model.encode(cohort.parameters, guided)
        )
        used = _taken(task.train_targets(samples), chosen.places) * chosen.there.unsqueeze(2)
        losses = prediction_loss(forecast, _taken(samples.targets, chosen.places), used)
        # The clients' losses share neither parameters nor g.
        (gradient,) = torch.autograd.grad(losses.sum(), [graph])
        return gradient

    def _with_graph(self, samples: CohortSamples, order: Order) -> CohortSamples:
        """The samples with their phases and with the g that the order brings, else 0."""
        size, length, _ = samples.inputs.shape
        graph = samples.inputs.new_zeros(size, length, self.model.graph_width)
        if GRAPH in order.arrays:
            sent = torch.from_numpy(order.arrays[GRAPH]).to(graph.device)
            chosen = _Chosen(samples, _positions(order))
            row_of = {name: row for row, name in enumerate(order.guided)}
            for row, name in enumerate(samples.names):
                if name in row_of:
                    there = chosen.there[row]
                    graph[row, chosen.places[row][there]] = sent[row_of[name]][there]
        places = torch.arange(length, device=graph.device).expand(size, length)
        guided = self.model.guided(samples.inputs, self._phases(samples, places), graph)
        return replace(samples, inputs=guided)

    def _phases(self, samples: CohortSamples, places: Tensor) -> Tensor:
        """[K, m] of the samples at these places."""
        starts = torch.tensor(samples.starts, device=places.device).unsqueeze(1)
        return ((starts + places) % self.model.layout.period).to(samples.inputs.dtype)


class _Chosen:
    """The samples of a cohort at T time steps: places [K, T], and whether there is one [K, T]."""

    def __init__(self, samples: CohortSamples, positions: Tensor) -> None:
        device = samples.inputs.device
        starts, lengths = (
            torch.tensor(one, device=device).unsqueeze(1)
            for one in (samples.starts, samples.lengths)
        )
        places = positions.to(device) - starts
        self.there = (places >= 0) & (places < lengths)
        self.places = torch.where(self.there, places, 0)


def _positions(order: Order) -> Tensor:
    """[T] int64 on the source's clock."""
    first = int(order.options[FIRST])
    if STEPS in order.arrays:
        return first + torch.from_numpy(order.arrays[STEPS]).long()
    return first + torch.arange(int(order.options[COUNT]))


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """[K, n, …] → [K, T, …], each client's values at its places [K, T]."""
    rows = torch.arange(len(values), device=values.device).unsqueeze(1)
    return values[rows, places]


def graph_forecaster(settings: Settings, layout: WindowLayout) -> GraphForecaster:
    """The clients' model, for windows of this layout."""
    section = settings.method_table(CnfgnnSettings)
    if section.model == "fuels":
        return GuidedForecaster(settings.model.representation_dim, layout, section.hidden)
    places = window_positions(np.array([0]), settings.data)[0].tolist()
    return Seq2SeqForecaster(layout, places, section.hidden)
