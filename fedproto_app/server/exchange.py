"""Send orders and collect replies from nodes that may hang, restart, disconnect and come back.

Flower's `Grid.send_and_receive` waits for every reply until the deadline. But a SuperNode silently
drops an order that it could not receive completely, and a reply that it could not send. It then
stays connected and never answers. A node that hangs would delay every round. Therefore:

- A node that has not replied for a while gets a *probe*, a query that costs nothing. A node handles
  one message after the other. If it answers a probe that was sent after its order, but does not
  answer the order, then the order is lost and is sent again.
- Flower gives up an order if its node left or its ClientApp was killed. The order is sent again if
  the node is connected or comes back soon.
- A node that misses the deadline is *overdue*: it gets no orders until it replies or answers a
  probe.
- Once enough nodes have replied, the others get only as much time again as these took.
- A node that misses another deadline, or that leaves when all others have replied, gets no orders
  for 1, 3, 7, then 15 deadlines while other nodes remain. One reply shortens this pause only
  slightly. A node that answers only probes, or every other order, thus cannot delay every round.

The server also polls for replies more often than Flower, which polls every three seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from logging import WARNING

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedproto_app.core.events import tell
from fedproto_app.core.wire import alive_query

SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds between two polls for replies
PROBE_AFTER = 30.0  # seconds without a reply before a node is probed. They double each time
PROBE_LIFE = 600.0  # seconds after which an unanswered probe counts as lost
RETURN_AFTER = 30.0  # seconds in which a node that left may come back for its order
ORDER_TRIES = 3  # how often an order is sent
LEAST_PATIENCE = 10.0  # the fewest seconds that the other nodes get after enough replies
MOST_MISSES = 5  # more misses are not counted, so a node rests for at most 2^4 - 1 deadlines
FORGIVEN = 1 / 8  # of a miss, for each reply in time
# Flower's errors if the node left or was restarted, or if its ClientApp was killed.
GIVEN_UP = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.CLIENT_APP_CRASHED)

IsAnswer = Callable[[Message, Message], bool]  # takes a reply and its order


class Exchange:
    """Exchanges all messages of a run.

    name_of: returns a node's name for its id. enough: the share of the asked nodes whose replies
    are enough. is_answer: returns whether a reply has a usable part. waited: the seconds, rounded
    to a tenth, that it waited for the replies to the latest messages.
    """

    def __init__(
        self,
        name_of: Callable[[int], str] = str,
        enough: float = 1.0,
        is_answer: IsAnswer = lambda reply, order: not reply.has_error(),
    ) -> None:
        self.waited = 0.0
        self._name_of, self._enough, self._is_answer = name_of, enough, is_answer
        self._nodes_lose_orders = True
        self._probes = Probes()
        self._overdue: dict[str, int] = {}  # node ids by order, of orders whose deadline has passed
        self._misses: dict[int, float] = {}  # unanswered orders of a node, minus forgiven ones
        self._rests: dict[int, float] = {}  # until when a node that missed orders gets none
        self._first: dict[str, str] = {}  # the first id of each order that was sent again

    def trust_nodes(self) -> None:
        """Stop probing nodes and letting them rest.

        Simulated nodes lose no orders, and their speed must not change results.
        """
        self._nodes_lose_orders, self._enough = False, 1.0

    @property
    def overdue(self) -> set[int]:
        """The nodes that have sent nothing since they missed a deadline."""
        return set(self._overdue.values())

    @property
    def resting(self) -> set[int]:
        """The nodes that get no orders while other nodes remain."""
        time_now = time.monotonic()
        return {node for node, until in self._rests.items() if until > time_now}

    def original(self, message_id: str) -> str:
        """Return the id under which an order was first sent."""
        return self._first.get(message_id, message_id)

    def ask(
        self, grid: Grid, messages: Iterable[Message], deadline: float, *, least: int = 0
    ) -> list[Message]:
        """Send the messages, one per node. Return the replies that arrive before the deadline.

        deadline: in seconds. least: the number of replies that is needed, whatever `enough` says.
        """
        probes = self._probes if self._nodes_lose_orders else None
        phase = _Phase(grid, list(messages), probes, self._name_of, self._is_answer)
        replies, self.waited = phase.replies(deadline, self._enough, least)
        self._first |= phase.first
        silent = phase.unanswered()
        self._overdue |= silent
        self._probe(grid, set(silent.values()))
        for node in phase.answered - phase.losers:
            self._misses[node] = max(0.0, self._misses.get(node, 0.0) - FORGIVEN)
        for node in {*silent.values(), *phase.losers}:
            self._let_rest(node)
        return replies

    def _let_rest(self, node: int) -> None:
        if not self._nodes_lose_orders:
            return
        misses = self._misses[node] = min(MOST_MISSES, self._misses.get(node, 0.0) + 1)
        pause = self.waited * max(0.0, 2 ** (misses - 1) - 1)
        self._rests[node] = time.monotonic() + pause
        if pause:
            tell("rests", WARNING, node=self._name_of(node), seconds=round(pause))

    def look_for_overdue(self, grid: Grid, connected: set[int]) -> None:
        """Check whether overdue nodes have sent anything. Their late replies are not used."""
        self._overdue = {i: node for i, node in self._overdue.items() if node in connected}
        if not self._overdue:
            return
        for reply in grid.pull_messages([*self._overdue, *self._probes.ids()]):
            message_id = reply.metadata.reply_to_message_id
            probe = self._probes.answered(message_id)
            node = probe.node if probe else self._overdue.get(message_id)
            if node is not None and node in self.overdue:
                sign = "a probe's answer" if probe else "its late reply"
                tell("back", node=self._name_of(node), sign=sign)
                self._overdue = {i: owner for i, owner in self._overdue.items() if owner != node}
        self._probe(grid, self.overdue)

    def _probe(self, grid: Grid, nodes: set[int]) -> None:
        if self._nodes_lose_orders:
            self._probes.send(grid, nodes)


def pause_on(grid: Grid, seconds: float) -> None:
    """Wait between two polls. The wait ends early if the grid can tell that a reply has arrived."""
    wait: Callable[[float], None] = getattr(grid, "wait", time.sleep)
    wait(seconds)


@dataclass(frozen=True)
class _Lost:
    """An order that Flower has given up. answer: Flower's. until: when its node must be back."""

    order: Message
    answer: Message
    until: float


