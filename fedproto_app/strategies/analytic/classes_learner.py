"""Classes in closed form, client half: one message per stage, no training.

Features are fixed random functions drawn from the seed. Over its train and validation samples of
all stages so far, a client computes the sums of `maths/class_gaussian.py`. These are D(D + 1)/2 +
C·D + C values, which it sends. The totals over clients give the classifier of all samples. With its
own sums as well, a client fits its personal classifier (`class_fit.py`). With clusters, the
personal classifier is also drawn to the sums of the clients whose classes have the same meaning.
Validation samples judge classifiers that were fitted without them. For clients that have few, so do
parts of the train samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedproto_app.core.events import tell
from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric, of_shared
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.class_gaussian import (
    ClassSums,
    LabelledVectors,
    class_sums,
    log_loss,
    shortened,
)
from fedproto_app.models.model import HEAD, LinearHeadModel
from fedproto_app.models.sequence_kernels import SequenceKernelClassifier
from fedproto_app.settings import Settings, Training
from fedproto_app.strategies.analytic import AnalyticSettings, learns_from_validation
from fedproto_app.strategies.common.class_fit import (
    COUNTS,
    ClassFit,
    Classifier,
    Fold,
    clusters_in,
    packed,
    sample_bound,
    scatter_in,
    sent_sums,
    sums_of_classes,
    sums_shapes,
    total_in,
    unpacked,
)
from fedproto_app.strategies.common.closed_form import ClosedFormLearner, new_stage
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution
from fedproto_app.tasks.images.task import ClassificationTask, fixed_features
from fedproto_app.tasks.sequences.task import SequenceClassificationTask

ENOUGH_VALIDATION = 100  # samples with which a client needs no train samples to judge classifiers
TRAIN_FOLDS = 3  # parts of the train samples that judge classifiers fitted without them


class SumsMemory(NamedTuple):
    """stages: the number of stages that a client has taken in. sums: its packed sums of the train
    samples of these stages. judged: its newest classifier that was fitted without validation
    samples, so that these can judge it."""

    stages: Tensor
    sums: dict[str, Tensor]
    judged: dict[str, Tensor]


@dataclass(frozen=True)
class ClassesContext(Context):
    """vectors: the features of the cohort's train samples of this round. guessed: the unlabelled
    train vectors with the classes that the last round's models predict, or None in a round without
    guesses. validation: the validation samples if the clients also learn from them, else None."""

    vectors: LabelledVectors
    guessed: LabelledVectors | None
    validation: LabelledVectors | None


class AnalyticClassesLearner(
    ClosedFormLearner[ClassesContext, ClassificationTask | SequenceClassificationTask]
):
    """Sends a client's sums and fits its classifier to them and to the totals."""

    section: AnalyticSettings

    @classmethod
    def sends(cls, section: AnalyticSettings, sizes: Sizes) -> Sequence[Sends]:
        if section.sharing == "none":
            return []
        passed_on = ""
        if section.sharing == "clustered":
            passed_on = (
                "tells the nodes of a cluster its clients' sums of each class, from which a node "
                "can subtract those of its own clients"
            )
        return [sums_of_classes(sizes, clip="sums", passed_on=passed_on)]

    def __init__(self, training: Training, section: AnalyticSettings, task: Any) -> None:
        super().__init__(training, section, task)
        self._fit = ClassFit(section.penalty, section.prior == "even")
        self._learns_validation = learns_from_validation(task.settings)

    @property
    def _classes(self) -> int:
        return len(self.task.shape.classes)

    def initial_memory(self) -> SumsMemory:
        shapes = sums_shapes(self._classes, self.task.representation_dim)
        sums = {name: torch.zeros(shape) for name, shape in shapes.items()}
        heads = ((self.task.representation_dim, self._classes), (self._classes,))
        judged = dict(zip(("weight", "bias"), map(torch.zeros, heads), strict=True))
        return SumsMemory(stages=torch.tensor(0), sums=sums, judged=judged)

    def context(self, guidance: Guidance, cohort: Cohort) -> ClassesContext:
        parameters, samples = cohort.parameters, cohort.samples
        vectors, guessed = self.task.train_vectors(parameters, samples), None
        if self.section.guess_rounds and cohort.server_round > 1:
            assert isinstance(self.task, SequenceClassificationTask)
            features, labels, present = self.task.guessed(parameters, samples, vectors)
            has_model = (cohort.memory.stages > 0).float()  # a newcomer would guess at random
            guessed = LabelledVectors(features, labels, present * has_model.unsqueeze(1))
        stages = torch.tensor(samples.trained_stages, device=self.task.device) + 1
        stages = stages.maximum(cohort.memory.stages)
        learned = self._validation(cohort, stages) if self._learns_validation else None
        return ClassesContext(vectors, guessed, learned)

    def _validation(self, cohort: Cohort, stages: Tensor) -> LabelledVectors:
        """Return the validation samples, of each client's first `stages` stages if it learns from
        them."""
        of_stages = stages if self._learns_validation else None
        return self.task.validation_vectors(cohort.parameters, cohort.samples, of_stages)

    def _with(self, validation: LabelledVectors | None, sums: ClassSums) -> ClassSums:
        """Return the sums, to which validation samples are added if clients learn from them."""
        if validation is None or not self._learns_validation:
            return sums
        return sums.plus(class_sums(validation, self._classes))

    def _folds(
        self, cohort: Cohort, validation: LabelledVectors, train: LabelledVectors | None = None
    ) -> list[Fold]:
        """Return the validation samples, and parts of the train samples of clients with few.

        train: the vectors of this round's train samples. None: encode them if they are needed.
        """
        first = Fold(validation, in_sums=self._learns_validation)
        stages = torch.tensor(cohort.samples.trained_stages, device=validation.present.device)
        # An older stage may have been missed, so that the sums do not hold it.
        few = validation.present.sum(dim=1) < ENOUGH_VALIDATION
        judging = few & (stages == cohort.memory.stages - 1)
        if not self._learns_validation or not judging.any():
            return [first]
        if train is None:
            train = self.task.train_vectors(cohort.parameters, cohort.samples)
        present = train.present * judging.unsqueeze(1)
        # Samples are dealt class by class, so that each part gets its share of every class.
        order = (train.labels + self._classes * (present == 0)).argsort(dim=1, stable=True)
        clients, folds = torch.arange(len(order), device=order.device).unsqueeze(1), [first]
        for number in range(TRAIN_FOLDS):
            rows = clients, order[:, number::TRAIN_FOLDS]
            part = LabelledVectors(train.features[rows], train.labels[rows], present[rows])
            folds.append(Fold(part, in_sums=True))
        return folds

    def conclude(self, cohort: Cohort, context: ClassesContext) -> dict[str, Tensor]:
        """Take in new stages and fit the client's own classifier, which is final if the client
        shares nothing."""
        sums, validation = self._taken_in(cohort, context), context.validation
        plain, folds = self.section.sharing != "none", []
        if not plain:  # then clients are evaluated in the same message
            cohort.samples = self.task.tests_encoded(cohort.parameters, cohort.samples)
            judges = self._validation(cohort, cohort.memory.stages)
            folds = self._folds(cohort, judges, context.vectors)
        elif validation is not None:
            folds = [Fold(validation, in_sums=True)]
        fits = self._fit.alone(self._with(validation, sums), folds, plain=plain)
        _set_heads(cohort, fits.final, fits.judged[0] if folds else fits.final)
        scores = self.task.predict(cohort.parameters, context.vectors.features)
        _, labels, present = context.vectors
        return {"total": log_loss(scores.double(), labels, present)}

    def contribution(self, cohort: Cohort, context: ClassesContext) -> Contribution:
        if self.section.sharing == "none":
            return Contribution()
        sums = unpacked(cohort.memory.sums)
        sums = self._with(context.validation, sums)
        return Contribution(sent_sums(packed(sums), masked=self.training.masked))

    def sums_bound(self, cohort: Cohort) -> tuple[float, list[int]]:
        assert self.training.sample_clip is not None
        counts = cohort.memory.sums[COUNTS].sum(dim=1)
        return sample_bound(self.training.sample_clip), [round(count) for count in counts.tolist()]

    def receive(self, cohort: Cohort, guidance: Guidance) -> list[int]:
        """Fit each client again, now with the totals."""
        total = total_in(guidance, self.task.device)
        if total is None:
            return []
        if (of_all := self._fit.of_all(total)) is None:
            tell("invalid-totals", WARNING, round=cohort.server_round, clients=len(cohort.names))
            return []  # each client uses its own classifier
        cohort.samples = self.task.tests_encoded(cohort.parameters, cohort.samples)
        validation = self._validation(cohort, cohort.memory.stages)
        if self.section.sharing == "federated":
            judged = self._of_all_judged(of_all, total, validation, cohort)
            _set_heads(cohort, of_all, judged)  # the same for all clients
        else:
            fits = self._fit.personal(
                self._with(validation, unpacked(cohort.memory.sums)),
                total,
                self._folds(cohort, validation),
                own=scatter_in(guidance, total),
                clusters=clusters_in(guidance, cohort.names, total),
                shares=cohort.shares,
            )
            _set_heads(cohort, fits.final, fits.judged[0])  # the first fold: validation samples
        return list(range(len(cohort.names)))

    def evaluate(self, cohort: Cohort, guidance: Guidance) -> dict[Metric, list[float]]:
        """Evaluate the client's classifier and the classifier of all samples.

        Validation errors come from the classifiers fitted without the validation samples.
        """
        final = cohort.parameters[HEAD + "weight"], cohort.parameters[HEAD + "bias"]
        judged = cohort.memory.judged["weight"], cohort.memory.judged["bias"]
        metrics = self._metrics(cohort, final, judged)
        total = total_in(guidance, self.task.device)
        if total is None or (of_all := self._fit.of_all(total)) is None:
            return metrics
        validation = self._validation(cohort, cohort.memory.stages)
        judged_of_all = self._of_all_judged(of_all, total, validation, cohort)
        return metrics | of_shared(self._metrics(cohort, of_all, judged_of_all))

    def _metrics(
        self, cohort: Cohort, final: Classifier, judged: Classifier
    ) -> dict[Metric, list[float]]:
        """Return the final classifiers' metrics, but the validation error of the judged ones."""
        clients = len(cohort.names)

        def metrics_of(classifier: Classifier) -> dict[Metric, list[float]]:
            weight, bias = (
                tensor.float().expand(clients, *tensor.shape[-rank:]).contiguous()
                for tensor, rank in zip(classifier, (2, 1), strict=True)
            )
            heads = {HEAD + "weight": weight, HEAD + "bias": bias}
            return self.task.evaluate({**cohort.parameters, **heads}, cohort.samples)

        metrics, error = metrics_of(final), Metric(self.task.metrics.validation.metric.name)
        if error in metrics and self._learns_validation:
            metrics[error] = metrics_of(judged)[error]
        return metrics

    def _of_all_judged(
        self, of_all: Classifier, total: ClassSums, validation: LabelledVectors, cohort: Cohort
    ) -> Classifier:
        """Return the classifiers of all samples but each client's validation samples."""
        if not self._learns_validation or not validation.present.any():
            return of_all
        held_out = class_sums(validation, self._classes)
        return self._fit.of_all_judged(total, held_out, cohort.shares)

    def _taken_in(self, cohort: Cohort, context: ClassesContext) -> ClassSums:
        """Add the stages that are new to the clients to their sums, then store and return the sums.

        With guesses, the sums start again in each round, because guesses change and a client has
        all its sequences from the start.
        """
        new, sums = new_stage(cohort), cohort.memory.sums
        features, labels, present = context.vectors
        if context.guessed is not None:
            sums_so_far = class_sums(context.vectors, self._classes)
            sums_so_far = sums_so_far.plus(class_sums(context.guessed, self._classes))
        else:
            if self.training.sample_clip is not None:
                features = shortened(features, self.training.sample_clip)
            new_vectors = LabelledVectors(features, labels, present * new.unsqueeze(1))
            sums_so_far = unpacked(sums).plus(class_sums(new_vectors, self._classes))
        for name, value in packed(sums_so_far).items():
            sums[name].copy_(value)
        return sums_so_far


def _set_heads(cohort: Cohort, final: Classifier, judged: Classifier) -> None:
    """Set the clients' heads, and the heads that validation samples judge."""
    for name, head, judged_head in zip(("weight", "bias"), final, judged, strict=True):
        cohort.parameters[HEAD + name].copy_(head)
        cohort.memory.judged[name].copy_(judged_head)


def features_of_images(settings: Settings, shape: DataShape) -> LinearHeadModel:
    """Return the model of images. Every process has the same features."""
    return fixed_features(settings, shape, settings.method_table(AnalyticSettings).features)


SEQUENCE_FEATURES = 6  # times `analytic.features`
KERNEL_STEPS = 32  # span of random kernels if the settings do not give the length of sequences


def sequence_kernels(settings: Settings, shape: DataShape) -> SequenceKernelClassifier:
    """Return the model of sequences. Every process draws the same kernels."""
    draws = torch_stream(settings.seed, "random kernels")
    steps = settings.data.sequences.steps or KERNEL_STEPS
    features = SEQUENCE_FEATURES * settings.method_table(AnalyticSettings).features
    return SequenceKernelClassifier(shape.inputs[0], len(shape.classes), features, steps, draws)
