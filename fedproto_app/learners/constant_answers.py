"""The simplest answers where nothing is forecast: a client's most frequent class, its mean number.

Nothing is learned of the inputs and nothing is exchanged.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedproto_app.learners.closed_form import STAGES, ClosedFormLearner, VectorsContext, new_stage
from fedproto_app.learners.cohort import Cohort
from fedproto_app.maths.class_gaussian import log_loss, log_prior
from fedproto_app.messages import Order
from fedproto_app.models.model import HEAD
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceClassificationTask, SequenceRegressionTask

COUNTS = "memory.counts"  # of each class in the stages so far


class FrequentClassLearner(
    ClosedFormLearner[VectorsContext, ClassificationTask | SequenceClassificationTask]
):
    """By the class frequencies of all stages so far."""

    def initial_parameters(self) -> dict[str, Tensor]:
        classes = len(self.task.shape.classes)
        start = {COUNTS: torch.zeros(classes), STAGES: torch.tensor(0.0)}
        return {**self.task.initial_parameters(), **start}

    def context(self, order: Order, cohort: Cohort) -> VectorsContext:
        return VectorsContext(self.task.train_vectors(cohort.parameters, cohort.samples))

    def conclude(self, cohort: Cohort, context: VectorsContext) -> dict[str, Tensor]:
        parameters, (_, labels, present) = cohort.parameters, context.vectors
        counts = parameters[COUNTS]
        members = one_hot(labels, counts.shape[1]) * present.unsqueeze(2)
        counts += members.sum(dim=1) * new_stage(cohort).unsqueeze(1)
        parameters[HEAD + "bias"].copy_(log_prior(counts))
        scores = self.task.predict(parameters, context.vectors.features)
        return {"total": log_loss(scores.double(), labels, present)}


class MeanNumberLearner(ClosedFormLearner[VectorsContext, SequenceRegressionTask]):
    """By the mean of the client's train sequences."""

    def context(self, order: Order, cohort: Cohort) -> VectorsContext:
        return VectorsContext(self.task.train_vectors(cohort.parameters, cohort.samples))

    def conclude(self, cohort: Cohort, context: VectorsContext) -> dict[str, Tensor]:
        _, targets, present = context.vectors
        wanted = targets.double() / self.task.settings.data.sequences.target_scale
        samples = present.double().sum(dim=1)
        mean = (wanted * present).sum(dim=1) / samples
        cohort.parameters[HEAD + "bias"].copy_(mean.unsqueeze(1))
        squares = (wanted - mean.unsqueeze(1)).square() * present
        return {"total": squares.sum(dim=1) / samples}
