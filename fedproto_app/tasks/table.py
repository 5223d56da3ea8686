"""The table of tasks: what `task = "…"` selects."""

from __future__ import annotations

from dataclasses import replace

import torch

from fedproto_app.data.shape import DataShape
from fedproto_app.metrics import Metric, Model
from fedproto_app.settings import Settings
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceClassificationTask, SequenceRegressionTask
from fedproto_app.tasks.task import AnyTask

TASKS: dict[str, type[AnyTask]] = {
    "forecasting": ForecastingTask,
    "classification": ClassificationTask,
    "sequence-classification": SequenceClassificationTask,
    "sequence-regression": SequenceRegressionTask,
}


def make_task(settings: Settings, shape: DataShape, device: torch.device | None = None) -> AnyTask:
    """The task that the settings choose, on data of this shape."""
    return TASKS[settings.task](settings, shape, device)


def expected_metrics(settings: Settings) -> tuple[Metric, ...]:
    """What an evaluated client must report: of its latest model and of its kept one."""
    required = TASKS[settings.task].required_metrics(settings)
    return (*required, *(replace(metric, model=Model.KEPT) for metric in required))
