"""Manage the members of a run: nodes that join, leave, come back, or are turned away.

The server asks a new node for its clients and accepts the answer at any time. A site that loads its
data for minutes therefore delays nobody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from logging import WARNING

from flwr.app import Message
from flwr.serverapp import Grid

from fedproto_app.core.clients import ClientFacts, ClientKey
from fedproto_app.core.errors import FederationError
from fedproto_app.core.events import shown, tell
from fedproto_app.core.messages import NodeRoster, Refusal, SampleTimes
from fedproto_app.core.stored import Memory
from fedproto_app.core.wire import Unusable, roster_query
from fedproto_app.data.shape import DataShape
from fedproto_app.server.exchange import PROBE_AFTER, Exchange, Probes, pause_on, push
from fedproto_app.server.node_register import Identity, NameRefused
from fedproto_app.server.replies import read_roster
from fedproto_app.settings import Settings
from fedproto_app.tasks.table import task_class

ASK_AGAIN_AFTER = 60.0  # seconds until a node that could not take part is asked again
MOST_NOTES = 1000  # logged for one node
LOOK_EVERY = 0.2  # seconds between polls while the run waits for nodes
SLOW_HOSTS = 3.0  # times the start deadline, if connected nodes without an answer would be enough


@dataclass
class Member:
    """A node: its current Flower id, and the clients that it declared."""

    node_id: int
    clients: NodeRoster


@dataclass
class Roster:
    """All nodes that ever answered, by their stable labels, and which are connected now."""

    members: dict[str, Member] = field(default_factory=dict)  # by label
    connected: set[int] = field(default_factory=set)  # Flower's node ids
    quiet: set[int] = field(default_factory=set)  # connected nodes that get no orders now
    facts: dict[ClientKey, ClientFacts] = field(default_factory=dict)  # of all declared clients
    first_with: dict[str, str] = field(default_factory=dict)  # first node by client name

    def admit(self, node_id: int, answer: NodeRoster) -> None:
        """Enter a node's answer. If the node was restarted, the answer replaces its old entry.

        Raise `NameRefused` if another connected node has the same name.
        """
        label = _label(node_id, answer)
        member = self.members.get(label)
        if member and member.node_id != node_id and member.node_id in self.connected:
            raise NameRefused(f"its name {label!r} belongs to another connected node")
        self.members[label] = Member(node_id, answer)
        for client, samples in answer.samples.items():
            self.first_with.setdefault(client, label)
            self.facts[ClientKey(client, label)] = ClientFacts(
                samples,
                answer.groups[client],
                answer.missing_shares[client],
                answer.class_counts.get(client, ()),
                answer.times.get(client),
            )

    def expel(self, label: str) -> None:
        """Remove a member. The facts about its clients stay. If another node declared a client of
        the same name, it becomes the first node with this name."""
        self.members.pop(label, None)
        self.first_with = {name: node for name, node in self.first_with.items() if node != label}
        for member_label, member in self.members.items():
            for client in member.clients.samples:
                self.first_with.setdefault(client, member_label)

    def forget(self, label: str) -> None:
        """Remove a member and the facts about its clients."""
        self.expel(label)
        self.facts = {key: facts for key, facts in self.facts.items() if key.node != label}

    def clients_with(self, node_id: int, answer: NodeRoster) -> int:
        """Return how many clients would be declared if this answer were entered."""
        return len(self.facts.keys() | _keys(node_id, answer))

    def knows(self, node_id: int) -> bool:
        """Return whether the node has been admitted under this id."""
        return any(member.node_id == node_id for member in self.members.values())

    def label_of(self, node_id: int) -> str:
        """Return the label of a node id. For a dead node, Flower answers under another id."""
        for label, member in self.members.items():
            if member.node_id == node_id:
                return label
        return f"Flower id {node_id}"

    def connected_labels(self) -> list[str]:
        """Return the labels of all connected nodes."""
        return sorted(
            label for label, member in self.members.items() if member.node_id in self.connected
        )

    def clients(self) -> list[ClientKey]:
        """Return the clients of all nodes that can get orders, sorted by name."""
        able = self.connected - self.quiet
        return sorted(
            ClientKey(client, label)
            for label, member in self.members.items()
            if member.node_id in able
            for client in member.clients.samples
        )

    def partitions(self) -> int:
        """Return the number of simulated nodes, as the nodes report it, or 0 in a deployment."""
        counts = {member.clients.partitions for member in self.members.values()}
        return counts.pop() if len(counts) == 1 else 0


def _label(node_id: int, answer: NodeRoster) -> str:
    """Return the node's name, or its id if it has none."""
    return answer.label or str(node_id)