class _Phase:
    """One call of `Exchange.ask`.

    probes: all probes without an answer, None if no node loses orders. first: the first id of each
    order that was sent again. answered: the nodes with a usable reply. losers: the nodes that lost
    their order, or were killed during it, every time that it was sent. Nodes that left when all
    others had replied are losers too.
    """

    def __init__(
        self,
        grid: Grid,
        messages: list[Message],
        probes: Probes | None,
        name_of: Callable[[int], str],
        is_answer: IsAnswer,
    ) -> None:
        self.first: dict[str, str] = {}
        self.answered, self.losers = set[int](), set[int]()
        self._grid, self._probes, self._name_of = grid, probes, name_of
        self._is_answer = is_answer
        self._start = time.monotonic()
        self._tries: dict[int, int] = {}  # by node id
        self._sent: dict[int, float] = {}  # when its order was sent, by node id
        self._waiting: dict[str, Message] = {}  # by message id
        self._lost: dict[int, _Lost] = {}  # by node id
        self._replies: list[Message] = []
        self._send(messages)

    def replies(self, deadline: float, enough: float, least: int) -> tuple[list[Message], float]:
        """Return the replies that arrive before the deadline, and the seconds waited.

        The deadline becomes earlier once the share `enough` of the replies, and at least `least`
        replies, have arrived.
        """
        probe_at, passed = PROBE_AFTER, 0.0
        required = max(least, enough * len(self._waiting) - 1e-9)
        while self._waiting or self._lost:
            self._pull()
            self._look_for_returns()
            passed = time.monotonic() - self._start
            if required and len(self.answered) >= required:
                deadline, required = min(deadline, passed + max(passed, LEAST_PATIENCE)), 0.0
            if not (self._waiting or self._lost) or passed >= deadline:
                break
            if self._probes and passed >= probe_at:
                self._probes.send(self._grid, self.unanswered().values())
                probe_at *= 2
            pause = min(LONGEST_PAUSE, SHORTEST_PAUSE + passed / 10)  # each poll writes a log line
            pause_on(self._grid, min(pause, deadline - passed))
        self.losers |= self._lost.keys()
        replies = [*self._replies, *(lost.answer for lost in self._lost.values())]
        return replies, round(min(passed, deadline), 1)

    def unanswered(self) -> dict[str, int]:
        """Return the nodes of the orders that have no reply yet, by the order's id."""
        return {i: message.metadata.dst_node_id for i, message in self._waiting.items()}

    def _send(self, messages: list[Message]) -> None:
        accepted_ids = push(self._grid, messages)
        for message in messages:
            if message.metadata.message_id in accepted_ids:
                self._waiting[message.metadata.message_id] = message
                node = message.metadata.dst_node_id
                self._tries[node] = self._tries.get(node, 0) + 1
                self._sent[node] = time.monotonic()
            else:
                refused = Error(code=0, reason="Flower did not take the message")
                self._replies.append(Message(refused, reply_to=message))

    def _pull(self) -> None:
        forgetful = []
        probes = self._probes.ids() if self._probes else []
        for reply in self._grid.pull_messages([*self._waiting, *probes]):
            answered_id = reply.metadata.reply_to_message_id
            probe = self._probes.answered(answered_id) if self._probes else None
            if order := self._waiting.pop(answered_id, None):
                self._take(reply, order)
            # A probe sent before the order proves nothing about it.
            elif (
                probe
                and not reply.has_error()
                and probe.sent_at > self._sent.get(probe.node, math.inf)
            ):
                forgetful.append(probe.node)
        for message_id, order in list(self._waiting.items()):
            node = order.metadata.dst_node_id
            if node not in forgetful:
                continue
            del self._waiting[message_id]
            if self._tries[node] < ORDER_TRIES:
                self._send_again(order)
                continue
            lost = Error(code=0, reason=f"the node lost its order {ORDER_TRIES} times")
            self._replies.append(Message(lost, reply_to=order))
            self.losers.add(node)

    def _take(self, reply: Message, order: Message) -> None:
        node = order.metadata.dst_node_id
        given_up = reply.has_error() and reply.error.code in GIVEN_UP
        if given_up and self._probes is not None and self._tries[node] < ORDER_TRIES:
            self._lost[node] = _Lost(order, reply, time.monotonic() + RETURN_AFTER)
            return
        self._replies.append(reply)
        if given_up:
            self.losers.add(node)
            return
        begin = time.monotonic()
        if self._is_answer(reply, order):
            self.answered.add(node)
        # Reading a large reply takes time, which must not shorten the other nodes' deadline.
        self._start += time.monotonic() - begin

    def _look_for_returns(self) -> None:
        """Send lost orders again to nodes that are connected. Give up on nodes that stay away."""
        connected = set(self._grid.get_node_ids()) if self._lost else set()
        for node, lost in list(self._lost.items()):
            if node in connected:
                del self._lost[node]
                self._send_again(lost.order)
            elif time.monotonic() > lost.until:
                del self._lost[node]
                self._replies.append(lost.answer)
                if not self._waiting:
                    self.losers.add(node)

    def _send_again(self, order: Message) -> None:
        metadata = order.metadata
        repeated = Message(
            order.content,
            dst_node_id=metadata.dst_node_id,
            message_type=metadata.message_type,
            group_id=metadata.group_id,
        )
        name, tries = self._name_of(metadata.dst_node_id), self._tries[metadata.dst_node_id]
        tell("order-lost", WARNING, node=name, round=metadata.group_id, sent=tries)
        self._send([repeated])
        first_id = self.first.get(metadata.message_id, metadata.message_id)
        self.first[repeated.metadata.message_id] = first_id


