"""A cohort of clients, and the training loop of all methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedproto_app.core.randomness import torch_stream
from fedproto_app.maths.optim import CohortOptimizer
from fedproto_app.strategies.common.learner import AnyLearner, Context, Phase


@dataclass
class Cohort:
    """Clients that train together: their state, in tensors [K, …], and their samples.

    parameters: the model. memory: the method's state, with the fields of `Learner.initial_memory`.
    samples: the task's `Samples`. trains: false if the cohort is only evaluated or asked a
    question.
    """

    parameters: dict[str, Tensor]
    optimizer: CohortOptimizer
    memory: Any
    samples: Any
    server_round: int
    trains: bool

    @property
    def names(self) -> list[str]:
        names: list[str] = self.samples.names
        return names

    def memory_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the memory by field; "field/name" for those in a dictionary."""
        tensors: dict[str, Tensor] = {}
        for field, value in self.memory._asdict().items():
            if isinstance(value, Tensor):
                tensors[field] = value
            else:
                tensors |= {f"{field}/{name}": tensor for name, tensor in value.items()}
        return tensors


def new_cohort(
    learner: AnyLearner,
    parameters: dict[str, Tensor],
    samples: Any,
    server_round: int,
    *,
    trains: bool = True,
) -> Cohort:
    """Return a cohort with a new optimiser and empty memory."""
    trained = {
        name: value
        for name, value in parameters.items()
        if trains and any(phase.trains(name) for phase in learner.phases())
    }
    memory = _of_clients(learner.initial_memory(), len(samples.names), learner.task.device)
    optimizer = learner.make_optimizer(trained)
    return Cohort(parameters, optimizer, memory, samples, server_round, trains)


def _of_clients(memory: NamedTuple, clients: int, device: torch.device) -> NamedTuple:
    """Return one client's memory repeated for this many clients, with the client axis."""

    def with_clients(value: Tensor) -> Tensor:
        return value.to(device).expand(clients, *value.shape).clone()

    fields = {
        field: with_clients(value)
        if isinstance(value, Tensor)
        else {name: with_clients(tensor) for name, tensor in value.items()}
        for field, value in memory._asdict().items()
    }
    return memory._replace(**fields)


def train_cohort(learner: AnyLearner, cohort: Cohort, context: Context) -> dict[str, Tensor]:
    """Train the cohort for a round, in place.

    Return each loss term's mean over the steps of the last epoch that had it, [K], and the losses
    that `Learner.conclude` returns.
    """
    losses: dict[str, Tensor] = {}
    for phase in learner.phases():
        losses |= _train_phase(learner, cohort, context, phase)
    return {**losses, **learner.conclude(cohort, context)}


def fine_tuned(
    learner: AnyLearner, cohort: Cohort, context: Context, phase: Phase
) -> dict[str, Tensor]:
    """Return the cohort's parameters after this phase of training with a new optimiser.

    The cohort is not changed.
    """
    copied = {name: value.clone() for name, value in cohort.parameters.items()}
    trained = {name: value for name, value in copied.items() if phase.trains(name)}
    copy = replace(cohort, parameters=copied, optimizer=learner.make_optimizer(trained))
    _train_phase(learner, copy, context, phase)
    return copied


def _train_phase(
    learner: AnyLearner, cohort: Cohort, context: Context, phase: Phase
) -> dict[str, Tensor]:
    losses: dict[str, Tensor] = {}
    samples = cohort.samples
    if not any(phase.trains(name) and learner.is_encoder(name) for name in cohort.parameters):
        samples = learner.task.fix_encoder(cohort.parameters, samples)
    for epoch in range(phase.epochs):
        generators = [
            torch_stream(learner.training.seed, name, cohort.server_round, phase.name, epoch)
            for name in cohort.names
        ]
        losses |= _train_epoch(learner, cohort, context, phase, samples, generators)
    return losses


def _train_epoch(
    learner: AnyLearner,
    cohort: Cohort,
    context: Context,
    phase: Phase,
    samples: Any,
    generators: Sequence[torch.Generator],
) -> dict[str, Tensor]:
    size = len(cohort.names)
    trainable = [name for name in cohort.parameters if phase.trains(name)]
    # "total" exists even without a step: a method may need two batches and no client has them.
    sums = {"total": torch.zeros(size, device=learner.task.device)}
    steps = torch.zeros(size, device=learner.task.device)
    context.start_epoch()
    for batch in learner.batches(samples, generators):
        active = len(batch.inputs)
        leaves = {
            name: value[:active].detach().requires_grad_(name in trainable)
            for name, value in cohort.parameters.items()
        }
        terms = learner.loss(leaves, batch, context)
        total = torch.stack(list(terms.values())).sum(dim=0)  # (k,)
        # The clients' losses share no parameter, so the sum's gradient is each client's gradient. A
        # parameter outside this round's loss (a projector without guidance) has gradient zero.
        gradients = torch.autograd.grad(
            total.sum(), [leaves[name] for name in trainable], materialize_grads=True
        )
        cohort.optimizer.step(cohort.parameters, dict(zip(trainable, gradients, strict=True)))
        for name, term in {"total": total, **terms}.items():
            mean = sums.setdefault(name, torch.zeros(size, device=term.device))
            mean[:active] += term.detach()
        steps[:active] += 1
    return {name: value / steps.clamp(min=1) for name, value in sums.items()}
