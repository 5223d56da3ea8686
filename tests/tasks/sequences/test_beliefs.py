"""Heads that a task fits, and the metrics and shapes that a server accepts from clients."""

from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.linear_heads import fit_classifier, fit_regressor
from fedproto_app.tasks.sequences.task import (
    SequenceClassificationTask,
    SequenceRegressionTask,
    SequenceTask,
)
from tests.strategies.tiny_sequences import (
    sequence_task,
    vector_client,
)

REGRESSION = {"task": "sequence-regression", "data.sequences.target-scale": 10.0}
CNN = {"model.sequence-encoder": "causal-cnn"}
EVERY_TASK = [{}, CNN, REGRESSION, {**REGRESSION, **CNN}]


def test_heads_are_fitted_with_the_penalty_and_all_classes() -> None:
    task = sequence_task()
    data = vector_client("a", [0, 2, 0, 2, 2]).train
    vectors = np.concatenate(data.values)
    head = task.fit_head(vectors, data.targets, 0.3)
    assert np.array_equal(head, fit_classifier(vectors, data.targets, 3, 0.3))
    assert head[1].tolist() == [0, 0, 0, 0, -1]
    flat = np.array([[0, 0, 0, 0, 1], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], dtype=np.float32)
    gaps = [[0, 4, 1], [4, 4, 1], [0, 4, 1], [4, 4, 1], [4, 4, 1]]
    assert task.head_loss(flat, vectors, data.targets) == np.sum(gaps) / 5


def test_heads_of_regression_are_fitted_to_the_scaled_target() -> None:
    task = sequence_task(**REGRESSION)
    data = vector_client("a", [10.0, 20.0, -30.0, 5.0]).train
    vectors = np.concatenate(data.values)
    head = task.fit_head(vectors, data.targets, 0.3)
    assert np.array_equal(head, fit_regressor(vectors, data.targets / 10, 0.3))
    flat = np.array([[0, 0, 0, 0, 1]], dtype=np.float32)
    assert task.head_loss(flat, vectors, data.targets) == (0 + 1 + 16 + 0.25) / 4


@pytest.mark.parametrize(
    ("metrics", "fault"),
    [
        (
            {
                Metric("accuracy"): 1.0,
                Metric("accuracy", Model.LOCAL): 0.5,
                Metric("validation-error", Model.KEPT): 0.0,
            },
            None,
        ),
        ({Metric("accuracy"): 1.5}, "not fractions: accuracy = 1.5"),
        ({Metric("accuracy", Model.LOCAL): float("nan")}, "not fractions: local-accuracy = nan"),
        ({Metric("validation-error", Model.KEPT): -0.1}, "not fractions"),
        ({Metric("rmse"): 0.5}, "'rmse' is no metric of classification"),
    ],
)
def test_fractions_that_a_server_accepts(metrics: dict[Metric, float], fault: str | None) -> None:
    reason = SequenceClassificationTask.metrics_fault(metrics)
    assert (reason is None) if fault is None else (reason is not None and fault in reason)


@pytest.mark.parametrize(
    ("metrics", "fault"),
    [
        (
            {
                Metric("rmse"): 12.5,
                Metric("mae", Model.LOCAL): 3.0,
                Metric("validation-rmse", Model.KEPT): 0.0,
            },
            None,
        ),
        ({Metric("rmse"): float("inf")}, "not finite and positive: rmse = inf"),
        ({Metric("rmse", Model.KEPT): float("nan")}, "not finite and positive"),
        ({Metric("mae"): -1.0}, "not finite and positive"),
        ({Metric("rmse"): 1e31}, "not finite and positive"),
        ({Metric("accuracy"): 0.5}, "'accuracy' is no metric of regression"),
    ],
)
def test_errors_that_a_server_accepts(metrics: dict[Metric, float], fault: str | None) -> None:
    reason = SequenceRegressionTask.metrics_fault(metrics)
    assert (reason is None) if fault is None else (reason is not None and fault in reason)


@pytest.mark.parametrize(
    ("task", "inputs", "classes", "fault"),
    [
        (SequenceClassificationTask, (3,), 10, None),
        (SequenceClassificationTask, (3,), 1, None),
        (SequenceClassificationTask, (3,), 0, "0 classes, expected 1 … 10000"),
        (SequenceClassificationTask, (3,), 10_001, "10001 classes"),
        (SequenceClassificationTask, (1, 8, 8), 10, "(1, 8, 8), not sequences"),
        (SequenceClassificationTask, (), 10, "not sequences"),
        (SequenceClassificationTask, (4097,), 10, "4097 dimensions, more than 4096"),
        (SequenceRegressionTask, (8,), 0, None),
        (SequenceRegressionTask, (8,), 2, "2 classes, where a real number is predicted"),
        (SequenceRegressionTask, (8, 100), 0, "not sequences"),
    ],
)
def test_shapes_that_a_server_accepts(
    task: type[SequenceTask], inputs: tuple[int, ...], classes: int, fault: str | None
) -> None:
    reason = task.shape_fault(DataShape(inputs, tuple(f"c{n}" for n in range(classes))))
    assert (reason is None) if fault is None else (reason is not None and fault in reason)
