"""Orders out, replies in: over nodes that hang, restart, fall silent and come back.

Flower's own `Grid.send_and_receive` waits for every reply until the deadline. But a SuperNode
silently drops an order that it could not receive whole, and a reply that it could not send. It is
connected and well, and will never answer. One that hangs would hold up every round anew. So here

- a node that owes a reply for long is sent a *probe*, a query that costs nothing. A node works on
  one message after the other: if it answers the probe first, its order is lost and is sent again;
- an order that Flower gives up, because its node left or its ClientApp was killed, is sent again if
  the node is there, or comes back soon;
- a node that let the deadline pass is *overdue*: it is asked for nothing until a sign of it comes;
- where some nodes' answers are enough, the others have as long again as those took;
- who let it pass again, sign or no sign, or left when all others had answered, rests for one
  deadline, then for three, seven, fifteen, as long as there are others. One answer makes good for
  little of that: a node that answers probes alone, or only every other order, cannot make every
  round as long as the deadline.

The server also looks for replies more often than Flower, which looks every three seconds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import WARNING

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fedproto_app.core.events import tell
from fedproto_app.server.probes import Probes, push

SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds between two looks for replies
PROBE_AFTER = 30.0  # seconds of silence after which a node is probed; then after twice as many
RETURN_AFTER = 30.0  # seconds in which a node that left may come back for its order
ORDER_TRIES = 3  # times that one order is sent
LEAST_PATIENCE = 10.0  # seconds that the others have when enough have answered
MOST_MISSES = 5  # that count: a node rests for 2^4 - 1 deadlines at most
FORGIVEN = 1 / 8  # of a miss, for each answer in time
# A node that left, or is restarted; a ClientApp that was killed.
GIVEN_UP = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.CLIENT_APP_CRASHED)

IsAnswer = Callable[[Message, Message], bool]  # of a reply and its order


class Exchange:
    """All messages of a run.

    name_of: a node's name by its id. enough: the share of the nodes asked whose answers are enough.
    is_answer: whether a reply has anything of what its order asked.
    waited: seconds, to a tenth, that the newest messages' replies were waited for.
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
        self._overdue: dict[str, int] = {}  # orders whose deadline has passed: the node's id
        self._misses: dict[int, float] = {}  # orders that a node did not answer, less the forgiven
        self._rests: dict[int, float] = {}  # until when such a node is asked for nothing
        self._first: dict[str, str] = {}  # by the id of an order sent again: that of the first

    def trust_nodes(self) -> None:
        """In a simulation no node loses an order, and which one is slow must decide nothing."""
        self._nodes_lose_orders, self._enough = False, 1.0

    @property
    def overdue(self) -> set[int]:
        """The nodes that have given no sign since they let a deadline pass."""
        return set(self._overdue.values())

    @property
    def resting(self) -> set[int]:
        """The nodes that are asked for nothing as long as there are others."""
        now = time.monotonic()
        return {node for node, until in self._rests.items() if until > now}

    def original(self, message_id: str) -> str:
        """The id under which an order was first sent."""
        return self._first.get(message_id, message_id)

    def ask(
        self,
        grid: Grid,
        messages: Iterable[Message],
        deadline: float,
        *,
        least: int = 0,
    ) -> list[Message]:
        """Send the messages, one a node; returns the replies that came within so many seconds.

        least: answers below which no share of them is enough.
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
        rest = self.waited * max(0.0, 2 ** (misses - 1) - 1)
        self._rests[node] = time.monotonic() + rest
        if rest:
            tell("rests", WARNING, node=self._name_of(node), seconds=round(rest))

    def look_for_overdue(self, grid: Grid, connected: set[int]) -> None:
        """See whether overdue nodes have given a sign. Their late replies are not used."""
        self._overdue = {i: node for i, node in self._overdue.items() if node in connected}
        if not self._overdue:
            return
        for reply in grid.pull_messages([*self._overdue, *self._probes.ids()]):
            said = reply.metadata.reply_to_message_id
            probe = self._probes.answered(said)
            node = probe.node if probe else self._overdue.get(said)
            if node is not None and node in self.overdue:
                sign = "a probe's answer" if probe else "its late reply"
                tell("back", node=self._name_of(node), sign=sign)
                self._overdue = {i: owner for i, owner in self._overdue.items() if owner != node}
        self._probe(grid, self.overdue)

    def _probe(self, grid: Grid, nodes: set[int]) -> None:
        if self._nodes_lose_orders:
            self._probes.send(grid, nodes)


def pause_on(grid: Grid, seconds: float) -> None:
    """Let this much time pass between two looks, or as little as the grid knows to be enough."""
    wait: Callable[[float], None] = getattr(grid, "wait", time.sleep)
    wait(seconds)


@dataclass(frozen=True)
class _Lost:
    """An order that Flower has given up: its answer, and until when its node may come back."""

    order: Message
    answer: Message
    until: float


class _Phase:
    """One call of `Exchange.ask`.

    probes: all that are under way, None if no node loses orders. first: by the id of an order that
    was sent again, the id under which it was first sent. answered: the nodes that gave what was
    asked. losers: those that lost their order, or were killed with it, as often as it is sent; and
    those that left and were the last to be waited for.
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
        self._sent: dict[int, float] = {}  # when its order was, by node id
        self._waiting: dict[str, Message] = {}  # by message id
        self._lost: dict[int, _Lost] = {}  # by node id
        self._replies: list[Message] = []
        self._send(messages)

    def replies(self, deadline: float, enough: float, least: int) -> tuple[list[Message], float]:
        """Those that come within so many seconds, or soon after this share and so many; seconds
        waited."""
        probe_at, passed = PROBE_AFTER, 0.0
        wanted = max(least, enough * len(self._waiting) - 1e-9)
        while self._waiting or self._lost:
            self._pull()
            self._look_for_returns()
            passed = time.monotonic() - self._start
            if wanted and len(self.answered) >= wanted:
                deadline, wanted = min(deadline, passed + max(passed, LEAST_PATIENCE)), 0.0
            if not (self._waiting or self._lost) or passed >= deadline:
                break
            if self._probes and passed >= probe_at:
                self._probes.send(self._grid, self.unanswered().values())
                probe_at *= 2
            pause = min(LONGEST_PAUSE, SHORTEST_PAUSE + passed / 10)  # each look is a line of a log
            pause_on(self._grid, min(pause, deadline - passed))
        self.losers |= self._lost.keys()
        replies = [*self._replies, *(one.answer for one in self._lost.values())]
        return replies, round(min(passed, deadline), 1)

    def unanswered(self) -> dict[str, int]:
        """The orders that wait for a reply: each one's node."""
        return {i: message.metadata.dst_node_id for i, message in self._waiting.items()}

    def _send(self, messages: list[Message]) -> None:
        taken = set(push(self._grid, messages))
        for message in messages:
            if message.metadata.message_id in taken:
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
            said = reply.metadata.reply_to_message_id
            probe = self._probes.answered(said) if self._probes else None
            if order := self._waiting.pop(said, None):
                self._take(reply, order)
            # A probe that is older than the order says nothing of it.
            elif probe and not reply.has_error() and probe.sent > self._sent_at(probe.node):
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
        begun = time.monotonic()
        if self._is_answer(reply, order):
            self.answered.add(node)
        # A node may send what takes long to read: that is taken from nobody's time.
        self._start += time.monotonic() - begun

    def _sent_at(self, node: int) -> float:
        """When the node's order was sent; never, if it was asked for nothing."""
        return self._sent.get(node, math.inf)

    def _look_for_returns(self) -> None:
        """Send lost orders again to nodes that are there; give up on those that stay away."""
        there = set(self._grid.get_node_ids()) if self._lost else set()
        for node, lost in list(self._lost.items()):
            if node in there:
                del self._lost[node]
                self._send_again(lost.order)
            elif time.monotonic() > lost.until:
                del self._lost[node]
                self._replies.append(lost.answer)
                if not self._waiting:
                    self.losers.add(node)

    def _send_again(self, order: Message) -> None:
        of = order.metadata
        again = Message(
            order.content,
            dst_node_id=of.dst_node_id,
            message_type=of.message_type,
            group_id=of.group_id,
        )
        name = self._name_of(of.dst_node_id)
        tell("order-lost", WARNING, node=name, round=of.group_id, sent=self._tries[of.dst_node_id])
        self._send([again])
        self.first[again.metadata.message_id] = self.first.get(of.message_id, of.message_id)
