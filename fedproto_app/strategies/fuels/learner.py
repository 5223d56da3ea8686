"""FUELS (Liu et al., AAAI 2025), client half: ClientExecute (A, Algorithm 1).

Paper: "Personalized Federated Learning for Spatio-Temporal Forecasting: A Dual Semantic
Alignment-Based Contrastive Approach" (A, with the preprint P). A client trains its own encoder,
decoder, projector and filter with the loss
    L = L_pred + L_intra + ρ·L_inter                                  (A, eq. 5; P, eq. 15)
where every term has a weight that can be set. It sends the mean of its projected representations,
with one row for each phase of the period, and gets a positive and a negative prototype back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedproto_app.core.messages import Guidance
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.noise import noisy
from fedproto_app.maths.optim import CohortOptimizer, ScaledSteps
from fedproto_app.models.forecaster import PROJECTOR, project
from fedproto_app.settings import Training
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution, Learner, Phase
from fedproto_app.strategies.common.prototypes import (
    ConcatenatedPrototype,
    PeriodPrototype,
    period_prototype,
)
from fedproto_app.strategies.fuels import FuelsSettings
from fedproto_app.tasks.forecasting.task import Batch, CohortSamples, ForecastingTask

FILTER = "filter"

# The array that clients send, the two that they get, and the option that holds the number of
# batches of a concatenated prototype.
PROTOTYPES, POSITIVE, NEGATIVE = "prototypes", "positive", "negative"
PROTOTYPE_BATCHES = "prototype-batches"


class GuidedMemory(NamedTuple):
    """guided: whether prototypes have guided the client yet, bool."""

    guided: Tensor


class GuidedContext(Context):
    """The cohort's global prototypes PR and NR [K, S', B, D], a mask of the clients that have them
    [K], and the prototype that the epoch gathers.

    S' is 1 for periodicity-aware prototypes, which guide every batch. For concatenated prototypes
    it is the common number of batches, and rows s guide batch s.

    gradients: gradient norms of the epoch's first batch, [K] each, if `diagnostics` is set.
    """

    def __init__(
        self,
        prototype: PeriodPrototype | ConcatenatedPrototype,
        positive: Tensor | None,
        negative: Tensor | None,
        guided: Tensor,
    ) -> None:
        self.own, self.positive, self.negative = prototype, positive, negative
        self.guided = guided
        self.gradients: dict[str, Tensor] = {}

    def start_epoch(self) -> None:
        self.own.clear()
        self.gradients = {}


class JSDPrototypeLearner(Learner[GuidedContext, ForecastingTask]):
    """FUELS's three losses on a model that never leaves the node."""

    section: FuelsSettings
    needs_representation = True

    @classmethod
    def sends(cls, section: FuelsSettings, sizes: Sizes) -> Sequence[Sends]:
        width = section.prototype_dim or sizes.width
        rows = sizes.batches * sizes.period
        return [period_prototype(PROTOTYPES, rows, width, combine="groups")]

    def __init__(self, training: Training, section: FuelsSettings, task: ForecastingTask) -> None:
        super().__init__(training, section, task)
        self._period = task.settings.data.period

    def initial_parameters(self) -> dict[str, Tensor]:
        parameters = self.task.initial_parameters(self.section.prototype_dim)
        if self.section.intra and self.section.learn_filter:
            # At 1 the filter passes every pair and the loss starts as plain InfoNCE.
            shape = (self._period, self._period)
            parameters[FILTER] = torch.full(shape, self.section.filter_start)
        return parameters

    def initial_memory(self) -> GuidedMemory:
        return GuidedMemory(torch.tensor(False))

    def phases(self) -> list[Phase]:
        trained = (self.task.encoder, self.task.head, PROJECTOR, FILTER)
        return [Phase("local", trained, self.training.local_epochs)]

    def make_optimizer(self, parameters: Mapping[str, Tensor]) -> CohortOptimizer:
        """Return the optimiser with `filter-rate` for the filter."""
        optimizer, factor = super().make_optimizer(parameters), self.section.filter_rate
        return optimizer if factor == 1 else ScaledSteps(optimizer, {FILTER: factor})

    def batches(
        self, samples: CohortSamples, generators: Sequence[torch.Generator]
    ) -> Iterator[Batch]:
        low = self.section.augmentation_low if self.section.intra else None
        return self.task.batches(samples, generators, low)

    def context(self, guidance: Guidance, cohort: Cohort) -> GuidedContext:
        names, device = cohort.names, self.task.device
        batches = 1 if self.section.periodicity_aware else int(guidance.options[PROTOTYPE_BATCHES])
        prototype = (
            PeriodPrototype(len(names))
            if self.section.periodicity_aware
            else ConcatenatedPrototype(len(names), batches)
        )
        rows = {name: row for row, name in enumerate(guidance.clients)}
        guided = torch.tensor([name in rows for name in names], device=device)
        if not rows or not self.section.inter:
            return GuidedContext(prototype, None, None, guided)
        # A client without guidance borrows row 0, which its mask then silences.
        take = [rows.get(name, 0) for name in names]

        def received(key: str) -> Tensor:
            chosen = torch.from_numpy(guidance.arrays[key][take]).to(device)
            return chosen.view(len(names), batches, self._period, -1)

        return GuidedContext(prototype, received(POSITIVE), received(NEGATIVE), guided)

    def loss(
        self, parameters: Mapping[str, Tensor], batch: Batch, context: GuidedContext
    ) -> dict[str, Tensor]:
        rows = batch.inputs.shape[1]
        views = batch.inputs
        if batch.augmented is not None:  # both views in one pass through the encoder
            views = torch.cat([batch.inputs, batch.augmented], dim=1)
        represented = self.task.encode(parameters, views)
        projected = project(parameters, represented)
        original = projected[:, :rows]
        context.own.add(original.detach(), batch.age)

        prediction = self.task.predict(parameters, represented[:, :rows], batch)
        weight = self.section.prediction_weight
        terms = {"prediction": weight * self.task.loss(prediction, batch)}
        if batch.augmented is not None:
            pair_filter = parameters.get(FILTER, original.new_ones(len(original), rows, rows))
            terms["intra"] = self.section.intra_weight * intra_client_loss(
                original,
                projected[:, rows:],
                pair_filter,
                self.section.temperature,
                self.section.negatives,
            )
        if context.positive is not None and context.negative is not None:
            terms["inter"] = self.section.inter_weight * self._inter(original, batch.age, context)
        if self.section.diagnostics and not context.gradients:
            encoder = [value for n, value in parameters.items() if n.startswith(self.task.encoder)]
            context.gradients = gradient_norms(terms, encoder)
        return terms

    def _inter(self, projected: Tensor, age: Tensor, context: GuidedContext) -> Tensor:
        assert context.positive is not None
        assert context.negative is not None
        active, batches = len(projected), context.positive.shape[1]
        clients = torch.arange(active, device=projected.device)
        batch_of = torch.zeros_like(age) if batches == 1 else (batches - 1 - age).clamp(min=0)
        guided = context.guided[:active]
        if batches > 1:
            guided = guided & (age < batches)  # older batches have no rows in the prototypes
        return inter_client_loss(
            projected,
            context.positive[clients, batch_of],
            context.negative[clients, batch_of],
            guided,
            self.section.temperature,
        )

    def conclude(self, cohort: Cohort, context: GuidedContext) -> dict[str, Tensor]:
        """Renew the optimiser where due, and return the diagnostics if they are set.

        These are the gradient norm of each weighted term at the encoder, the share of W's entries
        that are above 0, and the mean absolute entry of W.
        """
        memory: GuidedMemory = cohort.memory
        if self.section.renew_optimizer:
            # The first steps towards PR have gradients about a hundred times as large as the
            # prediction and all later steps have. Adam would remember this for a thousand steps.
            cohort.optimizer.renew(context.guided & ~memory.guided)
        memory.guided.logical_or_(context.guided)
        measured = {f"gradient-{term}": norm for term, norm in context.gradients.items()}
        if self.section.diagnostics and FILTER in cohort.parameters:
            entries = cohort.parameters[FILTER].flatten(start_dim=1)
            measured["filter-kept"] = (entries > 0).float().mean(dim=1)
            measured["filter-size"] = entries.abs().mean(dim=1)
        return measured

    def contribution(self, cohort: Cohort, context: GuidedContext) -> Contribution:
        prototypes = context.own.value().cpu()
        if self.section.noise != "none":
            kind, scale = self.section.noise, self.section.noise_scale
            streams = (
                torch_stream(self.training.seed, name, cohort.server_round, "noise")
                for name in cohort.names
            )
            rows = zip(prototypes, streams, strict=True)
            prototypes = torch.stack([noisy(row, kind, scale, stream) for row, stream in rows])
        return Contribution({PROTOTYPES: prototypes.numpy()})


