"""The vector at which the server compares heads."""

from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.core.errors import FederationError
from fedproto_app.data.shape import DataShape
from fedproto_app.settings import settings_from
from fedproto_app.strategies.fed_react.strategy import probe_vector
from fedproto_app.tasks.sequences.task import SequenceTask
from fedproto_app.tasks.table import make_task


def task_of(seed: int) -> SequenceTask:
    changes = {"blocks": 2, "channels": 3, "reduced-dim": 4, "output-dim": 5}
    task = make_task(
        settings_from(
            {
                "task": "sequence-regression",
                "method": "fed-react",
                "seed": seed,
                **{f"encoder.{key}": value for key, value in changes.items()},
            }
        ),
        DataShape((2,)),
    )
    assert isinstance(task, SequenceTask)
    return task


def test_the_probe_is_the_seeds_and_the_encoders() -> None:
    task = task_of(0)
    encoder = {name: value.numpy() for name, value in task.initial_encoder().items()}
    vector = probe_vector(encoder, task)
    assert vector.shape == (5,)
    assert np.array_equal(vector, probe_vector(encoder, task))
    assert not np.allclose(vector, probe_vector(encoder, task_of(1)))
    shifted = {**encoder, "encoder.linear.bias": encoder["encoder.linear.bias"] + 1}
    np.testing.assert_allclose(probe_vector(shifted, task), vector + 1, rtol=1e-5)


def test_an_encoder_that_makes_no_numbers() -> None:
    task = task_of(0)
    encoder = {name: value.numpy() for name, value in task.initial_encoder().items()}
    encoder["encoder.linear.bias"] = np.full(5, np.inf, np.float32)
    with pytest.raises(FederationError, match=r"fed-react\.similarity = 'predictions'"):
        probe_vector(encoder, task)
