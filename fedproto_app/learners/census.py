"""Census (ours), client half: an encoder learned together, classes as Gaussians on it, and each
client's own class frequencies.

The encoder and its head are trained as FedAvg's, with logit-adjusted cross-entropy (Menon et al.,
"Long-tail learning via logit adjustment", ICLR 2021). Of the logits s_c and the client's class
frequencies π_c of the stage it is
    L = −log softmax_y(s + τ·log π)
so a frequent class, or an absent one, teaches the encoder nothing by its frequency alone.

Before it trains, a client adds up what the discriminant of `maths/class_gaussian.py` needs, over
the vectors that the encoder gives as received, which is the same for all. Fixed random features
stand beside them (`models/learned_and_fixed.py`). The answer of a client is made of its own sums
and those of all (`class_fit.py`), as in the closed form that learns nothing. Sums of earlier stages
are of the encoders of their time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedproto_app.learners.class_fit import (
    COUNTS,
    GRAM,
    MOMENT,
    ClassFit,
    arrived,
    frequencies,
    packed,
    sums_shapes,
    unpacked,
)
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Context, Contribution, Learner, Phase
from fedproto_app.maths.class_gaussian import ClassSums, class_sums, log_prior
from fedproto_app.messages import Order
from fedproto_app.metrics import Metric
from fedproto_app.models.learned_and_fixed import LearnedAndFixed
from fedproto_app.models.model import HEAD
from fedproto_app.settings import CensusSettings, Training
from fedproto_app.tasks.images.task import ClassificationTask, ImageBatch, Rule

# What a client remembers: the sums of its earlier stages, those of the one that it is at, and which
# that is; the classifier that it was last given.
EARLIER = {name: f"memory.earlier.{name}" for name in (GRAM, MOMENT, COUNTS)}
CURRENT = {name: f"memory.current.{name}" for name in (GRAM, MOMENT, COUNTS)}
STAGE = "memory.stage"
ANSWER = "answer."


class PriorContext(Context):
    """log π [K, C] of the stage that a client trains on."""

    def __init__(self, log_frequencies: Tensor) -> None:
        self.log_frequencies = log_frequencies


class CensusLearner(Learner[PriorContext, ClassificationTask]):
    """FedAvg with logit-adjusted cross-entropy, and sums of the shared encoder's vectors."""

    section: CensusSettings
    needs_representation = True

    def __init__(
        self, training: Training, section: CensusSettings, task: ClassificationTask
    ) -> None:
        super().__init__(training, section, task)
        self.shared = (task.encoder, task.head)
        self._classes = len(task.shape.classes)
        self._fit = ClassFit(section.penalty, section.prior == "even")

    @property
    def _model(self) -> LearnedAndFixed:
        assert isinstance(self.task.model, LearnedAndFixed)
        return self.task.model

    def initial_parameters(self) -> dict[str, Tensor]:
        width = self.task.representation_dim
        shapes = sums_shapes(self._classes, width)
        return {
            **self.task.initial_parameters(),
            **{EARLIER[name]: torch.zeros(shape) for name, shape in shapes.items()},
            **{CURRENT[name]: torch.zeros(shape) for name, shape in shapes.items()},
            STAGE: torch.tensor(-1.0),
            ANSWER + "weight": torch.zeros(width, self._classes),
            ANSWER + "bias": torch.zeros(self._classes),
        }

    def phases(self) -> list[Phase]:
        return [Phase("local", self.shared, self.training.local_epochs)]

    def begin(self, cohort: Cohort) -> None:
        """Add up the stage's vectors while the encoder is still everybody's."""
        memory = cohort.parameters
        stages = torch.tensor(cohort.samples.new_stages, device=memory[STAGE].device).float()
        comes = (stages >= 0) & (stages != memory[STAGE])
        turn = comes & (stages < memory[STAGE])  # the stages begin again: so do the sums
        vectors = self.task.train_vectors(memory, cohort.samples)
        now = packed(class_sums(vectors, self._classes))
        for name, earlier in EARLIER.items():
            before, current = memory[earlier], memory[CURRENT[name]]
            each = (-1, *[1] * (before.dim() - 1))
            passed = torch.where(turn.view(each), 0.0, before + current)
            before.copy_(torch.where(comes.view(each), passed, before))
            current.copy_(now[name])
        memory[STAGE].copy_(torch.where(comes, stages, memory[STAGE]))

    def context(self, order: Order, cohort: Cohort) -> PriorContext:
        return PriorContext(log_prior(cohort.parameters[CURRENT[COUNTS]]))

    def loss(
        self, parameters: Mapping[str, Tensor], batch: ImageBatch, context: PriorContext
    ) -> dict[str, Tensor]:
        learned = self._model.learned
        representation = self.task.encode(parameters, batch.inputs, learned)
        logits = learned.predict(parameters, representation)
        prior = context.log_frequencies[: len(logits)].unsqueeze(1)
        adjusted = logits + self.section.logit_adjustment * prior
        return {"prediction": self.task.loss(adjusted, batch)}

    def contribution(
        self, cohort: Cohort, context: PriorContext, server_round: int
    ) -> Contribution:
        return Contribution({n: v.cpu().numpy() for n, v in self._sent(cohort).items()})

    def receive(self, cohort: Cohort, order: Order) -> list[int]:
        """Fit each client's answer, now that the averaged encoder and the sums of all are there."""
        cohort.samples = self.task.tests_encoded(cohort.parameters, cohort.samples)
        total = self._total(order)
        if total is None or self._fit.of_all(total) is None:
            return []
        validation = self.task.validation_vectors(cohort.parameters, cohort.samples)
        answer = self._fit.personal(self._own(cohort), total, validation)
        for name, value in zip(("weight", "bias"), answer, strict=True):
            cohort.parameters[ANSWER + name].copy_(value)
        return list(range(len(cohort.names)))

    def predictor(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The averaged encoder with the client's own answer."""
        return {**parameters, **{HEAD + n: parameters[ANSWER + n] for n in ("weight", "bias")}}

    def evaluate(self, cohort: Cohort, order: Order) -> dict[Metric, list[float]]:
        """The client's own answer, by the averaged head besides; and the answer of all samples."""
        total = self._total(order)
        if total is None or (of_all := self._fit.of_all(total)) is None:
            return self.task.judge(cohort.parameters, cohort.samples, {"": self._by_head(cohort)})
        own = self.predictor(cohort.parameters)
        rules = {"": self.task.by_head(own), "head": self._by_head(cohort, total)}
        found = self.task.judge(own, cohort.samples, rules)
        clients = len(cohort.names)
        weight, bias = (one.float().expand(clients, *one.shape).contiguous() for one in of_all)
        everyone = {**cohort.parameters, HEAD + "weight": weight, HEAD + "bias": bias}
        shared = self.task.evaluate(everyone, cohort.samples)
        return {**found, **{replace(one, shared=True): told for one, told in shared.items()}}

    def _by_head(self, cohort: Cohort, total: ClassSums | None = None) -> Rule:
        """The averaged head, which learned without frequencies, with the client's own ones."""
        own = self._own(cohort)
        counts = own.counts if total is None else frequencies(own, total)
        prior = self.section.logit_adjustment * log_prior(counts).float().unsqueeze(1)
        return lambda vectors: (self.task.predict(cohort.parameters, vectors) + prior).argmax(dim=2)

    def _sent(self, cohort: Cohort) -> dict[str, Tensor]:
        memory = cohort.parameters
        return {name: memory[EARLIER[name]] + memory[CURRENT[name]] for name in EARLIER}

    def _own(self, cohort: Cohort) -> ClassSums:
        return unpacked(self._sent(cohort))

    def _total(self, order: Order) -> ClassSums | None:
        """The sums over all clients; None where the order brings none."""
        return arrived(order.arrays, self.task.device) if GRAM in order.arrays else None
