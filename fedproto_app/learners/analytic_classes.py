"""Classes in closed form, client half: one message a stage, no training.

Features are fixed random functions that the seed draws. A client adds up what the discriminant of
`maths/class_gaussian.py` needs, over its train samples of all stages so far, and sends the sums,
D(D + 1)/2 + C·D + C values. Summed over clients they give the classifier of all samples.

What a client goes on with is its own: the covariance of all, class means between its own and those
of all, and its own class frequencies as prior. How far the means lean to all and how strong the
penalty is, no client's few validation samples can tell, so its classifier is the mean of many
candidates' log-probabilities, weighed by the likelihood of its validation samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedproto_app.learners.closed_form import ClosedFormLearner
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Context, Contribution
from fedproto_app.maths.class_gaussian import (
    ClassSums,
    LabelledVectors,
    class_means,
    class_sums,
    discriminant,
    log_prior,
    overall_mean,
    precision_factor,
)
from fedproto_app.maths.ridge import symmetric, triangle, triangle_size
from fedproto_app.messages import Order
from fedproto_app.metrics import Metric
from fedproto_app.models.model import HEAD
from fedproto_app.settings import AnalyticSettings
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceClassificationTask

# What goes up from each client, and, summed over the clients, comes down.
GRAM, MOMENT, COUNTS = "gram", "moment", "counts"
# What a client remembers: its own sums of all stages so far, and how many stages they are of.
MEMORY = {GRAM: "memory.gram", MOMENT: "memory.moment", COUNTS: "memory.counts"}
STAGES = "memory.stages"

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0)  # of the candidates, as factors of `analytic.penalty`
LEANS = (1.0, 10.0, 100.0, 1e6)  # samples of a class that the means of all weigh, beside its own
PSEUDO = 1.0  # samples with everybody's class frequencies beside the client's own
ETA = 0.3  # how much validation samples are trusted; 1: as independent ones

Classifier = tuple[Tensor, Tensor]  # weight [K, D, C], bias [K, C]


class VectorsContext(Context):
    """The features of the cohort's train samples of this round."""

    def __init__(self, vectors: LabelledVectors) -> None:
        self.vectors = vectors


