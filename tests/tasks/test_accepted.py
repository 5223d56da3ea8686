"""Metrics of clients and shapes of data that a server accepts, for every task."""

from __future__ import annotations

from math import inf, nan

import pytest

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.data.shape import DataShape
from fedproto_app.tasks.forecasting.metrics import FIRST_BLOCK, block_metric
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceClassificationTask, SequenceRegressionTask
from fedproto_app.tasks.task import AnyTask

SERIES, IMAGES = ForecastingTask, ClassificationTask
CLASSES, NUMBERS = SequenceClassificationTask, SequenceRegressionTask
LOCAL, KEPT = Model.LOCAL, Model.KEPT


def require_fault(actual: str | None, fault: str | None) -> None:
    assert actual is None if fault is None else actual is not None and fault in actual


@pytest.mark.parametrize(
    ("task", "metrics", "fault"),
    [
        (SERIES, {Metric("seasonal-difference"): 0.0, Metric("mean-size"): 1e-30}, None),
        (SERIES, {Metric("mean-size"): 1e-31}, "too small to divide by: mean-size = 1e-31"),
        (SERIES, {Metric("seasonal-difference"): -1.0}, "not finite and positive"),
        (SERIES, {Metric("seasonal-difference"): inf}, "not finite and positive"),
        (SERIES, {Metric("mean-size"): nan}, "not finite and positive"),
        (SERIES, {Metric("mse"): 1e-31, Metric("mse/step-24"): 1.0}, None),
        (SERIES, {Metric("mase"): 1.0}, "'mase' is no metric of forecasts"),
        (SERIES, {Metric("mse/step-24"): nan}, None),  # no target so many steps ahead
        (SERIES, {Metric("mse/step-24"): inf}, "not finite and positive"),
        (SERIES, {Metric("mse"): nan}, "not finite and positive"),
        (SERIES, {Metric("mse/step-0"): 1.0}, "'mse/step-0' is no metric of forecasts"),
        (SERIES, {Metric("mse/step-01"): 1.0}, "'mse/step-01' is no metric of forecasts"),
        (SERIES, {Metric("mse/step-99999"): 1.0}, "'mse/step-99999' is no metric of forecasts"),
        (SERIES, {Metric("mse/step-٣"): 1.0}, "'mse/step-٣' is no metric of forecasts"),
        (SERIES, {FIRST_BLOCK: -7.0, block_metric(0): 0.5}, None),  # a block before 1970
        (SERIES, {block_metric(0): -0.5}, "not finite"),
        (IMAGES, {Metric("accuracy"): 1.0, Metric("validation-error", KEPT): 0.0}, None),
        (IMAGES, {Metric("accuracy", LOCAL, rule="local-prototypes"): 0.5}, None),
        (IMAGES, {Metric("count/class-3"): 7.0, Metric("correct/class-3"): 7.0}, None),
        (IMAGES, {Metric("count/stage-1", LOCAL): 1e6}, None),
        (IMAGES, {Metric("accuracy"): 1.5}, "not finite and positive: accuracy = 1.5"),
        (IMAGES, {Metric("accuracy", LOCAL): nan}, "not finite"),
        (IMAGES, {Metric("validation-error", KEPT): -0.1}, "not finite and positive"),
        (IMAGES, {Metric("count/stage-1"): 1e300}, "not finite and positive"),
        (IMAGES, {Metric("correct/stage-1"): 3.0, Metric("count/stage-1"): 2.0}, "more correct a"),
        (IMAGES, {Metric("correct/class-1", LOCAL): 1.0}, "more correct answers than images"),
        (IMAGES, {Metric("mse"): 0.5}, "'mse' is no metric of classification"),
        (IMAGES, {Metric("count/stage-x"): 1.0}, "no metric"),
        (CLASSES, {Metric("accuracy"): 1.0, Metric("accuracy", LOCAL): 0.5}, None),
        (CLASSES, {Metric("validation-error", KEPT): 0.0}, None),
        (CLASSES, {Metric("accuracy"): 1.5}, "its metrics are not 0 … 1: accuracy = 1.5"),
        (CLASSES, {Metric("accuracy", LOCAL): nan}, "not 0 … 1: local-accuracy = nan"),
        (CLASSES, {Metric("validation-error", KEPT): -0.1}, "not 0 … 1"),
        (CLASSES, {Metric("rmse"): 0.5}, "'rmse' is no metric of this task"),
        (NUMBERS, {Metric("rmse"): 12.5, Metric("mae", LOCAL): 3.0}, None),
        (NUMBERS, {Metric("validation-rmse", KEPT): 0.0}, None),
        (NUMBERS, {Metric("rmse"): inf}, "not 0 … 1e+30: rmse = inf"),
        (NUMBERS, {Metric("rmse", KEPT): nan}, "not 0 … 1e+30"),
        (NUMBERS, {Metric("mae"): -1.0}, "not 0 … 1e+30"),
        (NUMBERS, {Metric("rmse"): 1e31}, "not 0 … 1e+30"),
        (NUMBERS, {Metric("accuracy"): 0.5}, "'accuracy' is no metric of this task"),
    ],
)
def test_metrics(task: type[AnyTask], metrics: dict[Metric, float], fault: str | None) -> None:
    require_fault(task.metrics_fault(metrics), fault)


def test_shapes_of_series() -> None:
    assert SERIES.shape_fault(DataShape(columns=("temperature",))) is None
    require_fault(SERIES.shape_fault(DataShape((1,))), "no series")
    require_fault(SERIES.shape_fault(DataShape((), ("a",))), "no series")


@pytest.mark.parametrize(
    ("task", "inputs", "classes", "fault"),
    [
        (IMAGES, (3, 32, 32), 10, None),
        (IMAGES, (8, 8), 10, "not images"),
        (IMAGES, (4, 32, 32), 10, "not images of 1 or 3 channels"),
        (IMAGES, (3, 20000, 20000), 10, "larger than 1024"),
        (IMAGES, (3, 32, 32), 0, "0 classes"),
        (IMAGES, (3, 32, 32), 20000, "20000 classes"),
        (CLASSES, (3,), 10, None),
        (CLASSES, (3,), 1, None),
        (CLASSES, (3,), 0, "0 classes, expected 1 … 10000"),
        (CLASSES, (3,), 10_001, "10001 classes"),
        (CLASSES, (1, 8, 8), 10, "(1, 8, 8), not sequences"),
        (CLASSES, (), 10, "not sequences"),
        (CLASSES, (4097,), 10, "4097 dimensions, more than 4096"),
        (NUMBERS, (8,), 0, None),
        (NUMBERS, (8,), 2, "2 classes, where a real number is predicted"),
        (NUMBERS, (8, 100), 0, "not sequences"),
    ],
)
def test_shapes(
    task: type[AnyTask], inputs: tuple[int, ...], classes: int, fault: str | None
) -> None:
    shape = DataShape(inputs, tuple(f"c{number}" for number in range(classes)))
    require_fault(task.shape_fault(shape), fault)