def _keys(node_id: int, answer: NodeRoster) -> set[ClientKey]:
    return {ClientKey(name, _label(node_id, answer)) for name in answer.samples}


@dataclass(frozen=True)
class _Query:
    """A roster query that has no answer yet. sent_at: in seconds."""

    message_id: str
    sent_at: float


@dataclass(frozen=True)
class _TurnedAway:
    """A node that cannot take part. for_now: whether it may still join without being repaired."""

    reason: str
    reported_at: float
    for_now: bool


class Membership:
    """The nodes of a run and their clients, as they come and go.

    refuse: called with nodes and clients that cannot take part.
    most_samples: the largest number of samples that is counted for a client, 0 for no limit. It
    changes only when nodes join, before a round.
    shape: the shape of the run's data, which the data of all nodes must have. It is the most
    frequent shape when the first round begins.
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
        self.most_samples = 0
        self._shape_is_known = False
        self.roster = roster
        self._settings, self._exchange = settings, exchange
        self._identity, self._refuse = identity, refuse
        self._named = set(settings.nodes.named)  # if empty, all nodes take part
        self._expected = self._named  # in a resumed run, the nodes that it had
        self._task = task_class(settings.task)
        self._queries: dict[int, _Query] = {}  # by node id
        self._probes = Probes()
        self._turned_away: dict[int, _TurnedAway] = {}  # by node id
        self._left: set[int] = set()  # nodes that may come back with other data

    @property
    def facts(self) -> Mapping[ClientKey, ClientFacts]:
        """What was declared about each client that ever took part."""
        return self.roster.facts

    def clients(self) -> list[ClientKey]:
        """Return the clients that can get orders now, sorted by name."""
        return self.roster.clients()

    @property
    def stages(self) -> int:
        """The largest number of stages in any client's data, or 1 before any node has joined."""
        members = self.roster.members.values()
        return max([1, *(member.clients.stages for member in members)])

    @property
    def is_simulation(self) -> bool:
        """Whether the nodes are simulated, so that all clients take part from the start."""
        return self.roster.partitions() > 0

    def first_with(self, client: str) -> str | None:
        """Return the first node that declared a client of this name, or None if none has."""
        return self.roster.first_with.get(client)

    def node_id(self, node: str) -> int:
        """Return Flower's id of the node with this name."""
        return self.roster.members[node].node_id

    def memory(self) -> Memory:
        """Return the state about nodes and clients that a resumed run needs."""
        roster = self.roster
        return {
            "nodes": roster.connected_labels(),
            "inputs": list(self.shape.inputs),
            "classes": list(self.shape.classes),
            "columns": list(self.shape.columns),
            "step": self.shape.step,
            "first_with": roster.first_with,
            "facts": [[*key, asdict(roster.facts[key])] for key in sorted(roster.facts)],
        }

    def recall(self, memory: Memory) -> None:
        """Restore the state from `memory`, before the nodes connect."""
        inputs, classes, columns = (tuple(memory[n]) for n in ("inputs", "classes", "columns"))
        shape = DataShape(inputs, classes, columns, memory["step"])
        self.expect(memory["nodes"], shape)
        self.roster.first_with = dict(memory["first_with"])
        for client, node, facts in memory["facts"]:
            counts = tuple(tuple(stage) for stage in facts["class_counts"])
            times = SampleTimes(*stored) if (stored := facts["times"]) else None
            complete = facts | {"class_counts": counts, "times": times}
            self.roster.facts[ClientKey(client, node)] = ClientFacts(**complete)

    def expect(self, labels: Collection[str], shape: DataShape) -> None:
        """Expect the nodes that a resumed run had, unless the settings name nodes, and expect data
        of this shape."""
        self._expected = self._named or set(labels)
        self.shape, self._shape_is_known = shape, True

    def await_nodes(self, grid: Grid) -> None:
        """Wait until enough nodes have declared their clients, or raise `FederationError`.

        Simulated nodes report how many nodes there are, so the first round starts with all of them.
        A resumed run waits for all nodes that it had, but continues without missing ones at the
        deadline. Connected nodes may not have answered yet because their hosts are slow. If they
        would make up the required number, the run waits for `SLOW_HOSTS` deadlines.
        """
        nodes = self._settings.nodes
        start, deadline = time.monotonic(), nodes.start_deadline
        while True:
            self.refresh(grid)
            required = max(nodes.minimum, self.roster.partitions())
            useless = [node for node in self._turned_away.values() if not node.for_now]
            arrived = len(self.roster.members) + len(useless)
            missing = sorted(self._expected - set(self.roster.members))
            late = time.monotonic() > start + deadline
            enough_at_work = arrived < required <= arrived + len(self._queries)
            if late and enough_at_work and deadline == nodes.start_deadline:
                tell("slow", WARNING, nodes=self._silent(), seconds=deadline)
                deadline *= SLOW_HOSTS
                continue
            if arrived >= required and (late or not missing) and (late or len(self._leading()) < 2):
                break
            if late:
                raise FederationError(
                    f"{arrived} of {required} nodes came within nodes.start-deadline = "
                    f"{nodes.start_deadline:g} s{self._reasons_text()}; "
                    f"{self._where_to_look(deadline, missing)}"
                )
            pause_on(grid, LOOK_EVERY)
        names = ", ".join(self._identity.names())
        for label in missing:
            tell("missing", WARNING, node=label, seconds=nodes.start_deadline, nodes=names or None)
        self._agree_on_shape()
        if not any(self.roster.facts[key].samples for key in self.roster.clients()):
            raise FederationError("no node has a client that can train" + self._reasons_text())
        if self.roster.partitions():
            self._exchange.trust_nodes()

    def await_clients(self, grid: Grid) -> None:
        """Refresh the nodes before a round. Raise `FederationError` if no node is back in time."""
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
        """Update which nodes are connected, ask new nodes for their clients, and read the answers.

        An overdue node keeps its name, but gets no orders until it replies or answers a probe.
        """
        before, connected = self.roster.connected, self._identity.look(grid)
        for node_id in sorted(before - connected):
            tell("left", node=self.roster.label_of(node_id))
            self._left.add(node_id)
        self._exchange.look_for_overdue(grid, connected)
        overdue = self._exchange.overdue
        self.roster.connected, self.roster.quiet = connected, overdue | self._exchange.resting
        if not self.roster.clients():  # a node rests only while other nodes remain
            self.roster.quiet = overdue
        for label, member in list(self.roster.members.items()):
            if fault := self._identity.fault(member.node_id, label):  # the register was changed
                self.roster.expel(label)
                self._turn_away(member.node_id, fault, for_now=True)
        self._queries = {node: query for node, query in self._queries.items() if node in connected}
        self._take_answers(grid)
        self._probe(grid)
        if to_ask := [node_id for node_id in sorted(connected) if self._is_to_ask(node_id)]:
            self._ask(grid, to_ask)
            self._take_answers(grid)  # a simulation has answered by now
        self._limit_samples()

    def _limit_samples(self) -> None:
        facts_by_key = self.roster.facts.items()
        samples = {key: facts.samples for key, facts in facts_by_key if facts.samples}
        before = self.most_samples
        self.most_samples = self._settings.aggregation.most_samples(samples.values())
        above = [key for key, count in samples.items() if count > self.most_samples > 0]
        if above and self.most_samples != before:
            first = shown(above[0].client)
            tell("limited-weight", clients=len(above), first=first, samples=self.most_samples)

    def _is_to_ask(self, node_id: int) -> bool:
        if node_id in self._queries:  # it may be slow. Probes tell whether the query is lost
            return False
        given_name = self._identity.given_name(node_id)
        if self._named and given_name and given_name not in self._named:
            return False
        if turned_away := self._turned_away.get(node_id):
            return time.monotonic() - turned_away.reported_at > ASK_AGAIN_AFTER
        return node_id in self._left or not self.roster.knows(node_id)

    def _ask(self, grid: Grid, node_ids: Sequence[int]) -> None:
        messages = [roster_query(node_id) for node_id in node_ids]
        accepted_ids = push(grid, messages)
        for node_id, message in zip(node_ids, messages, strict=True):
            if message.metadata.message_id in accepted_ids:
                self._queries[node_id] = _Query(message.metadata.message_id, time.monotonic())

    def _probe(self, grid: Grid) -> None:
        """Probe nodes that do not answer.

        Such a node may be reading its data, which can take minutes. Or it was restarted and has
        lost the query. A node handles one message after the other, so its answer to a probe tells
        which is the case.
        """
        late = time.monotonic() - PROBE_AFTER
        self._probes.send(
            grid, [node for node, query in self._queries.items() if query.sent_at < late]
        )

    def _take_answers(self, grid: Grid) -> None:
        by_id = {query.message_id: node_id for node_id, query in self._queries.items()}
        if not by_id:
            return
        answers: dict[int, Message] = {}
        probed: dict[int, float] = {}  # when an answered probe was sent, by node id
        for answer in grid.pull_messages([*by_id, *self._probes.ids()]):
            message_id = answer.metadata.reply_to_message_id
            if message_id in by_id:
                answers[by_id[message_id]] = answer
            elif (probe := self._probes.answered(message_id)) and not answer.has_error():
                probed[probe.node] = probe.sent_at
        for node_id in sorted(answers):
            del self._queries[node_id]
            self._admit(node_id, answers[node_id])
        for node_id, sent_at in probed.items():
            if (query := self._queries.get(node_id)) and query.sent_at < sent_at:
                del self._queries[node_id]  # the query is lost, and is sent again

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
            if self._named and label not in self._named:
                names = self._settings.nodes.names
                raise NameRefused(f"nodes.names = {names!r} does not name {shown(label)!r}")
            self._check_shape(answer)
            self._check_room(node_id, answer)
            holder = self.roster.members.get(label)
            if holder and self._identity.is_stronger(node_id, holder.node_id, label):
                self.roster.expel(label)
            self.roster.admit(node_id, answer)
        except (Unusable, NameRefused) as error:
            self.roster.expel(self.roster.label_of(node_id))  # if it came back with other data
            # A refused name may be the node's own, from before a restart. If the data are unusable,
            # only the name that the operator gave its key tells whether the run is for this node.
            # Without such a name, the node does not count as arrived.
            may_be_other = bool(self._named) and not self._identity.given_name(node_id)
            for_now = may_be_other or not isinstance(error, Unusable)
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
        """Turn a node away: report this once, and ask the node again after a while.

        for_now: whether the node may still join by itself and so does not count as arrived.
        """
        before = self._turned_away.get(node_id)
        if before is None or before.reason != reason:
            name = self._identity.given_name(node_id) or str(node_id)
            self._refuse(Refusal(name, "", reason))
        self._turned_away[node_id] = _TurnedAway(reason, time.monotonic(), for_now)

    def _check_shape(self, answer: NodeRoster) -> None:
        """Raise `Unusable` if the shape of the node's data does not match the run's."""
        shape = _shape_of(answer)
        if fault := self._task.shape_fault(shape):
            raise Unusable(fault)
        if self._shape_is_known and shape != self.shape:
            of_run = _shape_text(self.shape)
            if shape.step != self.shape.step:
                steps = _step_text(self.shape)
                raise Unusable(f"its series have {_step_text(shape)}, but the run's have {steps}")
            if fault := _columns_fault(shape, self.shape):
                raise Unusable(f"{fault}; the run's data are {of_run}")
            raise Unusable(f"its data are {_shape_text(shape)}; the run's are {of_run}")

    def _agree_on_shape(self) -> None:
        """Set the run's shape to the most frequent shape. Turn nodes with another shape away.

        A tie raises `FederationError`, because the fastest node would otherwise decide.
        """
        leading = self._leading()
        if len(leading) > 1:
            summary = "; ".join(
                f"{', '.join(labels)}: {_shape_text(shape)}" for shape, labels in leading.items()
            )
            raise FederationError(
                f"the nodes' data differ, and no kind is in the majority: {summary}"
            )
        if leading and not self._shape_is_known:
            (self.shape,) = leading
        self._shape_is_known = True
        for label, member in list(self.roster.members.items()):
            try:
                self._check_shape(member.clients)
            except Unusable as fault:
                self.roster.forget(label)
                self._turn_away(member.node_id, str(fault))
        self._limit_samples()

    def _leading(self) -> dict[DataShape, list[str]]:
        """Return the most frequent shapes among nodes with clients, each with its nodes."""
        nodes: dict[DataShape, list[str]] = {}
        for label in self.roster.connected_labels():
            if (roster := self.roster.members[label].clients).samples:
                nodes.setdefault(_shape_of(roster), []).append(label)
        largest = max(map(len, nodes.values()), default=0)
        return {shape: labels for shape, labels in nodes.items() if len(labels) == largest}

    def _check_room(self, node_id: int, answer: NodeRoster) -> None:
        """Raise `Unusable` if the node has more clients than the settings allow."""
        nodes, new = self._settings.nodes, len(answer.samples)
        clients = self.roster.clients_with(node_id, answer)
        earlier = {key for key in self.roster.facts if key.node == _label(node_id, answer)}
        declared = len(earlier | _keys(node_id, answer))
        if self._identity.key(node_id) and declared > nodes.quota:
            raise Unusable(
                f"with its {new} clients it would have declared {declared} clients in all; "
                f"nodes.maximum-clients-per-node = {nodes.maximum_clients_per_node} allows "
                f"{nodes.quota}"
            )
        if clients > nodes.maximum_clients:
            raise Unusable(
                f"with its {new} clients there would be {clients}, more than "
                f"nodes.maximum-clients = {nodes.maximum_clients}"
            )

    def _silent(self) -> str:
        """Return the names of the connected nodes that have not answered, or "" if all have."""
        silent = sorted(self._queries)[:10]
        return ", ".join(self._identity.given_name(node) or str(node) for node in silent)

    def _where_to_look(self, seconds: float, missing: Sequence[str]) -> str:
        """Return what to do about nodes that did not come, for an error message."""
        if names := self._silent():
            return (
                f"connected, but no answer within {seconds:g} s: {names}; their hosts are too "
                "slow, or their ClientApp fails, and its log shows why"
            )
        who = ""
        if missing:
            names = ", ".join(self._identity.names()) or "none"
            who = f"{', '.join(missing)} did not come, and this server knows {names}; "
        return (
            f"{who}fedproto nodes list shows which nodes are online, and the log of a missing "
            "site's SuperNode shows why it is not"
        )

    def _reasons_text(self) -> str:
        """Return why nodes were turned away, for an error message."""
        reasons = sorted({shown(turned_away.reason) for turned_away in self._turned_away.values()})
        return ": " + "; ".join(reasons[:10]) if reasons else ""


