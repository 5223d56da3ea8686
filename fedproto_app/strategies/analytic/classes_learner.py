"""Classes in closed form, client half: one message a stage, no training.

Features are fixed random functions that the seed draws. A client adds up what the discriminant of
`maths/class_gaussian.py` needs, over its train samples of all stages so far, and sends the sums,
D(D + 1)/2 + C·D + C values. Summed over clients they give the classifier of all samples, and with
its own sums the client's own (`class_fit.py`). With those of the clients that mean the same by a
class it may lean to these instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedproto_app.core.messages import Order
from fedproto_app.core.metrics import Metric
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Returns, Sends, Sizes
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.class_gaussian import (
    ClassSums,
    LabelledVectors,
    class_sums,
    log_loss,
    shortened,
)
from fedproto_app.models.model import HEAD
from fedproto_app.models.random_patches import RandomPatchClassifier
from fedproto_app.settings import Settings, Training
from fedproto_app.strategies.analytic import AnalyticSettings
from fedproto_app.strategies.analytic.random_kernels import RandomKernelClassifier
from fedproto_app.strategies.common.class_fit import (
    COUNTS,
    MOMENT,
    ClassFit,
    Classifier,
    clusters_in,
    everybody,
    packed,
    sample_bound,
    sums_of_classes,
    sums_shapes,
    total_in,
    unpacked,
)
from fedproto_app.strategies.common.closed_form import ClosedFormLearner, VectorsContext, new_stage
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Contribution
from fedproto_app.tasks.images.own_models import fixed_patches
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceClassificationTask


class SumsMemory(NamedTuple):
    """How many stages a client has taken in, and its own sums over these, as they travel."""

    stages: Tensor
    sums: dict[str, Tensor]


class ClassesContext(VectorsContext):
    """guessed: the train vectors with the classes that the clients' models of the round before give
    them, of which those without a label are present; None in a round without guesses."""

    def __init__(self, vectors: LabelledVectors, guessed: LabelledVectors | None) -> None:
        super().__init__(vectors)
        self.guessed = guessed


class AnalyticClassesLearner(
    ClosedFormLearner[ClassesContext, ClassificationTask | SequenceClassificationTask]
):
    """The client's own sums, and what is made of them and of those of all."""

    section: AnalyticSettings

    @classmethod
    def sends(cls, section: AnalyticSettings, sizes: Sizes) -> Sequence[Sends]:
        if section.sharing == "none":
            return []
        of_present = "the sums over the clients that take part"
        return [sums_of_classes(sizes, clip="sums", of_present=of_present)]

    @classmethod
    def returns(cls, section: AnalyticSettings) -> Sequence[Returns]:
        if section.sharing != "clustered":
            return []
        told = (
            "tells the nodes of a cluster its clients' sums of each class, from which a node can "
            "take its own clients'"
        )
        return [Returns("sums of a cluster", told, consent="shares-classes")]

    def __init__(self, training: Training, section: AnalyticSettings, task: Any) -> None:
        super().__init__(training, section, task)
        self._fit = ClassFit(section.penalty, section.prior == "even")

    @property
    def _classes(self) -> int:
        return len(self.task.shape.classes)

    def initial_memory(self) -> SumsMemory:
        shapes = sums_shapes(self._classes, self.task.representation_dim)
        sums = {name: torch.zeros(shape) for name, shape in shapes.items()}
        return SumsMemory(stages=torch.tensor(0), sums=sums)

    def context(self, order: Order, cohort: Cohort) -> ClassesContext:
        parameters, samples = cohort.parameters, cohort.samples
        vectors, guessed = self.task.train_vectors(parameters, samples), None
        if self.section.guess_rounds and order.server_round > 1:
            assert isinstance(self.task, SequenceClassificationTask)
            features, labels, present = self.task.guessed(parameters, samples, vectors)
            has_model = (cohort.memory.stages > 0).float()  # a newcomer's would guess at random
            guessed = LabelledVectors(features, labels, present * has_model.unsqueeze(1))
        return ClassesContext(vectors, guessed)

    def conclude(self, cohort: Cohort, context: ClassesContext) -> dict[str, Tensor]:
        """Take in what is new, and fit the client's own classifier, which stays if it shares
        nothing."""
        own, validation = self._taken_in(cohort, context), None
        if self.section.sharing == "none":  # then these are judged in the same message
            cohort.samples = self.task.tests_encoded(cohort.parameters, cohort.samples)
            validation = self.task.validation_vectors(cohort.parameters, cohort.samples)
        _keep(cohort, self._fit.alone(own, validation))
        scores = self.task.predict(cohort.parameters, context.vectors.features)
        _, labels, present = context.vectors
        return {"total": log_loss(scores.double(), labels, present)}

    def contribution(
        self, cohort: Cohort, context: ClassesContext, server_round: int
    ) -> Contribution:
        if self.section.sharing == "none":
            return Contribution()
        sums = cohort.memory.sums
        return Contribution({name: value.cpu().numpy() for name, value in sums.items()})

    def sums_bound(self, cohort: Cohort) -> tuple[float, list[int]]:
        assert self.training.sample_clip is not None
        counts = cohort.memory.sums[COUNTS].sum(dim=1)
        return sample_bound(self.training.sample_clip), [round(count) for count in counts.tolist()]

    def receive(self, cohort: Cohort, order: Order) -> list[int]:
        """Fit each client again, now that the sums over all are known."""
        total = total_in(order, self.task.device)
        if total is None or (of_all := self._fit.of_all(total)) is None:
            return []  # nobody's, or somebody's spoil the total: each goes on with its own
        cohort.samples = self.task.tests_encoded(cohort.parameters, cohort.samples)
        if self.section.sharing == "federated":
            _keep(cohort, of_all)  # all clients' the same
        else:
            moment, counts = (cohort.memory.sums[name].double() for name in (MOMENT, COUNTS))
            validation = self.task.validation_vectors(cohort.parameters, cohort.samples)
            others = [everybody(total), *clusters_in(order, cohort.names, total)]
            _keep(cohort, self._fit.personal(moment, counts, others, validation))
        return list(range(len(cohort.names)))

    def evaluate(self, cohort: Cohort, order: Order) -> dict[Metric, list[float]]:
        """The client's own classifier, and beside it the one of all samples."""
        found = super().evaluate(cohort, order)
        total = total_in(order, self.task.device)
        if total is None or (of_all := self._fit.of_all(total)) is None:
            return found
        clients = len(cohort.names)
        weight, bias = (one.float().expand(clients, *one.shape).contiguous() for one in of_all)
        everyone = {**cohort.parameters, HEAD + "weight": weight, HEAD + "bias": bias}
        shared = self.task.evaluate(everyone, cohort.samples)
        return {**found, **{replace(one, shared=True): told for one, told in shared.items()}}

    def _taken_in(self, cohort: Cohort, context: ClassesContext) -> ClassSums:
        """The clients' sums with those of stages that are new to them, which they remember.

        With guesses they begin anew: sequences come all at once, and a guess changes.
        """
        new, sums = new_stage(cohort), cohort.memory.sums
        features, labels, present = context.vectors
        if context.guessed is not None:
            own = class_sums(context.vectors, self._classes)
            own = own.plus(class_sums(context.guessed, self._classes))
        else:
            if self.training.sample_clip is not None:
                features = shortened(features, self.training.sample_clip)
            come = LabelledVectors(features, labels, present * new.unsqueeze(1))
            own = unpacked(sums).plus(class_sums(come, self._classes))
        for name, value in packed(own).items():
            sums[name].copy_(value)
        return own


def _keep(cohort: Cohort, classifier: Classifier) -> None:
    """As the clients' heads."""
    for name, value in zip(("weight", "bias"), classifier, strict=True):
        cohort.parameters[HEAD + name].copy_(value)


def random_patches(settings: Settings, shape: DataShape) -> RandomPatchClassifier:
    """The model of images: every process draws the same filters."""
    return fixed_patches(settings, shape, settings.method_table(AnalyticSettings).features)


KERNEL_STEPS = 32  # that kernels reach over where the settings do not say how long sequences are


def random_kernels(settings: Settings, shape: DataShape) -> RandomKernelClassifier:
    """The model of sequences: every process draws the same kernels."""
    draws = torch_stream(settings.seed, "random kernels")
    steps = settings.data.sequences.steps or KERNEL_STEPS
    classes, kernels = len(shape.classes), settings.method_table(AnalyticSettings).features
    return RandomKernelClassifier(shape.inputs[0], classes, kernels, steps, draws)
