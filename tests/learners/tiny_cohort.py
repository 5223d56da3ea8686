"""Two clients of noise and the client half of a method, small enough to follow by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import ClientWindows, make_windows
from fedproto_app.learners.cohort import Cohort, train_cohort
from fedproto_app.learners.learner import Learner
from fedproto_app.methods import make_learner
from fedproto_app.optim import CohortAdam
from fedproto_app.settings import Settings, settings_from
from fedproto_app.tasks.forecasting import Batch, ForecastingTask
from fedproto_app.wire import Arrays, Order

NAMES = ["a", "b"]
PERIOD = 4  # rows of a batch
WIDTH = 4  # d_r

CPU = torch.device("cpu")


def tiny_learner(method: str, **changes: Any) -> Learner[Any]:
    """The method's client half on the smallest model, with these settings changed."""
    settings = settings_from(
        {
            "method": method,
            "data.period": PERIOD,
            "data.close-window": 2,
            "data.periodic-window": 2,
            "model.representation-dim": WIDTH,
            **changes,
        }
    )
    return make_learner(settings, ForecastingTask(settings))


def tiny_windows(settings: Settings) -> list[ClientWindows]:
    rng = np.random.default_rng(0)
    return [make_windows(ClientSeries(n, rng.normal(size=40)), settings.data) for n in NAMES]


def tiny_cohort(learner: Learner[Any]) -> Cohort:
    """Both clients at the initial parameters, which a test may change."""
    initial = learner.initial_parameters()
    parameters = {n: v.expand(len(NAMES), *v.shape).clone() for n, v in initial.items()}
    samples = learner.task.gather(tiny_windows(learner.settings))
    return Cohort(parameters, CohortAdam.fresh(parameters), samples)


def tiny_batches(learner: Learner[Any], cohort: Cohort) -> list[Batch]:
    """One epoch's batches in some order."""
    generators = [torch.Generator().manual_seed(0) for _ in NAMES]
    low = learner.augmentation_low
    return list(learner.task.batches(cohort.samples, generators, low))


def train(
    learner: Learner[Any], order: Order, cohort: Cohort | None = None
) -> tuple[dict[str, Tensor], Arrays, Cohort]:
    """One round of the clients. Returns the losses, what they send, and what they became."""
    clients = cohort or tiny_cohort(learner)
    context = learner.context(order, NAMES, CPU)
    losses = train_cohort(learner, clients, context, learner.settings, order.server_round)
    return losses, learner.contribution(context, NAMES, order.server_round), clients


def global_model(learner: Learner[Any]) -> Arrays:
    """What the server sends in the first round: the shared ones of the initial parameters."""
    initial = learner.initial_parameters()
    return {name: value.numpy() for name, value in initial.items() if learner.is_shared(name)}
