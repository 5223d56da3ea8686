"""The server's dealings with its nodes: waiting for them, asking them, reading their answers.

Every strategy holds a `Federation` and speaks through it, so that selection, refusal and counting
are the same for all methods. What happened in a round stands in its `RoundLog`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING

from flwr.app import Message, MessageType
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedproto_app.errors import FederationError
from fedproto_app.roster import ClientKey, Roster, select
from fedproto_app.settings import Settings
from fedproto_app.wire import (
    ArraySpec,
    Order,
    Refusal,
    Reply,
    content_bytes,
    content_values,
    read_reply,
    read_roster,
    roster_query,
    write_order,
)

ROSTER_TIMEOUT = 120.0  # seconds a node may take to load its data and name its clients


@dataclass
class RoundLog:
    """What one round asked, got and cost."""

    asked: int = 0
    answered: int = 0
    refused: list[Refusal] = field(default_factory=list)
    losses: dict[ClientKey, dict[str, float]] = field(default_factory=dict)
    parameters_up: int = 0
    parameters_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    node_seconds: float = 0.0


@dataclass
class ClientResult:
    """A client's latest errors and those of its kept model."""

    metrics: dict[str, float]
    kept_round: int


@dataclass(frozen=True)
class NodeReply:
    """A node's answer after refusal: `message` is Flower's, `reply` its usable content."""

    node: str
    reply: Reply
    message: Message

    def keys(self) -> list[ClientKey]:
        return [ClientKey(name, self.node) for name in self.reply.names]