class AnalyticClassesLearner(
    ClosedFormLearner[VectorsContext, ClassificationTask | SequenceClassificationTask]
):
    """The client's own sums, and what is made of them and of those of all."""

    section: AnalyticSettings

    @property
    def _classes(self) -> int:
        return len(self.task.shape.classes)

    def initial_parameters(self) -> dict[str, Tensor]:
        width = self.task.representation_dim
        return {
            **self.task.initial_parameters(),
            MEMORY[GRAM]: torch.zeros(triangle_size(width)),
            MEMORY[MOMENT]: torch.zeros(self._classes, width),
            MEMORY[COUNTS]: torch.zeros(self._classes),
            STAGES: torch.tensor(0.0),
        }

    def context(self, order: Order, cohort: Cohort) -> VectorsContext:
        return VectorsContext(self.task.train_vectors(cohort.parameters, cohort.samples))

    def conclude(self, cohort: Cohort, context: VectorsContext) -> dict[str, Tensor]:
        """Take in what is new, and fit the client's own classifier, which stays if it shares
        nothing."""
        own = self._taken_in(cohort, context.vectors)
        means = [class_means(own.moment, own.counts)]
        alone = self.section.sharing == "none"
        if alone:  # then these are judged in the same message
            cohort.samples = self.task.tests_encoded(cohort.parameters, cohort.samples)
        self._fit(cohort, own, PENALTIES if alone else (1.0,), means, own.counts)
        scores = self.task.predict(cohort.parameters, context.vectors.features)
        _, labels, present = context.vectors
        return {"total": _log_loss(scores.double(), labels, present)}

    def contribution(
        self, cohort: Cohort, context: VectorsContext, server_round: int
    ) -> Contribution:
        if self.section.sharing == "none":
            return Contribution()
        sent = {name: cohort.parameters[kept] for name, kept in MEMORY.items()}
        return Contribution({name: value.cpu().numpy() for name, value in sent.items()})

    def receive(self, cohort: Cohort, order: Order) -> list[int]:
        """Fit each client again, now that the sums over all are known."""
        total = self._total(order)
        if total is None or (of_all := self._of_all(total)) is None:
            return []  # nobody's, or somebody's spoil the total: each goes on with its own
        cohort.samples = self.task.tests_encoded(cohort.parameters, cohort.samples)
        if self.section.sharing == "federated":
            for name, value in zip(("weight", "bias"), of_all, strict=True):
                cohort.parameters[HEAD + name].copy_(value)  # all clients' the same
        else:
            self._personalise(cohort, total)
        return list(range(len(cohort.names)))

    def evaluate(self, cohort: Cohort, order: Order) -> dict[Metric, list[float]]:
        """The client's own classifier, and beside it the one of all samples."""
        found = super().evaluate(cohort, order)
        total = self._total(order)
        if total is None or (of_all := self._of_all(total)) is None:
            return found
        clients = len(cohort.names)
        weight, bias = (one.float().expand(clients, *one.shape).contiguous() for one in of_all)
        everyone = {**cohort.parameters, HEAD + "weight": weight, HEAD + "bias": bias}
        shared = self.task.evaluate(everyone, cohort.samples)
        return {**found, **{replace(one, shared=True): told for one, told in shared.items()}}

    def _taken_in(self, cohort: Cohort, vectors: LabelledVectors) -> ClassSums:
        """The clients' sums with those of stages that are new to them, which they remember."""
        memory = cohort.parameters
        stages = torch.tensor(cohort.samples.new_stages, device=memory[STAGES].device)
        new = stages >= memory[STAGES]
        features, labels, present = vectors
        come = LabelledVectors(features, labels, present * new.unsqueeze(1))
        own = self._own(cohort).plus(class_sums(come, self._classes))
        packed = {GRAM: triangle(own.gram), MOMENT: own.moment, COUNTS: own.counts}
        for name, value in packed.items():
            memory[MEMORY[name]].copy_(value)
        memory[STAGES].copy_(torch.where(new, stages + 1, memory[STAGES]))
        return own

    def _own(self, cohort: Cohort) -> ClassSums:
        return self._unpacked({name: cohort.parameters[kept] for name, kept in MEMORY.items()})

    def _total(self, order: Order) -> ClassSums | None:
        """The sums over all clients; None where the order brings none."""
        if GRAM not in order.arrays:
            return None
        device = self.task.device
        packed = {name: torch.from_numpy(order.arrays[name]).to(device) for name in MEMORY}
        return self._unpacked(packed)

    def _unpacked(self, packed: dict[str, Tensor]) -> ClassSums:
        gram, moment, counts = (packed[name].double() for name in (GRAM, MOMENT, COUNTS))
        return ClassSums(symmetric(gram, moment.shape[-1]), moment, counts)

    def _of_all(self, total: ClassSums) -> Classifier | None:
        """The classifier of all samples: weight [D, C], bias [C]; None if no samples have these."""
        factor = precision_factor(total, self.section.penalty)
        means = class_means(total.moment, total.counts)
        weight, offset = discriminant(factor, overall_mean(total), means, total.counts > 0)
        found = weight, offset + self._prior(total.counts)
        return found if weight.isfinite().all() else None

    def _personalise(self, cohort: Cohort, total: ClassSums) -> None:
        """Each client's own classifier, of its sums and those of all."""
        own = self._own(cohort)
        of_all = class_means(total.moment, total.counts)
        means = [class_means(own.moment + lean * of_all, own.counts + lean) for lean in LEANS]
        frequencies = own.counts + PSEUDO * total.counts / total.counts.sum().clamp(min=1)
        self._fit(cohort, total, PENALTIES, means, frequencies)

    def _prior(self, counts: Tensor) -> Tensor:
        """[…, C]: the shares of these counts, or the same for all classes."""
        return log_prior((counts > 0).double() if self.section.prior == "even" else counts)

    def _fit(
        self,
        cohort: Cohort,
        spread: ClassSums,
        penalties: Sequence[float],
        means: Sequence[Tensor],
        counts: Tensor,
    ) -> None:
        """The mean of all candidates, weighed by the likelihood of the validation samples.

        spread: the sums whose covariance they have. means: [K, C, D], one a candidate. counts: the
        classes' frequencies [K, C].
        """
        prior, known, centre = self._prior(counts), counts > 0, overall_mean(spread)
        candidates = []
        for penalty in penalties:
            factor = precision_factor(spread, penalty * self.section.penalty)
            for some in means:
                weight, offset = discriminant(factor, centre, some, known)
                candidates.append((weight, offset + prior))
        parts = self._likelihoods(cohort, candidates)
        for name, each in zip(("weight", "bias"), zip(*candidates, strict=True), strict=True):
            mean = torch.zeros_like(each[0])
            for number, one in enumerate(each):
                mean += parts[:, number].reshape(-1, *[1] * (one.dim() - 1)) * one.nan_to_num()
            cohort.parameters[HEAD + name].copy_(mean)

    def _likelihoods(self, cohort: Cohort, candidates: Sequence[Classifier]) -> Tensor:
        """[K, candidates] by that of the validation samples; they sum to 1."""
        if len(candidates) == 1:
            return torch.ones(len(cohort.names), 1, dtype=torch.float64, device=self.task.device)
        vectors = self.task.validation_vectors(cohort.parameters, cohort.samples)
        features, labels, present = vectors.features.double(), vectors.labels, vectors.present
        losses = [
            _log_loss(features @ weight + bias.unsqueeze(1), labels, present)
            for weight, bias in candidates
        ]
        errors = torch.stack(losses, dim=1).nan_to_num(nan=1e9, posinf=1e9)
        samples = present.double().sum(dim=1, keepdim=True)
        return (-ETA * samples * errors).softmax(dim=1)


def _log_loss(scores: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """[K] −log p of the true class, the mean over a client's samples; 0 without any."""
    each = -scores.log_softmax(dim=2).gather(2, labels.unsqueeze(2)).squeeze(2)
    weights = present.double()
    return (each * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
