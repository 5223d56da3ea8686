"""CNFGNN (Meng, Rambhatla, Liu, KDD 2021), client half: FedAvg of a forecaster that reads g.

g is the output of the server's graph network for all clients' encodings h of the same time. A
client trains with g fixed. Between training and evaluation the server first asks it for h of its
samples. Then the server sends g and asks for ∂L/∂g.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.data.windows import window_positions
from fedproto_app.maths.losses import prediction_loss
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution
from fedproto_app.strategies.common.questions import Answers
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.forecasting.task import EVALUATED_AT_ONCE, CohortSamples, ForecastingTask
from fedproto_compared.cnfgnn import CnfgnnSettings
from fedproto_compared.cnfgnn.models import (
    GraphForecaster,
    GuidedForecaster,
    Seq2SeqForecaster,
)
from fedproto_compared.common.client_graph import PROFILE, profile

# Down: g of the guided clients [n, T, d_g]. Up: h [K, T, d_h], or ∂L/∂g [K, T, d_g].
GRAPH, ENCODINGS, GRADIENT = "graph", "encodings", "gradient"
# The T time steps: COUNT steps from position FIRST of the source's clock, or the steps in an array
# [T], counted from that position.
FIRST, COUNT, STEPS = "first", "count", "steps"


class CnfgnnLearner(Answers, SoloLearner):
    """Train the server's model on the supervised loss. The server takes the unweighted mean."""

    @classmethod
    def sends(cls, section: object, sizes: Sizes) -> Sequence[Sends]:
        return [
            # Named by prefix, because g travels with the model.
            model(sizes.encoder, sizes.head, weight="clients", clip=""),
            # One row for each time step in the question, so only the strategy can state the shapes.
            Sends(
                "encodings",
                {ENCODINGS: ()},
                when="question",
                reveals="its values, to whoever has the encoder",
            ),
            Sends("gradients", {GRADIENT: ()}, when="question", reveals="its errors"),
            Sends("profile", {PROFILE: (sizes.period,)}, when="question", reveals="its mean day"),
        ]

    @property
    def model(self) -> GraphForecaster:
        """The forecaster, which encodes samples and forecasts with g."""
        model = self.task.model
        assert isinstance(model, GraphForecaster)
        return model

    def context(self, guidance: Guidance, cohort: Cohort) -> Context:
        cohort.samples = self._with_graph(cohort.samples, guidance)
        return Context()

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        return self.task.evaluate(cohort.parameters, self._with_graph(cohort.samples, guidance))

    def answer(self, cohort: Cohort, guidance: Guidance) -> Contribution:
        if PROFILE in guidance.options:
            assert isinstance(self.task, ForecastingTask)
            return profile(cohort, self.task)
        chosen = _Chosen(cohort.samples, _positions(guidance))
        if GRAPH not in guidance.arrays:
            return Contribution({ENCODINGS: self._encodings(cohort, chosen).cpu().numpy()})
        return Contribution({GRADIENT: self._gradient(cohort, chosen, guidance).cpu().numpy()})

    @torch.no_grad()
    def _encodings(self, cohort: Cohort, chosen: _Chosen) -> Tensor:
        """Return h [K, T, d_h], 0 where a client has no sample."""
        samples = cohort.samples
        encodings = []
        for part in torch.split(chosen.places, EVALUATED_AT_ONCE, dim=1):
            inputs = _at_places(samples.inputs, part)
            none = inputs.new_zeros(*part.shape, self.model.graph_width)
            guided = self.model.guided(inputs, self._phases(samples, part), none)
            encodings.append(self.model.encoding(cohort.parameters, guided))
        return torch.cat(encodings, dim=1) * chosen.present.unsqueeze(2)

    def _gradient(self, cohort: Cohort, chosen: _Chosen, guidance: Guidance) -> Tensor:
        """Return ∂L/∂g [K, T, d_g], 0 where a client has no train target.

        L is each client's mean squared error over its train targets at these time steps.
        """
        samples, task = cohort.samples, self.task
        assert isinstance(task, ForecastingTask)
        outputs = torch.from_numpy(guidance.arrays[GRAPH]).to(task.device)
        row_of = {name: row for row, name in enumerate(guidance.clients)}
        graph = outputs[[row_of[name] for name in cohort.names]].requires_grad_()
        inputs = _at_places(samples.inputs, chosen.places)
        guided = self.model.guided(inputs, self._phases(samples, chosen.places), graph)
        forecast = self.model.predict(
            cohort.parameters, self.model.encode(cohort.parameters, guided)
        )
        used = _at_places(task.train_targets(samples), chosen.places) * chosen.present.unsqueeze(2)
        losses = prediction_loss(forecast, _at_places(samples.targets, chosen.places), used)
        # The clients' losses share neither parameters nor g.
        (gradient,) = torch.autograd.grad(losses.sum(), [graph])
        return gradient

    def _with_graph(self, samples: CohortSamples, guidance: Guidance) -> CohortSamples:
        """Return the samples with their phases and g from the guidance, or 0 where it has none."""
        size, length, _ = samples.inputs.shape
        graph = samples.inputs.new_zeros(size, length, self.model.graph_width)
        if GRAPH in guidance.arrays:
            outputs = torch.from_numpy(guidance.arrays[GRAPH]).to(graph.device)
            chosen = _Chosen(samples, _positions(guidance))
            row_of = {name: row for row, name in enumerate(guidance.clients)}
            for row, name in enumerate(samples.names):
                if name in row_of:
                    present = chosen.present[row]
                    graph[row, chosen.places[row][present]] = outputs[row_of[name]][present]
        places = torch.arange(length, device=graph.device).expand(size, length)
        guided = self.model.guided(samples.inputs, self._phases(samples, places), graph)
        return replace(samples, inputs=guided)

    def _phases(self, samples: CohortSamples, places: Tensor) -> Tensor:
        """Return the phases [K, m] of the samples at these places."""
        starts = torch.tensor([client.start for client in samples.clients], device=places.device)
        return ((starts.unsqueeze(1) + places) % self.model.layout.period).to(samples.inputs.dtype)


class _Chosen:
    """The samples of a cohort at T time steps: places [K, T], and which are present [K, T]."""

    def __init__(self, samples: CohortSamples, positions: Tensor) -> None:
        device = samples.inputs.device
        spans = [(client.start, len(client.targets)) for client in samples.clients]
        starts, lengths = torch.tensor(spans, device=device).unsqueeze(1).unbind(dim=2)
        places = positions.to(device) - starts
        self.present = (places >= 0) & (places < lengths)
        self.places = torch.where(self.present, places, 0)


def _positions(guidance: Guidance) -> Tensor:
    """Return the positions [T] int64 on the source's clock."""
    first = int(guidance.options[FIRST])
    if STEPS in guidance.arrays:
        return first + torch.from_numpy(guidance.arrays[STEPS]).long()
    return first + torch.arange(int(guidance.options[COUNT]))


def _at_places(values: Tensor, places: Tensor) -> Tensor:
    """Return each client's values at its places [K, T]: [K, n, …] → [K, T, …]."""
    rows = torch.arange(len(values), device=values.device).unsqueeze(1)
    return values[rows, places]


def graph_forecaster(settings: Settings, layout: WindowLayout) -> GraphForecaster:
    """Return the clients' model for windows of this layout."""
    section = settings.method_table(CnfgnnSettings)
    if section.model == "fuels":
        return GuidedForecaster(settings.model.representation_dim, layout, section.hidden)
    places = window_positions(np.array([0]), settings.data)[0].tolist()
    return Seq2SeqForecaster(layout, places, section.hidden)
