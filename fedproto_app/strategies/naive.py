"""Baselines without learning: a series' newest value, a client's most frequent class, or the mean
of its targets.

`seasonal_naive` forecasts the value one period before, and `mean` the mean of the series. None of
these baselines learns from the inputs or exchanges anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from fedproto_app.core.method import Method, RunSettings
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.class_gaussian import log_loss, log_prior
from fedproto_app.models.forecaster import COEFFICIENTS
from fedproto_app.models.model import HEAD, LinearHeadModel
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.closed_form import ClosedFormLearner, new_stage
from fedproto_app.strategies.common.learner import Cohort, Context
from fedproto_app.strategies.solo import SoloStrategy
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceClassificationTask, SequenceRegressionTask


class ConstantModel(LinearHeadModel):
    """A model whose representation is a single 0, for inputs [K, B, …] of any kind."""

    def __init__(self, outputs: int) -> None:
        super().__init__(1, outputs)

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        return inputs[0].new_zeros(*inputs[0].shape[:2], 1)


def constant(settings: Settings, shape: DataShape) -> ConstantModel:
    """Return a model whose predictions do not depend on the input."""
    return ConstantModel(len(shape.classes) or 1)


class MeanLearner(ClosedFormLearner[Context, ForecastingTask]):
    """Forecasts every future value as the mean of the client's train part, which is 0 on its scale.

    This is a linear forecast whose coefficients stay 0.
    """

    def conclude(self, cohort: Cohort, context: Context) -> dict[str, Tensor]:
        return {"total": self.task.training_error(cohort.parameters, cohort.samples)}


class _CopyingLearner(MeanLearner):
    """A linear forecast with a single coefficient, 1, which repeats a value.

    row: the row of `ForecastingTask.naive_forecasts`.
    """

    row: ClassVar[int]

    def initial_parameters(self) -> dict[str, Tensor]:
        parameters = self.task.initial_parameters()
        weights = self.task.naive_forecasts()[self.row, None]
        parameters[COEFFICIENTS].copy_(self.task.layout.regressor_copies(weights)[0])
        return parameters


class NaiveLearner(_CopyingLearner):
    """Forecasts every future value as the newest value."""

    row = 0


class SeasonalNaiveLearner(_CopyingLearner):
    """Forecasts every future value as the value one period before it."""

    row = 1


class CountsMemory(NamedTuple):
    """stages: how many stages a client has taken in. counts: their samples by class, [C]."""

    stages: Tensor
    counts: Tensor


class FrequentClassLearner(
    ClosedFormLearner[Context, ClassificationTask | SequenceClassificationTask]
):
    """Predicts from the class frequencies of all stages so far."""

    def initial_memory(self) -> CountsMemory:
        counts = torch.zeros(len(self.task.shape.classes), dtype=torch.int64)
        return CountsMemory(stages=torch.tensor(0), counts=counts)

    def conclude(self, cohort: Cohort, context: Context) -> dict[str, Tensor]:
        parameters = cohort.parameters
        features, labels, present = self.task.train_vectors(parameters, cohort.samples)
        counts = cohort.memory.counts
        members = one_hot(labels, counts.shape[1]) * present.long().unsqueeze(2)
        counts += members.sum(dim=1) * new_stage(cohort).unsqueeze(1)
        parameters[HEAD + "bias"].copy_(log_prior(counts))
        scores = self.task.predict(parameters, features)
        return {"total": log_loss(scores.double(), labels, present)}


class MeanNumberLearner(ClosedFormLearner[Context, SequenceRegressionTask]):
    """Predicts the mean target of the client's train sequences."""

    def conclude(self, cohort: Cohort, context: Context) -> dict[str, Tensor]:
        _, targets, present = self.task.train_vectors(cohort.parameters, cohort.samples)
        scaled_targets = targets.double() / self.task.settings.data.sequences.target_scale
        samples = present.double().sum(dim=1)
        mean = (scaled_targets * present).sum(dim=1) / samples
        cohort.parameters[HEAD + "bias"].copy_(mean.unsqueeze(1))
        squares = (scaled_targets - mean.unsqueeze(1)).square() * present
        return {"total": squares.sum(dim=1) / samples}


def rounds_by_stage(settings: RunSettings) -> int:
    """Return the number of rounds: one per stage, or `rounds` if the data bring their stages."""
    if settings.task != "classification":
        return 1
    partition = settings.data.partition
    return settings.rounds if partition.scheme == "given" else partition.stages


METHOD = Method(
    name="naive",
    title={
        "forecasting": "last value",
        "classification": "most frequent class",
        "sequence-classification": "most frequent class",
        "sequence-regression": "mean target",
    },
    strategy=SoloStrategy,
    learner={
        "forecasting": NaiveLearner,
        "classification": FrequentClassLearner,
        "sequence-classification": FrequentClassLearner,
        "sequence-regression": MeanNumberLearner,
    },
    model={
        "forecasting": "fedproto_app.tasks.forecasting.task:linear_model",
        "classification": f"{__name__}:constant",
        "sequence-classification": f"{__name__}:constant",
        "sequence-regression": f"{__name__}:constant",
    },
    rounds=rounds_by_stage,
)
