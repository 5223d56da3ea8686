"""The identity of nodes: a name belongs to the key that a node uses to authenticate to Flower.

A node's label is the name under which the operator registered its key, if there is one. A node
whose key has no name uses the name that it reports; on first use the name is bound to its key, for
all runs of this server (`node_register`). A simulated node has no key, so its name is accepted.
"""

from __future__ import annotations

from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid

from fedproto_app.core.events import shown
from fedproto_app.server.node_register import Binding, NodeRegister, fingerprint, now


class NotItsNameError(ValueError):
    """A node uses another node's name or a banned name."""


class Identity:
    """The names of the nodes of a run.

    binds: whether a name belongs to the key that first came with it.
    """

    def __init__(self, register: NodeRegister, run: str, *, binds: bool) -> None:
        self._register, self._run, self._binds = register, run, binds
        self._known: dict[int, NodeInfo] = {}  # every node that ever connected
        self._keys: dict[int, str] = {}  # fingerprints by node id

    def look(self, grid: Grid) -> set[int]:
        """Return the ids of the connected nodes, and store Flower's information about them."""
        connected = {node.node_id: node for node in grid.get_nodes()}
        self._known |= connected
        return set(connected)

    def key(self, node_id: int) -> str:
        """Return the fingerprint of the node's key; "" for a simulated node."""
        if node_id not in self._keys:
            node = self._known.get(node_id)
            self._keys[node_id] = fingerprint(node.public_key) if node else ""
        return self._keys[node_id]

    def given_name(self, node_id: int) -> str:
        """Return the name that the operator gave the node; "" without one."""
        node = self._known.get(node_id)
        return node.name if node and self.key(node_id) else ""

    def is_stronger(self, node_id: int, other_id: int, label: str) -> bool:
        """Whether the operator gave the label to this node and not to the other."""
        return self.given_name(node_id) == label != self.given_name(other_id)

    def label(self, node_id: int, says: str) -> str:
        """Return the label of a node that reports the name `says`; raise `NotItsNameError`."""
        label = self.given_name(node_id) or says or str(node_id)
        if says and says != label:
            raise NotItsNameError(
                f"it calls itself {shown(says)!r}, but its key is registered under the name "
                f"{label!r}"
            )
        if fault := self.fault(node_id, label):
            raise NotItsNameError(fault)
        return label

    def fault(self, node_id: int, label: str) -> str | None:
        """Return why the node may not use this label; None if it may."""
        key = self.key(node_id)
        if not key:
            return None
        names = self._register.read()
        if banned := names.ban_of(label, key):
            return f"{banned!r} is banned from this server (fedproto nodes unban {banned})"
        if self.given_name(node_id):
            return None  # the operator chose the name
        if any(label in (self.given_name(i), str(i)) for i in self._known if i != node_id):
            return f"its name {shown(label)!r} is another node's, whose key is registered under it"
        bound = names.bound.get(label)
        if bound and bound.key != key and (self._binds or bound.named):
            return (
                f"its name {shown(label)!r} belongs to the key {bound.key}, and its own is {key}; "
                f"if the site has a new key: fedproto nodes release {shown(label)}"
            )
        if self._binds and (before := names.name_of(key)) not in (None, label):
            return f"its key {key} belongs to the name {before!r}, and it says {shown(label)!r}"
        return None

    def enter(self, node_id: int, label: str, clients: int) -> None:
        """Write the admitted node to the register, which binds the label to its key."""
        key, is_registered = self.key(node_id), bool(self.given_name(node_id))
        if not key or not (is_registered or self._binds):
            return
        with self._register.changing() as names:
            before = names.bound.get(label)
            since = before.since if before and before.key == key else now()
            if former := names.name_of(key):  # the operator has renamed the node
                del names.bound[former]
            names.bound[label] = Binding(
                key, node_id, is_registered, since, now(), self._run, clients
            )
