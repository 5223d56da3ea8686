"""The cohorts of an order: whose, how many clients each has, and what to do if that is too many."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch

from fedproto_app.core.messages import Order
from fedproto_app.data.shard import ClientData, Shard
from fedproto_app.node.device import free_memory, memory_of
from fedproto_app.node.part_reply import CohortReply
from fedproto_app.settings import SMALL_COHORT
from fedproto_app.strategies.common.footprint import bytes_of
from fedproto_app.strategies.common.learner import AnyLearner
from fedproto_app.tasks.task import AnyTask

_WORK_SHARE = 1 / 2  # of a GPU's memory, at most, for a cohort at work
_MARGIN = 0.8  # of that, as the estimate is one

_log = logging.getLogger(__name__)


class Share(NamedTuple):
    """The clients of one cohort of an order. place: the cohort's among those of the order."""

    place: int
    clients: list[str]

    def of(self, shard: Shard) -> Share:
        """Without clients that the shard does not have (any more)."""
        return Share(self.place, [name for name in self.clients if name in shard.clients])


def shares_of(
    order: Order, shard: Shard, task: AnyTask, cohort_size: int, first_place: int = 0
) -> list[Share]:
    """The cohorts of an order: clients with most batches first, equal for every process.

    So those of a cohort have nearly equally many, and few wait for the longest.
    first_place: how many cohorts the order has already, of models of other widths.
    """
    names = [one.name for one in _in_order(order, shard, task)]
    firsts = range(0, len(names), cohort_size)
    return [Share(place, names[i : i + cohort_size]) for place, i in enumerate(firsts, first_place)]


def _in_order(order: Order, shard: Shard, task: AnyTask) -> list[ClientData]:
    clients = [shard.clients[name] for name in order.clients if name in shard.clients]
    return sorted(clients, key=lambda one: (-task.steps(one, order.server_round), one.name))


def size_by_memory(learner: AnyLearner, shard: Shard, order: Order, *, trains: bool) -> int:
    """How many clients work together: `SMALL_COHORT` on a CPU, on a GPU as many as it holds."""
    device = learner.task.device
    if device.type == "cpu":
        return SMALL_COHORT
    room = min(_WORK_SHARE * memory_of(device), free_memory(device))
    return fitting(int(_MARGIN * room), learner, shard, order, trains=trains)


def fitting(room: int, learner: AnyLearner, shard: Shard, order: Order, *, trains: bool) -> int:
    """How many clients of an order work together in so many bytes, at least `SMALL_COHORT`.

    By the one with most batches and the one with most samples: the others are padded to theirs.
    """
    clients = _in_order(order, shard, learner.task)
    if not clients:
        return SMALL_COHORT
    largest = {one.name: one for one in (clients[0], max(clients, key=_train_samples))}
    needed = max(bytes_of(one, learner, order, trains=trains) for one in largest.values())
    return max(SMALL_COHORT, room // needed)


def _train_samples(client: ClientData) -> int:
    return client.train_samples


def in_halves(
    work: Callable[[Order, Share], CohortReply], order: Order, share: Share
) -> list[CohortReply]:
    """What a cohort does; if the device has not the memory, what its halves do, one by one.

    work: changes nothing that stays before all is done that takes much of the device's memory.
    Raises MemoryError if a single client is too much.
    """
    try:
        return [work(order, share)]
    except torch.OutOfMemoryError:
        if len(share.clients) == 1:
            raise MemoryError(f"{share.clients[0]} alone is too much for the device") from None
    # Not in the handler: what it handles holds on to the cohort's tensors.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    middle = -(-len(share.clients) // 2)
    _log.warning(
        "a cohort of %d clients is too much for the device: %d at once", len(share.clients), middle
    )
    halves = share.clients[:middle], share.clients[middle:]
    return [one for half in halves for one in in_halves(work, order, Share(share.place, half))]
