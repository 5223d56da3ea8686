"""Split the clients of an order into cohorts, whose size depends on the device's memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedproto_app.core.messages import Guidance, Order
from fedproto_app.data.shard import ClientData, Shard
from fedproto_app.node.device import free_memory, memory_of
from fedproto_app.settings import SMALL_COHORT
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, new_cohort
from fedproto_app.tasks.task import AnyTask

_WORK_SHARE = 1 / 2  # largest share of a GPU's memory for the cohort that is being processed
_MARGIN = 0.8  # of this share is used, because the memory needed is only estimated


class Share(NamedTuple):
    """The clients of one cohort of an order. place: the cohort's position in the order."""

    place: int
    clients: list[str]

    def limited_to(self, shard: Shard) -> Share:
        """Return the share without clients that are not, or no longer, in the shard."""
        return Share(self.place, [name for name in self.clients if name in shard.clients])


def shares_of(
    clients: Sequence[str],
    server_round: int,
    shard: Shard,
    task: AnyTask,
    cohort_size: int,
    first_place: int = 0,
) -> list[Share]:
    """Split these clients of an order into cohorts. The cohorts are the same in every process.

    The clients are sorted by their number of batches, the largest first. The clients of a cohort
    then have similar numbers of batches, so few wait long for the slowest. first_place: the number
    of cohorts that the order already has, for models of other widths.
    """
    names = [client.name for client in _longest_first(clients, server_round, shard, task)]
    firsts = range(0, len(names), cohort_size)
    return [Share(place, names[i : i + cohort_size]) for place, i in enumerate(firsts, first_place)]


def _longest_first(
    names: Sequence[str], server_round: int, shard: Shard, task: AnyTask
) -> list[ClientData]:
    clients = [shard.clients[name] for name in names if name in shard.clients]
    return sorted(clients, key=lambda client: (-task.steps(client, server_round), client.name))


def size_by_memory(learner: AnyLearner, shard: Shard, order: Order, *, trains: bool) -> int:
    """Return the cohort size for a GPU: as many clients as fit, but at least `SMALL_COHORT`."""
    device = learner.task.device
    room = min(_WORK_SHARE * memory_of(device), free_memory(device))
    return fitting(int(_MARGIN * room), learner, shard, order, trains=trains)


def fitting(room: int, learner: AnyLearner, shard: Shard, order: Order, *, trains: bool) -> int:
    """Return how many clients of an order fit into `room` bytes, but at least `SMALL_COHORT`.

    The estimate uses the clients with the most batches and with the most samples, because all
    others are padded to their size.
    """
    clients = _longest_first(order.clients, order.server_round, shard, learner.task)
    if not clients:
        return SMALL_COHORT
    fullest = max(clients, key=lambda client: client.train_samples)
    largest = {client.name: client for client in (clients[0], fullest)}.values()
    client_bytes = max(bytes_of(client, learner, order, trains=trains) for client in largest)
    return max(SMALL_COHORT, room // client_bytes)


def bytes_of(client: Any, learner: AnyLearner, order: Order, *, trains: bool) -> int:
    """Return an estimate of the bytes that this client adds to a cohort.

    The samples are counted once. The parameters, the optimiser's state and the client's memory are
    counted twice, because of gradients and the stored state. If the client trains, the activations
    that a batch saves for the backward pass are also counted twice. The estimate is the same on
    every device.
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
    """Return the bytes that the forward pass of a step saves, without parameters. Memory that
    tensors share is counted once."""
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