def _shape_of(answer: NodeRoster) -> DataShape:
    return DataShape(answer.inputs, answer.classes, answer.columns, answer.step)


def _columns_fault(shape: DataShape, of_run: DataShape) -> str:
    """Return how a node's columns differ from the run's, or "" if they agree."""
    of_series = " that is known in advance" if not shape.inputs else ""
    for column in of_run.columns:
        if column not in shape.columns:
            if len(of_run.inputs) > 1:  # images
                return f"it does not make {shown(column)} of its images"
            return f"its data have no column {shown(column)!r}{of_series}"
    further = next((column for column in shape.columns if column not in of_run.columns), None)
    if further is not None:
        return f"its column {shown(further)!r} is not in the run's data"
    if shape.columns == of_run.columns or not shape.inputs:  # a series finds its columns by name
        return ""
    order = ",".join(of_run.columns)
    return f"its columns come in another order; data.columns = {shown(order)!r} in its file sets it"


def _shape_text(shape: DataShape) -> str:
    if not (shape.inputs or shape.classes):
        columns = shown(", ".join(shape.columns)) if shape.columns else "no columns"
        step = f" with {_step_text(shape)} and" if shape.step else " with"
        return f"series{step} {columns} known in advance"
    columns = f" of {shown(', '.join(shape.columns))}" if shape.columns else ""
    return f"{shape.inputs}{columns} with classes {shown(', '.join(shape.classes))}"


def _step_text(shape: DataShape) -> str:
    return f"a step of {shown(shape.step)}" if shape.step else "no times"
