"""Census (ours), client half: an encoder learned together, classes as Gaussians on it, and each
client's own class frequencies.

The encoder and its head are trained as FedAvg's, with logit-adjusted cross-entropy (Menon et al.,
"Long-tail learning via logit adjustment", ICLR 2021). Of the logits s_c and the client's class
frequencies π_c of the stage it is
    L = −log softmax_y(s + τ·log π)
so a frequent class, or an absent one, teaches the encoder nothing by its frequency alone.

Before it trains, a client adds up what the discriminant of `maths/class_gaussian.py` needs, over
the vectors that the encoder gives as received, which is the same for all. Fixed random features
stand beside them (`strategies/census/learner.py`). The answer of a client is made of its own sums
and those of all (`class_fit.py`), as in the closed form that learns nothing, and goes with the
encoder as received. Sums of earlier stages are of the encoders of their time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedproto_app.core.messages import Order
from fedproto_app.core.metrics import Metric
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.class_gaussian import UNKNOWN_CLASS, ClassSums, class_sums, log_prior
from fedproto_app.models.model import HEAD
from fedproto_app.settings import Settings, Training
from fedproto_app.strategies.census import CensusSettings
from fedproto_app.strategies.census.learner import LearnedAndFixed
from fedproto_app.strategies.common.class_fit import (
    COUNTS,
    MOMENT,
    ClassFit,
    everybody,
    frequencies,
    packed,
    sums_of_classes,
    sums_shapes,
    total_in,
)
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Context, Contribution, Learner, Phase
from fedproto_app.tasks.images.own_models import fixed_patches, image_classifier
from fedproto_app.tasks.images.task import ClassificationTask, ImageBatch

ANSWER = "answer."  # the classifier that a client was last given

SENDS_SUMS = "sends-sums"  # an option of an order to train


class CensusMemory(NamedTuple):
    """The sums of a client's earlier stages and those of the stage that it is at, as they travel;
    stage: the number of that stage, -1 before the first."""

    earlier: dict[str, Tensor]
    current: dict[str, Tensor]
    stage: Tensor


class CensusContext(Context):
    """log_frequencies: τ·log π [K, C] of the stages that clients train on. sends_sums: whether the
    server asks for sums in this round."""

    def __init__(self, log_frequencies: Tensor, sends_sums: bool) -> None:
        self.log_frequencies, self.sends_sums = log_frequencies, sends_sums


class CensusLearner(Learner[CensusContext, ClassificationTask]):
    """FedAvg with logit-adjusted cross-entropy, and sums of the shared encoder's vectors."""

    section: CensusSettings

    def __init__(
        self, training: Training, section: CensusSettings, task: ClassificationTask
    ) -> None:
        super().__init__(training, section, task)
        self._classes = len(task.shape.classes)
        learned = self._model.learned.representation_dim
        self._fit = ClassFit(section.penalty, section.prior == "even", steady_from=learned)

    @classmethod
    def sends(cls, section: CensusSettings, sizes: Sizes) -> Sequence[Sends]:
        sums = sums_of_classes(sizes, when="evaluated")
        return [model(sizes.encoder, sizes.head, clip=""), sums]

    @property
    def _model(self) -> LearnedAndFixed:
        assert isinstance(self.task.model, LearnedAndFixed)
        return self.task.model

    def initial_parameters(self) -> dict[str, Tensor]:
        return {
            **self.task.initial_parameters(),
            ANSWER + "weight": torch.zeros(self.task.representation_dim, self._classes),
            ANSWER + "bias": torch.zeros(self._classes),
        }

    def initial_memory(self) -> CensusMemory:
        shapes = sums_shapes(self._classes, self.task.representation_dim)
        none = {name: torch.zeros(shape) for name, shape in shapes.items()}
        return CensusMemory(earlier=none, current=none, stage=torch.tensor(-1))

    def phases(self) -> list[Phase]:
        return [Phase("local", self.shared, self.training.local_epochs)]

    def begin(self, cohort: Cohort) -> None:
        """Add up the stage's vectors while the encoder is still everybody's."""
        memory: CensusMemory = cohort.memory
        stages = torch.tensor(cohort.samples.trained_stages, device=memory.stage.device)
        comes = stages != memory.stage
        turn = stages < memory.stage  # the stages begin again: so do the sums
        vectors = self.task.train_vectors(cohort.parameters, cohort.samples)
        now = packed(class_sums(vectors, self._classes))
        for name, earlier in memory.earlier.items():
            current = memory.current[name]
            each = (-1, *[1] * (earlier.dim() - 1))
            passed = torch.where(turn.view(each), 0.0, earlier + current)
            earlier.copy_(torch.where(comes.view(each), passed, earlier))
            current.copy_(now[name])
        memory.stage.copy_(stages)

    def context(self, order: Order, cohort: Cohort) -> CensusContext:
        prior = self._adjustment(cohort.memory.current[COUNTS])
        return CensusContext(prior, bool(order.options.get(SENDS_SUMS)))

    def loss(
        self, parameters: Mapping[str, Tensor], batch: ImageBatch, context: CensusContext
    ) -> dict[str, Tensor]:
        learned = self._model.learned
        representation = self.task.encode(parameters, batch.inputs, learned)
        logits = learned.predict(parameters, representation)
        adjusted = logits + context.log_frequencies[: len(logits)].unsqueeze(1)
        return {"prediction": self.task.loss(adjusted, batch)}

    def contribution(
        self, cohort: Cohort, context: CensusContext, server_round: int
    ) -> Contribution:
        if not context.sends_sums:
            return Contribution()
        names = cohort.memory.earlier
        return Contribution({name: self._sum(cohort, name).cpu().numpy() for name in names})

    def receive(self, cohort: Cohort, order: Order) -> list[int]:
        """Fit each client's answer, now that the sums of all are there."""
        cohort.samples = self.task.tests_encoded(cohort.parameters, cohort.samples)
        total = total_in(order, self.task.device)
        weight, bias = self._of_head(cohort, total)
        if total is not None and self._fit.of_all(total) is not None:
            moment, counts = (self._sum(cohort, name).double() for name in (MOMENT, COUNTS))
            validation = self.task.validation_vectors(cohort.parameters, cohort.samples)
            weight, bias = self._fit.personal(moment, counts, [everybody(total)], validation)
        cohort.parameters[ANSWER + "weight"].copy_(weight)
        cohort.parameters[ANSWER + "bias"].copy_(bias)
        return list(range(len(cohort.names)))

    def predictor(self, parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The shared encoder with the client's own answer."""
        return {**parameters, **{HEAD + n: parameters[ANSWER + n] for n in ("weight", "bias")}}

    def evaluate(self, cohort: Cohort, order: Order) -> dict[Metric, list[float]]:
        """The client's own answer, by the averaged head besides; and the answer of all samples."""
        total = total_in(order, self.task.device)
        own = self.predictor(cohort.parameters)
        head = self._with(cohort, *self._of_head(cohort, total))
        rules = {"": self.task.by_head(own), "head": self.task.by_head(head)}
        found = self.task.judge(own, cohort.samples, rules)
        if total is None or (of_all := self._fit.of_all(total)) is None:
            return found
        clients = len(cohort.names)
        weight, bias = (one.expand(clients, *one.shape) for one in of_all)
        shared = self.task.evaluate(self._with(cohort, weight, bias), cohort.samples)
        return {**found, **{replace(one, shared=True): told for one, told in shared.items()}}

    def _with(self, cohort: Cohort, weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
        """The shared encoder with this classifier [K, D, C], [K, C]."""
        classifier = {HEAD + "weight": weight, HEAD + "bias": bias}
        floats = {name: one.float().contiguous() for name, one in classifier.items()}
        return {**cohort.parameters, **floats}

    def _of_head(self, cohort: Cohort, total: ClassSums | None) -> tuple[Tensor, Tensor]:
        """The averaged head, which learned without frequencies, with the client's own ones."""
        weight, bias = (cohort.parameters[HEAD + name] for name in ("weight", "bias"))
        counts = self._sum(cohort, COUNTS).double()
        if total is not None:
            counts = frequencies(counts, total.counts)
        beside = self.task.representation_dim - weight.shape[1]
        return pad(weight, (0, 0, 0, beside)), bias + self._adjustment(counts)

    def _adjustment(self, counts: Tensor) -> Tensor:
        """τ·log π [K, C] of these counts, so low for a class without any that none is left."""
        strength = self.section.logit_adjustment
        if strength == 0:
            return torch.zeros_like(counts, dtype=torch.float32)
        prior = log_prior(counts)
        return torch.where(counts > 0, strength * prior, UNKNOWN_CLASS).float()

    def _sum(self, cohort: Cohort, name: str) -> Tensor:
        """The clients' sums over all stages so far."""
        total: Tensor = cohort.memory.earlier[name] + cohort.memory.current[name]
        return total


def learned_and_random_patches(settings: Settings, shape: DataShape) -> LearnedAndFixed:
    """The encoder of the settings, and filters that every process draws alike."""
    filters = settings.method_table(CensusSettings).features
    fixed = fixed_patches(settings, shape, filters) if filters else None
    return LearnedAndFixed(image_classifier(settings.model, shape), fixed)