class Federation:
    """The nodes, their clients, and the log of the current round."""

    def __init__(self, settings: Settings, run: str, token: str) -> None:
        self.settings, self.run, self.token = settings, run, token
        self.roster = Roster()
        self.log = RoundLog()
        self.results: dict[ClientKey, ClientResult] = {}
        self.trained: set[ClientKey] = set()
        self._turned_away: set[int] = set()
        self._asked: set[ClientKey] = set()

    # --- who is there ---------------------------------------------------------------------

    def await_nodes(self, grid: Grid) -> None:
        """Wait until enough nodes have named their clients; `FederationError` at the deadline.

        In a simulation every node tells how many there are, so the first round starts complete.
        """
        nodes = self.settings.nodes
        deadline = time.monotonic() + nodes.start_deadline
        while True:
            self.refresh(grid)
            members = self.roster.members.values()
            partitions = max((member.clients.partitions for member in members), default=0)
            answered = len(self.roster.members) + len(self._turned_away)
            if answered >= max(nodes.minimum, partitions):
                break
            if time.monotonic() > deadline:
                raise FederationError(
                    f"{answered} of {max(nodes.minimum, partitions)} nodes came within "
                    f"nodes.start-deadline = {nodes.start_deadline:g} s"
                )
            time.sleep(0.2)
        if not self.roster.clients():
            reasons = sorted({refusal.reason for refusal in self.log.refused})
            raise FederationError(
                "no node has a client that can train: " + ("; ".join(reasons) or "no data")
            )

    def refresh(self, grid: Grid) -> None:
        """See who is connected, and ask every node that is new for its clients."""
        self.roster.connected = set(grid.get_node_ids())
        new = [
            node_id
            for node_id in sorted(self.roster.connected)
            if not self.roster.knows(node_id) and node_id not in self._turned_away
        ]
        if not new:
            return
        timeout = min(ROSTER_TIMEOUT, self.settings.nodes.round_deadline)
        for message in grid.send_and_receive([roster_query(n) for n in new], timeout=timeout):
            self._admit(message)

    def _admit(self, message: Message) -> None:
        node_id = message.metadata.src_node_id
        if message.has_error():
            self._refuse(Refusal(str(node_id), "", f"roster: {message.error.reason}"))
            return  # asked again in the next round
        try:
            answer = read_roster(message)
            if answer.error:
                raise ValueError(answer.error)
            label = self.roster.admit(node_id, answer)
        except ValueError as error:
            self._turned_away.add(node_id)
            self._refuse(Refusal(str(node_id), "", str(error)))
            return
        log(INFO, "node %s joined with %d clients", label, len(answer.samples))
        for client, reason in answer.refused.items():
            self._refuse(Refusal(label, client, reason))

    # --- asking -----------------------------------------------------------------------------

    def choose(self, server_round: int, *, newcomers: bool) -> list[ClientKey]:
        """The clients to train this round; `newcomers`: with all that have never reported."""
        keys = self.roster.clients()
        unheard = set(keys) - self.trained if newcomers else set[ClientKey]()
        settings = self.settings
        return select(keys, settings.participation, unheard, settings.seed, server_round)

    def orders(
        self,
        keys: Iterable[ClientKey],
        make: Callable[[list[ClientKey]], Order],
        message_type: str = MessageType.TRAIN,
    ) -> list[Message]:
        """One message a node, with an order of its own for its share of the clients."""
        by_node: dict[str, list[ClientKey]] = defaultdict(list)
        for key in keys:
            by_node[key.node].append(key)
        messages = []
        for node, its_keys in sorted(by_node.items()):
            order = make(its_keys)
            message = write_order(order, self.roster.members[node].node_id, message_type)
            self.log.parameters_down += content_values(message)
            self.log.bytes_down += content_bytes(message)
            messages.append(message)
        self.log.asked += len(messages)
        self._asked = {key for its_keys in by_node.values() for key in its_keys}
        return messages

    def order(
        self, keys: Sequence[ClientKey], server_round: int, *, evaluate: bool = False
    ) -> Order:
        """An order without arrays for these clients of one node."""
        return Order(
            self.run, self.token, server_round, [key.client for key in keys], evaluate=evaluate
        )

    def evaluates(self, server_round: int) -> bool:
        """Whether this round's models are evaluated; those of the last round always are."""
        settings = self.settings
        return server_round % settings.evaluate_every == 0 or server_round == settings.rounds

    # --- reading ----------------------------------------------------------------------------

    def read(self, replies: Iterable[Message], spec: ArraySpec | None) -> list[NodeReply]:
        """The usable replies in the order of the nodes' labels, so that sums are reproducible.

        Refuses what is wrong, records losses, metrics and costs. Raises `FederationError` when
        too large a share of the nodes asked gave nothing usable.
        """
        usable: dict[str, NodeReply] = {}
        for message in replies:
            node = self.roster.label_of(message.metadata.src_node_id)
            if message.has_error():
                self._refuse(Refusal(node, "", f"no reply: {message.error.reason}"))
                continue
            self.log.parameters_up += content_values(message)
            self.log.bytes_up += content_bytes(message)
            if node in usable or node not in self.roster.members:
                self._refuse(Refusal(node, "", "a second or unasked reply"))
                continue
            asked = {
                client: count
                for client, count in self.roster.members[node].clients.samples.items()
                if ClientKey(client, node) in self._asked
            }
            reply, refusals = read_reply(message, node, asked, spec)
            for refusal in refusals:
                self._refuse(refusal)
            if reply is not None and reply.names:
                usable[node] = NodeReply(node, reply, message)
        answers = [usable[node] for node in sorted(usable)]
        self.log.answered += len(answers)
        self._check_failed_share(len({key.node for key in self._asked}), len(answers))
        for answer in answers:
            self._record(answer)
        return answers

    def _check_failed_share(self, asked: int, answered: int) -> None:
        allowed = self.settings.nodes.maximum_failed_share
        if asked and (asked - answered) / asked > allowed:
            reasons = sorted({f"{r.node}: {r.reason}" for r in self.log.refused}) or ["no answer"]
            raise FederationError(
                f"{asked - answered} of {asked} nodes gave no usable reply, more than "
                f"nodes.maximum-failed-share = {allowed:g}: {'; '.join(reasons[:3])}"
            )

    def _record(self, answer: NodeReply) -> None:
        reply = answer.reply
        self.log.node_seconds += reply.seconds
        for row, key in enumerate(answer.keys()):
            if reply.losses:
                self.trained.add(key)
                self.log.losses[key] = {name: v[row] for name, v in reply.losses.items()}
            if reply.kept_rounds:
                metrics = {name: values[row] for name, values in reply.metrics.items()}
                self.results[key] = ClientResult(metrics, reply.kept_rounds[row])

    def _refuse(self, refusal: Refusal) -> None:
        self.log.refused.append(refusal)
        who = f"client {refusal.client!r} of node" if refusal.client else "node"
        log(WARNING, "refused %s %s: %s", who, refusal.node, refusal.reason)

    def mean(self, values: Mapping[ClientKey, float]) -> float | None:
        """The plain mean over clients, in the order of their names; None without clients."""
        return sum(values[key] for key in sorted(values)) / len(values) if values else None
