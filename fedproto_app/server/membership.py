"""Who takes part: nodes that join, leave, come back, or are turned away.

The server asks a new node for its clients. It takes the answer whenever it comes, so a site that
loads its data for minutes holds up only itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from logging import WARNING
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedproto_app.core.clients import ClientFacts, ClientKey
from fedproto_app.core.errors import FederationError
from fedproto_app.core.events import shown, tell
from fedproto_app.core.messages import NodeRoster, Refusal, SampleTimes
from fedproto_app.core.wire import Unusable, roster_query
from fedproto_app.data.shape import DataShape
from fedproto_app.server.exchange import Exchange, pause_on
from fedproto_app.server.identity import Identity, NotItsNameError
from fedproto_app.server.probes import push
from fedproto_app.server.replies import read_roster
from fedproto_app.server.roster import NameTakenError, Roster
from fedproto_app.settings import Settings
from fedproto_app.tasks.table import task_class

ASK_AGAIN_AFTER = 60.0  # seconds: a node that could not take part may have been mended
LONGEST_QUERY = 300.0  # seconds after which a roster query is sent once more
MOST_NOTES = 1000  # of one node's that are told
LOOK_EVERY = 0.2  # seconds, while the run waits for nodes


@dataclass(frozen=True)
class _Query:
    """A roster query under way, sent at so many seconds."""

    message_id: str
    sent: float


@dataclass(frozen=True)
class _TurnedAway:
    """A node that cannot take part: why, when it said so, whether it may still come by itself."""

    reason: str
    at: float
    for_now: bool


class Membership:
    """The nodes of a run and their clients, as they come and go.

    refuse: called with nodes and clients that cannot take part.
    shape: the shape of the run's data, which all nodes must have; until the first round begins each
    node has its own, and then the one that most nodes have counts.
    """

    def __init__(
        self,
        settings: Settings,
        roster: Roster,
        exchange: Exchange,
        identity: Identity,
        refuse: Callable[[Refusal], None],
    ) -> None:
        self.shape = DataShape()
        self._shape_is_known = False
        self.roster = roster
        self._settings, self._exchange = settings, exchange
        self._identity, self._refuse = identity, refuse
        self._expected: set[str] = set()  # the nodes that a resumed run had
        self._task = task_class(settings.task)
        self._queries: dict[int, _Query] = {}  # by node id
        self._turned_away: dict[int, _TurnedAway] = {}  # by node id
        self._left: set[int] = set()  # nodes that may come back with other data

    @property
    def facts(self) -> Mapping[ClientKey, ClientFacts]:
        """What nodes declared of every client that ever came."""
        return self.roster.facts

    def clients(self) -> list[ClientKey]:
        """The clients that can be asked now, in the order of their names."""
        return self.roster.clients()

    def node_id(self, node: str) -> int:
        """Flower's id of the node with this name."""
        return self.roster.members[node].node_id

    def memory(self) -> dict[str, Any]:
        """What the server must know of its clients to go on in another process."""
        roster = self.roster
        return {
            "nodes": roster.connected_labels(),
            "inputs": list(self.shape.inputs),
            "classes": list(self.shape.classes),
            "first_with": roster.first_with,
            "facts": [[*key, asdict(roster.facts[key])] for key in sorted(roster.facts)],
        }

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from what `memory` returned. The nodes are still to come."""
        shape = DataShape(tuple(memory["inputs"]), tuple(memory["classes"]))
        self.expect(memory["nodes"], shape)
        self.roster.first_with = dict(memory["first_with"])
        for client, node, facts in memory["facts"]:
            counts = tuple(tuple(stage) for stage in facts.pop("class_counts"))
            times = SampleTimes(*stored) if (stored := facts.pop("times")) else None
            self.roster.facts[ClientKey(client, node)] = ClientFacts(
                **facts, class_counts=counts, times=times
            )

    def expect(self, labels: Collection[str], shape: DataShape) -> None:
        """Wait for these nodes, which a resumed run had, with data of this shape."""
        self._expected, self.shape, self._shape_is_known = set(labels), shape, True

    def await_nodes(self, grid: Grid) -> None:
        """Wait until enough nodes have named their clients; `FederationError` at the deadline.

        In a simulation every node tells how many there are, so the first round starts complete.
        A resumed run waits for all nodes that it had. At the deadline it goes on without the rest.
        """
        nodes = self._settings.nodes
        deadline = time.monotonic() + nodes.start_deadline
        while True:
            self.refresh(grid)
            needed = max(nodes.minimum, self.roster.partitions())
            useless = [one for one in self._turned_away.values() if not one.for_now]
            came = len(self.roster.members) + len(useless)
            missing = sorted(self._expected - set(self.roster.members))
            late = time.monotonic() > deadline
            if came >= needed and (late or not missing) and (late or len(self._leading()) < 2):
                break
            if late:
                raise FederationError(
                    f"{came} of {needed} nodes came within nodes.start-deadline = "
                    f"{nodes.start_deadline:g} s" + self._told()
                )
            pause_on(grid, LOOK_EVERY)
        for label in missing:
            tell("missing", WARNING, node=label, seconds=nodes.start_deadline)
        self._agree_on_shape()
        if not self.roster.clients():
            raise FederationError("no node has a client that can train" + self._told())
        if self.roster.partitions():
            self._exchange.trust_nodes()

    def await_clients(self, grid: Grid) -> None:
        """See which nodes are there before a round; `FederationError` if none is back in time."""
        deadline = time.monotonic() + self._settings.nodes.start_deadline
        self.refresh(grid)
        while not self.roster.clients():
            if time.monotonic() > deadline:
                raise FederationError(
                    "all nodes are gone or do not answer, and none came back within "
                    f"nodes.start-deadline = {self._settings.nodes.start_deadline:g} s"
                )
            pause_on(grid, LOOK_EVERY)
            self.refresh(grid)

    def refresh(self, grid: Grid) -> None:
        """See which nodes are connected, ask new ones for their clients, take the answers.

        A node that owes an overdue reply keeps its name, and is asked for nothing until it gives a
        sign.
        """
        before, there = self.roster.connected, self._identity.look(grid)
        for node_id in sorted(before - there):
            tell("left", node=self.roster.label_of(node_id))
            self._left.add(node_id)
        self._exchange.look_for_overdue(grid, there)
        overdue = self._exchange.overdue
        self.roster.connected, self.roster.quiet = there, overdue | self._exchange.resting
        if not self.roster.clients():  # who rests does so only while there are others
            self.roster.quiet = overdue
        for label, member in list(self.roster.members.items()):
            if fault := self._identity.fault(member.node_id, label):  # the register was changed
                self.roster.expel(label)
                self._turn_away(member.node_id, fault, for_now=True)
        self._queries = {node: query for node, query in self._queries.items() if node in there}
        self._take_answers(grid)
        self._ask(grid, [node_id for node_id in sorted(there) if self._is_to_ask(node_id)])
        self._take_answers(grid)

    def _is_to_ask(self, node_id: int) -> bool:
        now = time.monotonic()
        if query := self._queries.get(node_id):  # a node that was restarted has lost it
            return now - query.sent > LONGEST_QUERY
        if turned_away := self._turned_away.get(node_id):
            return now - turned_away.at > ASK_AGAIN_AFTER
        return node_id in self._left or not self.roster.knows(node_id)

    def _ask(self, grid: Grid, node_ids: Iterable[int]) -> None:
        asked = list(node_ids)
        messages = [roster_query(node_id) for node_id in asked]
        taken = set(push(grid, messages))
        for node_id, message in zip(asked, messages, strict=True):
            if message.metadata.message_id in taken:
                self._queries[node_id] = _Query(message.metadata.message_id, time.monotonic())

    def _take_answers(self, grid: Grid) -> None:
        by_id = {query.message_id: node_id for node_id, query in self._queries.items()}
        if not by_id:
            return
        answers = {
            by_id[answer.metadata.reply_to_message_id]: answer
            for answer in grid.pull_messages(list(by_id))
        }
        for node_id in sorted(answers):
            del self._queries[node_id]
            self._admit(node_id, answers[node_id])

    def _admit(self, node_id: int, message: Message) -> None:
        if message.has_error():
            self._turn_away(node_id, f"roster: {message.error.reason}", for_now=True)
            return
        try:
            answer = read_roster(message, self._task.sample_multiple(self._settings))
            if answer.error:
                raise Unusable(answer.error)
            label = self._identity.label(node_id, answer.label)
            answer = replace(answer, label=label)
            self._check_shape(answer)
            self._check_room(node_id, answer)
            holder = self.roster.members.get(label)
            if holder and self._identity.is_stronger(node_id, holder.node_id, label):
                self.roster.expel(label)
            self.roster.admit(node_id, answer)
        except ValueError as error:
            self.roster.expel(self.roster.label_of(node_id))  # if it came back with other data
            # Its own name perhaps, of before a restart.
            for_now = isinstance(error, NameTakenError | NotItsNameError)
            self._turn_away(node_id, str(error), for_now=for_now)
            return
        self._identity.enter(node_id, label, len(answer.samples))
        self._left.discard(node_id)
        self._turned_away.pop(node_id, None)
        tell("joined", node=label, clients=len(answer.samples))
        for client, note in islice(answer.notes.items(), MOST_NOTES):
            tell("note", WARNING, node=label, client=client, note=shown(note))
        for client, reason in answer.refused.items():
            self._refuse(Refusal(label, client, reason))

    def _turn_away(self, node_id: int, reason: str, *, for_now: bool = False) -> None:
        """The node cannot take part; it is asked again after a while, and reported once.

        for_now: it may still come by itself, so the run does not start without it.
        """
        before = self._turned_away.get(node_id)
        if before is None or before.reason != reason:
            name = self._identity.given_name(node_id) or str(node_id)
            self._refuse(Refusal(name, "", reason))
        self._turned_away[node_id] = _TurnedAway(reason, time.monotonic(), for_now)

    def _check_shape(self, answer: NodeRoster) -> None:
        """Raises `Unusable` if the node's data cannot be the run's."""
        shape = _shape_of(answer)
        if fault := self._task.shape_fault(shape):
            raise Unusable(fault)
        if self._shape_is_known and shape != self.shape:
            of_run = _told_shape(self.shape)
            raise Unusable(f"its data are {_told_shape(shape)}; the run's are {of_run}")

    def _agree_on_shape(self) -> None:
        """The shape that most nodes have is the run's; the nodes of another are turned away.

        Raises `FederationError` where as many nodes have one shape as another: to take that of the
        first would leave the choice to whoever is fastest.
        """
        leading = self._leading()
        if len(leading) > 1:
            told = "; ".join(f"{', '.join(its)}: {_told_shape(of)}" for of, its in leading.items())
            raise FederationError(f"the nodes' data differ, and no kind is in the majority: {told}")
        if leading and not self._shape_is_known:
            (self.shape,) = leading
        self._shape_is_known = True
        for label, member in list(self.roster.members.items()):
            try:
                self._check_shape(member.clients)
            except Unusable as fault:
                self.roster.forget(label)
                self._turn_away(member.node_id, str(fault))

    def _leading(self) -> dict[DataShape, list[str]]:
        """The shapes that most nodes with clients have, and these nodes."""
        nodes: dict[DataShape, list[str]] = {}
        for label in self.roster.connected_labels():
            if (its := self.roster.members[label].clients).samples:
                nodes.setdefault(_shape_of(its), []).append(label)
        most = max(map(len, nodes.values()), default=0)
        return {shape: labels for shape, labels in nodes.items() if len(labels) == most}

    def _check_room(self, node_id: int, answer: NodeRoster) -> None:
        """Raises `Unusable` if the node has more clients than there is room for."""
        nodes, new = self._settings.nodes, len(answer.samples)
        clients = self.roster.clients_with(node_id, answer)
        its = self.roster.clients_of(node_id, answer)
        if self._identity.key(node_id) and its > nodes.quota:
            raise Unusable(
                f"with its {new} clients it would have brought {its}, more than "
                f"nodes.maximum-clients-per-node = {nodes.maximum_clients_per_node} allows: "
                f"{nodes.quota}"
            )
        if clients > nodes.maximum_clients:
            raise Unusable(
                f"with its {new} clients there would be {clients}, more than "
                f"nodes.maximum-clients = {nodes.maximum_clients}"
            )

    def _told(self) -> str:
        """Why nodes were turned away, for an error."""
        reasons = sorted({shown(one.reason) for one in self._turned_away.values()})[:10]
        return ": " + "; ".join(reasons) if reasons else ""


def _shape_of(answer: NodeRoster) -> DataShape:
    return DataShape(answer.inputs, answer.classes)


def _told_shape(shape: DataShape) -> str:
    return f"{shape.inputs} with classes {shown(', '.join(shape.classes))}"
