"""A cohort of clients in memory, and the one loop in which every method trains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedproto_app.learners.learner import Context, Learner, Phase
from fedproto_app.optim import CohortAdam
from fedproto_app.randomness import torch_stream
from fedproto_app.settings import Settings
from fedproto_app.tasks.forecasting import CohortSamples


@dataclass
class Cohort:
    """Clients that train together: parameters and moments [K, …], and their samples."""

    parameters: dict[str, Tensor]
    adam: CohortAdam
    samples: CohortSamples

    @property
    def names(self) -> list[str]:
        return self.samples.names


def train_cohort(
    learner: Learner[Any], cohort: Cohort, context: Context, settings: Settings, server_round: int
) -> dict[str, Tensor]:
    """One round of local training, in place. Returns each loss term's mean over the last phase's
    steps, [K]."""
    losses: dict[str, Tensor] = {}
    for phase in learner.phases():
        for epoch in range(phase.epochs):
            generators = [
                torch_stream(settings.seed, name, server_round, phase.name, epoch)
                for name in cohort.names
            ]
            losses = _train_epoch(
                learner, cohort, context, phase, generators, settings.optimizer.learning_rate
            )
    return losses


def _train_epoch(
    learner: Learner[Any],
    cohort: Cohort,
    context: Context,
    phase: Phase,
    generators: Sequence[torch.Generator],
    learning_rate: float,
) -> dict[str, Tensor]:
    size = len(cohort.names)
    trainable = [name for name in cohort.parameters if name.startswith(phase.trainable)]
    sums: dict[str, Tensor] = {}
    context.start_epoch()
    for batch in learner.task.batches(cohort.samples, generators, learner.augmentation_low):
        active = len(batch.targets)
        leaves = {
            name: value[:active].detach().requires_grad_(name in trainable)
            for name, value in cohort.parameters.items()
        }
        terms = learner.loss(leaves, batch, context)
        total = torch.stack(list(terms.values())).sum(dim=0)  # (k,)
        # The clients' losses share no parameter, so the sum's gradient is each client's own. A
        # parameter may have no part in this round's loss (a projector without guidance): zeros.
        gradients = torch.autograd.grad(
            total.sum(), [leaves[name] for name in trainable], materialize_grads=True
        )
        cohort.adam.step(
            cohort.parameters, dict(zip(trainable, gradients, strict=True)), learning_rate
        )
        for name, term in {"total": total, **terms}.items():
            mean = sums.setdefault(name, torch.zeros(size, device=term.device))
            mean[:active] += term.detach()
    counts = torch.tensor(cohort.samples.batch_counts, device=total.device)
    return {name: value / counts for name, value in sums.items()}
