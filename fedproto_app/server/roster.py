"""Who takes part: the clients that a node declared, by its stable label (design rule 2)."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedproto_app.core.clients import ClientFacts, ClientKey
from fedproto_app.core.messages import NodeRoster


@dataclass
class Member:
    """A node: its current Flower id and the clients it declared."""

    node_id: int
    clients: NodeRoster


class NameTakenError(ValueError):
    """A node has the name of another one that is connected."""


@dataclass
class Roster:
    """All nodes that ever answered, and which are connected now."""

    members: dict[str, Member] = field(default_factory=dict)  # by label
    connected: set[int] = field(default_factory=set)  # Flower's node ids
    quiet: set[int] = field(default_factory=set)  # of these, those that are asked for nothing now
    facts: dict[ClientKey, ClientFacts] = field(default_factory=dict)  # of all ever declared
    first_with: dict[str, str] = field(default_factory=dict)  # a client's name: who declared it

    def admit(self, node_id: int, answer: NodeRoster) -> str:
        """Enter a node's answer; a restarted node takes its old place. Returns its label.

        Raises `NameTakenError` if another connected node goes by the same name.
        """
        label = _label(node_id, answer)
        known = self.members.get(label)
        if known and known.node_id != node_id and known.node_id in self.connected:
            raise NameTakenError(f"its name {label!r} belongs to another connected node")
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
        return label

    def expel(self, label: str) -> None:
        """The node is no member any more; what is known of its clients stays, but their names are
        free for others that declared them."""
        self.members.pop(label, None)
        self.first_with = {name: node for name, node in self.first_with.items() if node != label}
        for other, member in self.members.items():
            for client in member.clients.samples:
                self.first_with.setdefault(client, other)

    def forget(self, label: str) -> None:
        """As if the node of this label had never come."""
        self.expel(label)
        self.facts = {key: facts for key, facts in self.facts.items() if key.node != label}

    def clients_with(self, node_id: int, answer: NodeRoster) -> int:
        """How many clients are declared in all, once this answer is entered."""
        return len(self.facts.keys() | _keys(node_id, answer))

    def clients_of(self, node_id: int, answer: NodeRoster) -> int:
        """How many clients the node has ever declared, once this answer is entered."""
        label, new = _label(node_id, answer), _keys(node_id, answer)
        return len(new | {key for key in self.facts if key.node == label})

    def knows(self, node_id: int) -> bool:
        """Whether the node has been admitted under this id."""
        return any(member.node_id == node_id for member in self.members.values())

    def label_of(self, node_id: int) -> str:
        """The label of a node id; Flower answers for dead nodes under an id of its own."""
        for label, member in self.members.items():
            if member.node_id == node_id:
                return label
        return f"Flower id {node_id}"

    def connected_labels(self) -> list[str]:
        """The labels of all connected nodes."""
        return sorted(
            label for label, member in self.members.items() if member.node_id in self.connected
        )

    def clients(self) -> list[ClientKey]:
        """The clients of all connected nodes that can be asked, in the order of their names."""
        able = self.connected - self.quiet
        return sorted(
            ClientKey(client, label)
            for label, member in self.members.items()
            if member.node_id in able
            for client in member.clients.samples
        )

    def partitions(self) -> int:
        """How many nodes the simulation has, by its nodes' own account; 0 in deployment."""
        told = {member.clients.partitions for member in self.members.values()}
        return told.pop() if len(told) == 1 else 0


def _label(node_id: int, answer: NodeRoster) -> str:
    """The name by which a node is known."""
    return answer.label or str(node_id)


def _keys(node_id: int, answer: NodeRoster) -> set[ClientKey]:
    return {ClientKey(name, _label(node_id, answer)) for name in answer.samples}
