"""The clients that nodes have declared, by the node's stable label (design rule 2)."""

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
    """A node has the name of another connected node."""


@dataclass
class Roster:
    """All nodes that ever answered, and which are connected now."""

    members: dict[str, Member] = field(default_factory=dict)  # by label
    connected: set[int] = field(default_factory=set)  # Flower's node ids
    quiet: set[int] = field(default_factory=set)  # connected nodes that get no orders now
    facts: dict[ClientKey, ClientFacts] = field(default_factory=dict)  # of all declared clients
    first_with: dict[str, str] = field(default_factory=dict)  # first node by client name

    def admit(self, node_id: int, answer: NodeRoster) -> str:
        """Enter a node's answer and return its label; a restarted node replaces its old entry.

        Raise `NameTakenError` if another connected node has the same name.
        """
        label = _label(node_id, answer)
        member = self.members.get(label)
        if member and member.node_id != node_id and member.node_id in self.connected:
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
        """Remove a member. The facts about its clients stay, but other nodes that declared clients
        of these names become their first nodes."""
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
        """Return the number of declared clients after entering this answer."""
        return len(self.facts.keys() | _keys(node_id, answer))

    def clients_of(self, node_id: int, answer: NodeRoster) -> int:
        """Return the number of clients that the node has declared, including this answer."""
        label, new = _label(node_id, answer), _keys(node_id, answer)
        return len(new | {key for key in self.facts if key.node == label})

    def knows(self, node_id: int) -> bool:
        """Whether the node has been admitted under this id."""
        return any(member.node_id == node_id for member in self.members.values())

    def label_of(self, node_id: int) -> str:
        """Return the label of a node id; Flower answers for dead nodes under another id."""
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
        """Return the clients of all nodes that can get orders, in the order of their names."""
        able = self.connected - self.quiet
        return sorted(
            ClientKey(client, label)
            for label, member in self.members.items()
            if member.node_id in able
            for client in member.clients.samples
        )

    def partitions(self) -> int:
        """Return the number of simulated nodes, as the nodes report it; 0 in deployment."""
        counts = {member.clients.partitions for member in self.members.values()}
        return counts.pop() if len(counts) == 1 else 0


def _label(node_id: int, answer: NodeRoster) -> str:
    """Return the node's name, or its id if it has none."""
    return answer.label or str(node_id)


def _keys(node_id: int, answer: NodeRoster) -> set[ClientKey]:
    return {ClientKey(name, _label(node_id, answer)) for name in answer.samples}