@dataclass(frozen=True)
class Probe:
    """A probe that has not been answered: its node, and when it was sent."""

    node: int
    sent_at: float


class Probes:
    """The probes that no node has answered yet."""

    def __init__(self) -> None:
        self._sent: dict[str, Probe] = {}  # by message id

    def ids(self) -> list[str]:
        """Return the ids of the probes' messages, to poll for answers."""
        return list(self._sent)

    def answered(self, message_id: str) -> Probe | None:
        """Remove and return the probe with this id, now answered. Return None if it is unknown."""
        return self._sent.pop(message_id, None)

    def send(self, grid: Grid, nodes: Iterable[int]) -> None:
        """Probe the nodes whose last probe has been answered or counts as lost."""
        time_now = time.monotonic()
        self._sent = {
            i: probe for i, probe in self._sent.items() if time_now - probe.sent_at < PROBE_LIFE
        }
        idle = sorted(set(nodes) - {probe.node for probe in self._sent.values()})
        probes = [alive_query(node) for node in idle]
        accepted_ids = push(grid, probes)
        for node, probe in zip(idle, probes, strict=True):
            if probe.metadata.message_id in accepted_ids:
                self._sent[probe.metadata.message_id] = Probe(node, time_now)


def push(grid: Grid, messages: Sequence[Message]) -> set[str]:
    """Send the messages without waiting. Return the ids of the messages that Flower accepted."""
    return set(filter(None, grid.push_messages(messages))) if messages else set()
