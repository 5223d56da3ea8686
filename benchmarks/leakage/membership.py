"""Whether a window, or a day, was among the data that a client trained on.

One world trains on a random half of each client's train days, the other world on the other half.
Each window is a member in one world only, and the worlds differ in nothing but membership.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.leakage.attackers import (
    Estimate,
    Vectors,
    in_mean,
    in_products,
    mean_of_others,
    membership_area,
)
from benchmarks.leakage.victims import Victims
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.tasks.forecasting.task import CohortSamples

NOISE = 1.0  # standard deviation, on a mean day


class Membership(NamedTuple):
    """says: what the attacker sees. scored: what may be a member."""

    says: str
    scored: str
    area: Estimate


def memberships(victims: Victims) -> list[Membership]:
    """Run all attacks and return the area under the curve of each."""
    halves = [victims.halved(world) for world in (0, 1)]
    attacks = []
    models = [half.fedavg(range(len(half.names)), victims.rounds)[0] for half in halves]
    losses = [[_losses(half, model) for model in models] for half in halves]
    says = f"FedAvg's model after {victims.rounds} rounds"
    attacks.append(Membership(says, "a window, by its loss", _area(losses)))
    windows = [_regressors(half) for half in halves]
    grams = [[client.T @ client for client in clients] for clients in windows]
    leverages = [
        [list(map(in_products, clients, model_grams)) for model_grams in grams]
        for clients in windows
    ]
    says = "`analytic`'s sums"
    attacks.append(Membership(says, "a window, by its leverage", _area(leverages)))
    days = [_days(half) for half in halves]
    for noise in (0.0, NOISE):
        means = [_means(clients, noise, world) for world, clients in enumerate(days)]
        products = [[_products(clients, mean) for mean in means] for clients in days]
        says = "Kindred's prototype" + (f", noise of {noise:g}" if noise else "")
        attacks.append(Membership(says, "a day, by their product", _area(products)))
    return attacks


def _area(scores: Sequence[Sequence[Sequence[Vectors]]]) -> Estimate:
    """scores[half][world]: for each client, the scores of a half's windows against the observations
    of a world. A half's windows are members in the world of the same number."""
    clients = range(len(scores[0][0]))
    members, strangers = (
        [
            np.concatenate([scores[half][half ^ world][client] for half in (0, 1)])
            for client in clients
        ]
        for world in (0, 1)
    )
    return membership_area(members, strangers)


def _used(samples: CohortSamples) -> list[Tensor]:
    """Return the numbers of each client's train windows."""
    pairs = zip(samples.batches, samples.batch_counts, strict=True)
    return [batches[:count].flatten() for batches, count in pairs]


@torch.no_grad()
def _losses(victims: Victims, model: dict[str, Tensor]) -> list[Vectors]:
    """Return minus the squared errors of each client's train windows."""
    task, samples = victims.learner("fedavg").task, victims.samples()
    parameters = {n: v.expand(len(samples.names), *v.shape) for n, v in model.items()}
    forecast = task.forecast(parameters, samples.inputs)
    errors = (forecast - samples.targets).square().mean(dim=2).double()
    return [-errors[row, used].numpy() for row, used in enumerate(_used(samples))]


def _regressors(victims: Victims) -> list[Vectors]:
    """Return the regressors of each client's train windows, one step ahead, each [n, d]."""
    task, samples = victims.learner("fedavg").task, victims.samples()
    regressors = next(task.layout.each_regressors(samples.inputs)).double()
    return [regressors[row, used].numpy() for row, used in enumerate(_used(samples))]


def _days(victims: Victims) -> list[Vectors]:
    """Return the values of each client's train days, each [S, p]."""
    samples = victims.samples()
    pairs = zip(samples.batches, samples.batch_counts, strict=True)
    rows = enumerate(batches[:count] for batches, count in pairs)
    return [samples.targets[row, days, 0].double().numpy() for row, days in rows]


def _means(days: Sequence[Vectors], noise: float, world: int) -> list[Vectors]:
    """Return each client's mean day as it is sent."""
    rng = numpy_stream(0, "mean days", world)
    return [day.mean(axis=0) + noise * rng.standard_normal(day.shape[1]) for day in days]


def _products(days: Sequence[Vectors], means: Sequence[Vectors]) -> list[Vectors]:
    """Return scores of an attacker who knows the other clients' mean days."""
    mean_days = mean_of_others(np.stack(means))
    return list(map(in_mean, days, means, mean_days))
