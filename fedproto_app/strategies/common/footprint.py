"""The memory that a client of a cohort takes, by a step of it alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedproto_app.core.messages import Order
from fedproto_app.strategies.common.cohort import Cohort, new_cohort
from fedproto_app.strategies.common.learner import AnyLearner


def bytes_of(client: Any, learner: AnyLearner, order: Order, *, trains: bool) -> int:
    """About the bytes that this client of the task adds to a cohort.

    Parameters, what the optimiser keeps, what the client remembers, and all of it again: as
    gradients, and as the state that stays.
    The client's samples. If it trains, what the forward pass of a batch saves for the backward
    pass, and as much again for the gradients of that. It is the same on every device.
    """
    device, parameters = learner.task.device, {}
    for name, value in learner.initial_parameters().items():
        start = torch.from_numpy(order.arrays[name]) if name in order.arrays else value
        parameters[name] = start.to(device).unsqueeze(0).clone()
    samples = learner.task.gather([client], order.server_round)
    cohort = new_cohort(learner, parameters, samples, order.server_round, trains=trains)
    kept = [parameters, *cohort.optimizer.state.values(), cohort.memory_tensors()]
    saved = _saved(cohort, learner, order) if trains and learner.phases() else 0
    return 2 * (sum(map(_size, kept)) + saved) + _size(vars(samples))


def _saved(cohort: Cohort, learner: AnyLearner, order: Order) -> int:
    """Bytes that the forward pass of a step saves, each memory once, parameters not."""
    learner.begin(cohort)
    context = learner.context(order, cohort)
    context.start_epoch()
    batch = next(learner.batches(cohort.samples, [torch.Generator()]), None)
    if batch is None:  # as where a method wants two batches
        return 0
    leaves = {name: value.detach().requires_grad_() for name, value in cohort.parameters.items()}
    known = {value.untyped_storage().data_ptr() for value in leaves.values()}
    found: dict[int, Tensor] = {}  # by their memory, which nothing else gets while they are here

    def note(value: Tensor) -> Tensor:
        found[value.untyped_storage().data_ptr()] = value
        return value

    with saved_tensors_hooks(note, lambda value: value):
        learner.loss(leaves, batch, context)
    return sum(one.untyped_storage().nbytes() for at, one in found.items() if at not in known)


def _size(values: Any) -> int:
    return sum(value.nbytes for value in values.values() if isinstance(value, Tensor))
