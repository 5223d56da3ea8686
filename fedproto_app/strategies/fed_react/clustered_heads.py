"""Base of the server half of methods that share heads within clusters.

In a round, clients fit a head and send it (train). The server combines these heads into one head
for each cluster. A client whose cluster has a new head gets it and is evaluated with it (evaluate).
Each node gets the encoder once. Methods implement `cluster`, which assigns clients to clusters.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from logging import WARNING

import numpy as np
from flwr.common.logger import log
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey, key_arrays, keys_of
from fedproto_app.core.errors import FederationError
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.round import ClientReply, Round, of_group, under
from fedproto_app.core.stored import AnyArray
from fedproto_app.maths.linear_heads import Head
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import PersonalStrategy
from fedproto_app.strategies.fed_react import FedReactSettings
from fedproto_app.strategies.fed_react.learner import HEAD, HEADS
from fedproto_app.tasks.sequences.task import LARGEST_HEAD, SequenceTask
from fedproto_app.tasks.table import make_task

Fitted = Mapping[ClientKey, ClientReply]  # the heads that clients sent in a round


class ClusteredHeadStrategy(PersonalStrategy):
    """Takes the clients' heads and sends the clusters' heads."""

    section: FedReactSettings
    final_after_training = False

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self._compare_numbers()
        task = make_task(settings, federation.shape)
        assert isinstance(task, SequenceTask)
        self.task = task
        self.head_shape = (task.outputs, task.representation_dim + 1)
        self._heard: set[ClientKey] = set()
        self._equipped: set[int] = set()  # Flower's ids of the nodes that have the encoder
        self._pending: dict[ClientKey, Head] = {}  # heads to send before the next evaluation

    def _compare_numbers(self) -> None:
        """Raise `FederationError` if a simulation has fewer clients than clusters, else warn."""
        members, clusters = self.federation.members, self.section.clusters
        clients = len(members.clients())
        if clusters <= clients:
            return
        fault = f"fed-react.clusters = {clusters}: more than the {clients} clients there are"
        if members.is_simulation:
            raise FederationError(fault)
        log(WARNING, "%s so far; others may join", fault)

    @abstractmethod
    def cluster(self, fitted: Fitted, round_: Round) -> dict[ClientKey, Head]:
        """Take in the heads of a round, and return the new head of each client that gets one.

        fitted: the heads in the order of the clients' names, so that sums are reproducible.
        """

    def chosen(self, eligible: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Choose by the round's number in this phase, so that a loaded encoder changes nothing."""
        of_task = round_.number - self.settings.pretraining_rounds
        unheard = set(eligible) - self._heard
        return self.federation.selection.choose(eligible, of_task, unheard)

    def shared_for(self, clients: Sequence[ClientKey]) -> Arrays:
        """Return the encoder for a node that does not have it."""
        lacks = self._node_id(clients[0].node) not in self._equipped
        return self.model if lacks else {}

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        limit = self.section.samples  # |M_t|, the head's weight in the mean; 0: all
        if 0 < limit < reply.samples:
            return f"reports {reply.samples} train samples, expected 1 … {limit}"
        largest = float(np.abs(reply.arrays[HEAD]).max())
        beyond = largest > LARGEST_HEAD
        return f"its head holds ±{largest:g}, more than {LARGEST_HEAD:g}" if beyond else None

    def update(self, round_: Round) -> None:
        fitted = {reply.key: reply for reply in self.received.fresh}
        self._heard |= set(fitted)
        self._pending |= self.cluster(fitted, round_)

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return the clients that have sent a head and whose node has the encoder."""
        return [
            key
            for key in clients
            if key in self._heard and self._node_id(key.node) in self._equipped
        ]

    def guide_evaluation(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        guided = [key for key in clients if key in self._pending]
        if not guided:
            return Guidance()
        heads = np.stack([self._pending[key] for key in guided])
        return Guidance({HEADS: heads}, [key.client for key in guided])

    def answered(
        self, asked_nodes: Collection[str], clients: Sequence[ClientKey], *, evaluation: bool
    ) -> None:
        """Send the encoder again to nodes that did not reply, as they may have lost their disk."""
        self._equipped -= {self._node_id(node) for node in asked_nodes}
        self._equipped |= {self._node_id(key.node) for key in clients}
        if evaluation:
            for key in clients:
                self._pending.pop(key, None)

    def state(self) -> dict[str, AnyArray]:
        """Return the clients that have sent a head, and the heads that still must be sent."""
        if not self._heard:
            return {}
        shape = (len(self._pending), *self.head_shape)
        heads = np.array(list(self._pending.values()), np.float32).reshape(shape)
        reported, pending = key_arrays(sorted(self._heard)), key_arrays(self._pending)
        return under("heard", reported) | under("pending", {**pending, "heads": heads})

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        """Restore the arrays of `state`. All nodes get the encoder again."""
        if reported := of_group(state, "heard"):
            self._heard = set(keys_of(reported))
            pending = of_group(state, "pending")
            self._pending = dict(zip(keys_of(pending), pending["heads"], strict=True))

    def head_of(self, members: Iterable[ClientReply]) -> NDArray[np.float64]:
        """Return a cluster's head: the mean of its clients' heads, weighted by samples, or the
        result of another aggregation rule, which weighs clients equally."""
        if self.averaging.is_mean:
            return weighted_head(members)
        return self.averaging.rows(np.stack([reply.arrays[HEAD] for reply in members])).astype(
            float
        )

    def _node_id(self, node: str) -> int:
        return self.federation.members.node_id(node)


def weighted_head(replies: Iterable[ClientReply]) -> NDArray[np.float64]:
    """Return θ^c_t = Σ |M^k|·θ^k / Σ |M^j| over a cluster's clients (Fed-REACT, Algorithm 2, line
    9)."""
    members = list(replies)
    weights = np.array([reply.samples for reply in members], dtype=np.float64)
    stacked = np.stack([reply.arrays[HEAD] for reply in members]).astype(np.float64)
    mean: NDArray[np.float64] = np.tensordot(weights / weights.sum(), stacked, axes=1)
    return mean
