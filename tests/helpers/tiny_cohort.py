"""Two clients of noise and the client half of a method, small enough to follow by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import ClientWindows, make_windows
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.common.learner import (
    AnyLearner,
    Cohort,
    make_learner,
    new_cohort,
    train_cohort,
)
from fedproto_app.tasks.forecasting.task import Batch, ForecastingTask

NAMES = ["a", "b"]
PERIOD = 4  # rows of a batch
WIDTH = 4  # d_r


def tiny_learner(method: str, **changes: Any) -> AnyLearner:
    """The method's client half on the smallest model, with these settings changed."""
    settings = settings_from(
        {
            "method": method,
            "data.period": PERIOD,
            "data.close-window": 2,
            "data.periodic-window": 2,
            "data.lags": "",
            "model.representation-dim": WIDTH,
            **changes,
        }
    )
    return make_learner(settings, ForecastingTask(settings))


def tiny_windows(settings: Settings) -> list[ClientWindows]:
    rng = np.random.default_rng(0)
    return [make_windows(ClientSeries(n, rng.normal(size=40)), settings.data) for n in NAMES]


def complete_and_holed(settings: Settings, values: np.ndarray[Any, Any]) -> list[ClientWindows]:
    """Two clients with these values, where the second lacks one of them."""
    holed = np.r_[values[:20], np.nan, values[21:]]
    series = zip(NAMES, (values, holed), strict=True)
    return [make_windows(ClientSeries(name, array), settings.data) for name, array in series]


def cohort_of(learner: AnyLearner, clients: Sequence[Any], server_round: int = 1) -> Cohort:
    """These clients at the initial parameters, which a test may change."""
    initial = learner.initial_parameters()
    parameters = {n: v.expand(len(clients), *v.shape).clone() for n, v in initial.items()}
    samples = learner.task.gather(clients, server_round)
    return new_cohort(learner, parameters, samples, server_round)


def tiny_cohort(learner: AnyLearner) -> Cohort:
    return cohort_of(learner, tiny_windows(learner.task.settings))


def tiny_batches(learner: AnyLearner, cohort: Cohort) -> list[Batch]:
    """One epoch's batches in some order."""
    generators = [torch.Generator().manual_seed(0) for _ in NAMES]
    return list(learner.batches(cohort.samples, generators))


def train(
    learner: AnyLearner, guidance: Guidance, cohort: Cohort | None = None, server_round: int = 1
) -> tuple[dict[str, Tensor], Arrays, Cohort]:
    """One round of the clients. Returns the losses, what they send, and what they became."""
    clients = cohort or tiny_cohort(learner)
    clients.server_round = server_round
    context = learner.context(guidance, clients)
    losses = train_cohort(learner, clients, context)
    contribution = learner.contribution(clients, context)
    return losses, contribution.arrays, clients


def global_model(learner: AnyLearner) -> Arrays:
    """What the server sends in the first round: the shared ones of the initial parameters."""
    initial = learner.initial_parameters()
    return {name: value.numpy() for name, value in initial.items() if learner.is_shared(name)}
