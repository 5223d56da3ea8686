"""Measure the memory that a client adds to a cohort, by a training step of the client alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedproto_app.core.messages import Guidance, Order
from fedproto_app.strategies.common.cohort import Cohort, new_cohort
from fedproto_app.strategies.common.learner import AnyLearner


def bytes_of(client: Any, learner: AnyLearner, order: Order, *, trains: bool) -> int:
    """Return an estimate of the bytes that this client of the task adds to a cohort.

    Counted are the samples; twice the parameters, the optimiser's state and the client's memory,
    because of gradients and of the stored state; and, if the client trains, twice the activations
    that a batch saves for the backward pass. The estimate is the same on every device.
    """
    device, received, parameters = learner.task.device, order.guidance.arrays, {}
    for name, value in learner.initial_parameters().items():
        start = torch.from_numpy(received[name]) if name in received else value
        parameters[name] = start.to(device).unsqueeze(0).clone()
    samples = learner.task.gather([client], order.server_round)
    cohort = new_cohort(learner, parameters, samples, order.server_round, trains=trains)
    stored = [parameters, *cohort.optimizer.state.values(), cohort.memory_tensors()]
    saved = _saved(cohort, learner, order.guidance) if trains and learner.phases() else 0
    return 2 * (sum(map(_size, stored)) + saved) + _size(vars(samples))


def _saved(cohort: Cohort, learner: AnyLearner, guidance: Guidance) -> int:
    """Return the bytes that the forward pass of a step saves, without parameters; shared memory
    counts once."""
    learner.begin(cohort)
    context = learner.context(guidance, cohort)
    context.start_epoch()
    batch = next(learner.batches(cohort.samples, [torch.Generator()]), None)
    if batch is None:  # a method may need two batches
        return 0
    leaves = {name: value.detach().requires_grad_() for name, value in cohort.parameters.items()}
    parameters = {value.untyped_storage().data_ptr() for value in leaves.values()}
    saved: dict[int, Tensor] = {}  # by address, which cannot be reused while the tensor lives

    def note(value: Tensor) -> Tensor:
        saved[value.untyped_storage().data_ptr()] = value
        return value

    with saved_tensors_hooks(note, lambda value: value):
        learner.loss(leaves, batch, context)
    return sum(
        tensor.untyped_storage().nbytes()
        for address, tensor in saved.items()
        if address not in parameters
    )


def _size(values: Any) -> int:
    return sum(value.nbytes for value in values.values() if isinstance(value, Tensor))
