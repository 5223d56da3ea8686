"""What the server does with heads in every method that shares them inside clusters.

In a round clients fit a head and send it (train). The server makes the clusters' heads of them. A
client whose cluster has a new head gets it and is evaluated with it (evaluate). Each node gets the
encoder once. Methods say in `cluster` how clients come to their clusters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey, key_arrays, keys_of
from fedproto_app.core.round import of_group, under
from fedproto_app.core.sends import Expected
from fedproto_app.errors import FederationError
from fedproto_app.maths.linear_heads import Head
from fedproto_app.messages import Arrays, Order, Refusal
from fedproto_app.server.federation import Federation
from fedproto_app.server.round_log import NodeReply
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.strategy import PersonalStrategy
from fedproto_app.strategies.fed_react import FedReactSettings
from fedproto_app.strategies.fed_react.learner import HEAD, HEADS
from fedproto_app.tasks.sequences.task import LARGEST_HEAD, SequenceTask
from fedproto_app.tasks.table import make_task
from fedproto_app.wire import numpy_arrays


@dataclass(frozen=True)
class Fitted:
    """What a client sent in a round: its head, the number of its samples, what else it sent."""

    head: Head
    samples: int
    others: Mapping[str, NDArray[np.float32]]


class ClusteredHeadStrategy(PersonalStrategy):
    """Heads in, the clusters' heads out."""

    section: FedReactSettings

    def __init__(
        self, settings: Settings, section: FedReactSettings, federation: Federation
    ) -> None:
        super().__init__(settings, section, federation)
        self._compare_numbers()
        task = make_task(settings, federation.shape)
        assert isinstance(task, SequenceTask)
        self.task = task
        self.head_shape = (task.outputs, task.representation_dim + 1)
        self._heard: set[ClientKey] = set()
        self._asked: set[int] = set()  # Flower's ids of the nodes last asked
        self._equipped: set[int] = set()  # of those that have the encoder
        self._pending: dict[ClientKey, Head] = {}  # heads to send before the next evaluation

    def shown(self) -> Arrays:
        """Arrays that every client sees before it fits its head."""
        return {}

    def _compare_numbers(self) -> None:
        """Fewer clients than clusters are a fault, unless more of them can still join."""
        roster, clusters = self.federation.members.roster, self.section.clusters
        clients = len(roster.clients())
        if clusters <= clients:
            return
        fault = f"fed-react.clusters = {clusters}: more than the {clients} clients there are"
        if roster.partitions():  # a simulation is complete from the start
            raise FederationError(fault)
        log(WARNING, "%s so far; others may join", fault)

    @abstractmethod
    def cluster(
        self, fitted: Mapping[ClientKey, Fitted], server_round: int
    ) -> dict[ClientKey, Head]:
        """Take in the heads of a round; returns the new head of each client that gets one.

        fitted: in the order of the clients' names, so that sums are reproducible.
        """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        encoder, shown = numpy_arrays(arrays), self.shown()
        there = self.federation.members.clients()
        # Counted from this phase's start, so that a given encoder changes nothing.
        of_task = server_round - self.settings.pretraining_rounds
        chosen = self.federation.selection.choose(there, of_task, set(there) - self._heard)

        def order(keys: list[ClientKey]) -> Order:
            plain = self.federation.pipeline.order(keys, server_round)
            lacks = self._node_id(keys[0].node) not in self._equipped
            return replace(plain, arrays={**(encoder if lacks else {}), **shown})

        return self._ask(chosen, order, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        drawn = self.section.samples or None  # |M_t|, the weights of the mean
        fitted = {
            key: one
            for answer in self._answers(replies, self.expected(server_round), drawn)
            for key, one in zip(answer.keys(), _parted(answer), strict=True)
            if self._is_bounded(key, one)
        }
        self._heard |= set(fitted)
        self._pending |= self.cluster(dict(sorted(fitted.items())), server_round)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        if not self.federation.selection.evaluates(server_round):
            return []

        def order(keys: list[ClientKey]) -> Order:
            plain = self.federation.pipeline.order(keys, server_round)
            guided = [key for key in keys if key in self._pending]
            if not guided:
                return plain
            heads = np.stack([self._pending[key] for key in guided])
            names = [key.client for key in guided]
            return replace(plain, arrays={HEADS: heads}, guided=names)

        there = [
            key
            for key in self.federation.members.clients()
            if key in self._heard and self._node_id(key.node) in self._equipped
        ]
        return self._ask(there, order, MessageType.EVALUATE)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        for answer in self._answers(replies, Expected()):
            for key in answer.keys():  # noqa: SIM118 - no dictionary
                self._pending.pop(key, None)
        return None

    def state(self) -> dict[str, NDArray[Any]]:
        """The clients that have sent a head, and the heads that did not reach their clients."""
        if not self._heard:
            return {}
        shape = (len(self._pending), *self.head_shape)
        heads = np.array(list(self._pending.values()), np.float32).reshape(shape)
        heard, pending = key_arrays(sorted(self._heard)), key_arrays(self._pending)
        return under("heard", heard) | under("pending", {**pending, "heads": heads})

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Nodes get the encoder once more: nobody knows which of them have it."""
        if heard := of_group(state, "heard"):
            self._heard = set(keys_of(heard))
            pending = of_group(state, "pending")
            self._pending = dict(zip(keys_of(pending), pending["heads"], strict=True))

    def head_of(self, members: Iterable[Fitted]) -> NDArray[np.float64]:
        """A cluster's head of those of its clients: the mean weighted by samples, or by another
        rule, which counts clients alike."""
        if self.averaging.is_mean:
            return weighted_head(members)
        return self.averaging.rows(np.stack([one.head for one in members])).astype(np.float64)

    def _is_bounded(self, key: ClientKey, fitted: Fitted) -> bool:
        """Whether the head can be used; if not, its client is refused."""
        largest = float(np.abs(fitted.head).max())
        if largest > LARGEST_HEAD:
            reason = f"its head holds ±{largest:g}, more than {LARGEST_HEAD:g}"
            self.federation.history.refuse(Refusal(key.node, key.client, reason))
        return largest <= LARGEST_HEAD

    def _ask(
        self, keys: list[ClientKey], make: Callable[[list[ClientKey]], Order], message_type: str
    ) -> list[Message]:
        self._asked = {self._node_id(key.node) for key in keys}
        return self.federation.pipeline.orders(keys, make, message_type)

    def _answers(
        self, replies: Iterable[Message], expected: Expected, most_samples: int | None = None
    ) -> list[NodeReply]:
        """The usable replies; notes which nodes have the encoder by them.

        A node that did not answer may have lost its disk, and gets the encoder once more.
        """
        answers = self.federation.pipeline.read(replies, expected, most_samples)
        self._equipped -= self._asked
        self._equipped |= {self._node_id(answer.node) for answer in answers}
        return answers

    def _node_id(self, node: str) -> int:
        return self.federation.members.node_id(node)


def _parted(answer: NodeReply) -> list[Fitted]:
    """The reply client by client."""
    arrays: dict[str, Any] = dict(answer.reply.arrays)
    heads = arrays.pop(HEAD)
    return [
        Fitted(head, samples, {name: array[row] for name, array in arrays.items()})
        for row, (head, samples) in enumerate(zip(heads, answer.reply.samples, strict=True))
    ]


def weighted_head(heads: Iterable[Fitted]) -> NDArray[np.float64]:
    """θ^c_t = Σ |M^k|·θ^k / Σ |M^j| over a cluster's clients (Fed-REACT, Algorithm 2, line 9)."""
    every = list(heads)
    weights = np.array([one.samples for one in every], dtype=np.float64)
    stacked = np.stack([one.head for one in every]).astype(np.float64)
    mean: NDArray[np.float64] = np.tensordot(weights / weights.sum(), stacked, axes=1)
    return mean