def gradient_norms(terms: Mapping[str, Tensor], parameters: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return each client's ‖∂ term / ∂ parameters‖ over all parameters.

    terms: [k] each, for clients that share no parameter. parameters: [k, …] each, leaves of the
    terms' graph, which is retained.
    The norms are [k] each, by the terms' names, and 0 if a term does not depend on the parameters.
    """
    norms = {}
    for name, term in terms.items():
        gradients = torch.autograd.grad(
            term.sum(), parameters, retain_graph=True, materialize_grads=True
        )
        squares = [
            gradient.reshape(len(gradient), -1).square().sum(dim=1) for gradient in gradients
        ]
        norms[name] = torch.stack(squares).sum(dim=0).sqrt()
    return norms


# The contrastive losses are computed in log space: exp(1/0.02) = 5·10²¹ would overflow half
# precision and lose all digits in float32.


def intra_client_loss(
    projected: Tensor, augmented: Tensor, filter_weight: Tensor, temperature: float, negatives: str
) -> Tensor:
    """Return the intra-client contrastive loss: [K, B, D], [K, B, D], filter W [K, B, B] → [K].

    With SM = exp(cos/τ) (P, eq. 3) and Z = ReLU(SM ⊙ W) (P, eq. 4), row b's true negatives are
    {i : Z[b,i] > 0} (P, eq. 5), which is {i : W[b,i] > 0} as SM is positive. The loss is the mean
    over b of
        −log( SM[b,b] / (SM[b,b] + Σ_i N[b,i]) )
    with N = Z for ``negatives="filtered"`` (P, eq. 6) and N = SM on the true negatives for
    ``"similarity"`` (A, eq. 2). With N = SM, W has no gradient, so it receives the gradient that it
    would have under P (straight through).
    """
    log_similarity = cosine_matrix(projected, augmented) / temperature  # log SM, [K, B, B]
    is_negative = filter_weight > 0
    if negatives == "similarity":
        # The value is 0, and the gradient makes ∂L/∂W = SM / (SM[b,b] + Σ SM), as Z would give it
        # at Z = SM.
        log_filter = filter_weight - filter_weight.detach()
    else:
        # log W for the negatives. The inner where keeps log's gradient finite elsewhere.
        log_filter = torch.where(is_negative, filter_weight, 1.0).log()
    log_negatives = torch.where(is_negative, log_similarity + log_filter, -torch.inf)
    log_positive = log_similarity.diagonal(dim1=1, dim2=2)  # log SM[b,b], [K, B]
    everything = torch.cat([log_positive.unsqueeze(2), log_negatives], dim=2)
    return (everything.logsumexp(dim=2) - log_positive).mean(dim=1)


def inter_client_loss(
    projected: Tensor, positive: Tensor, negative: Tensor, guided: Tensor, temperature: float
) -> Tensor:
    """Return the inter-client contrastive loss (A, eq. 3; P, eqs. 11 to 13): [K, B, D] each → [K].

    −log( e⁺ / (e⁺ + e⁻) ) = softplus( (cos(r', NR) − cos(r', PR)) / τ ), averaged over the rows.
    guided: [K] bool, False for a client without a positive or a negative prototype, with loss 0.
    """
    unit = _unit(projected)
    toward = (unit * _unit(positive)).sum(dim=2)  # (K, B)
    away = (unit * _unit(negative)).sum(dim=2)
    return functional.softplus((away - toward) / temperature).mean(dim=1) * guided


def cosine_matrix(first: Tensor, second: Tensor) -> Tensor:
    """Return cos of every row of first with every row of second: 2 × [K, B, D] → [K, B, B]."""
    return torch.bmm(_unit(first), _unit(second).transpose(1, 2))


def _unit(rows: Tensor) -> Tensor:
    return functional.normalize(rows, dim=2, eps=1e-8)
