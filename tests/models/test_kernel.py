"""The compiled kernel against torch: an epoch from the same model with the same batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import make_windows
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, train_cohort
from tests.helpers.tiny_cohort import cohort_of, tiny_learner

LENGTHS = (80, 60, 44)  # of the series. The clients have different numbers of batches
WIDE: dict[str, Any] = {"data.horizon": 3, "data.calendar": "week", "model.representation-dim": 32}


def ragged_cohort(learner: AnyLearner) -> Cohort:
    """Return clients with different lengths, two of them with missing values."""
    rng = np.random.default_rng(0)
    series = [ClientSeries(f"client {n}", rng.normal(size=n)) for n in LENGTHS]
    series[0].values[[7, 20, 21]] = np.nan
    series[2].values[9:14] = np.nan
    data = learner.task.settings.data
    return cohort_of(learner, [make_windows(client, data) for client in series])


def global_guidance(learner: AnyLearner) -> Guidance:
    """Return a shared model that is not the clients' initial one, so that it pulls."""
    initial = learner.initial_parameters()
    return Guidance({n: (v + 0.01).numpy() for n, v in initial.items() if learner.is_shared(n)})


def trained(method: str, kernel: str, changes: dict[str, Any]) -> tuple[dict[str, Any], Cohort]:
    """Return the losses and the cohort after two rounds of two epochs."""
    learner = tiny_learner(method, **{"kernel": kernel, "local-epochs": 2, **changes})
    cohort = ragged_cohort(learner)
    context = learner.context(global_guidance(learner), cohort)
    losses = {}
    for cohort.server_round in (1, 2):
        losses = train_cohort(learner, cohort, context)
    return losses, cohort


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("solo", {}),
        ("fedavg", WIDE),
        ("fedprox", {"fedprox.proximal-mu": 0.5}),
        ("fedrep", {"optimizer.learning-rate": 0.01}),
        ("ditto", {"ditto.proximal-lambda": 0.5, **WIDE}),
    ],
)
def test_equals_torch(method: str, changes: dict[str, Any]) -> None:
    pytest.importorskip("numba", reason="needs the extra fast")
    expected_losses, expected = trained(method, "torch", changes)
    losses, cohort = trained(method, "numba", changes)
    assert losses.keys() == expected_losses.keys()
    for name, loss in losses.items():
        torch.testing.assert_close(loss, expected_losses[name], rtol=0, atol=1e-6)
    for name, value in cohort.parameters.items():
        torch.testing.assert_close(value, expected.parameters[name], rtol=0, atol=1e-5)
    for kind, tensors in cohort.optimizer.state.items():
        for name, value in tensors.items():
            torch.testing.assert_close(value, expected.optimizer.state[kind][name])
