"""Bind the names of nodes to keys: a name belongs to the key that a node authenticates with.

If the operator registered a node's key under a name, this name is the node's label. Otherwise the
label is the name that the node reports. When this name is used for the first time, it is bound to
the node's key, for all runs of this server. A simulated node has no key, so its name is accepted.

The server's register of names and keys is one JSON file, which all its runs share. A name belongs
to one key, and a key to one name. Flower keeps a node's id while its key is registered, and never
registers a key twice. If the SuperLink's database is lost, the ids change but the keys do not. The
register therefore uses keys.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.events import shown
from fedproto_app.core.whole_file import write_whole
from fedproto_app.settings.paths import OUTPUT_ROOT

if TYPE_CHECKING:  # Flower is slow to import
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.serverapp import Grid

REGISTER = "nodes.json"  # the file's name, in the folder that holds the runs' folders


@dataclass(frozen=True)
class Binding:
    """The key that a name belongs to, and facts about its node.

    key: the key's fingerprint. named: whether the operator chose the name when registering the key.
    If not, the node was the first to use the name. since, seen: when the name was bound, and when
    the node last joined. run: the run that it joined then. clients: its number of clients there.
    """

    key: str
    node_id: int
    named: bool
    since: str
    seen: str
    run: str
    clients: int


@dataclass
class Names:
    """The register's content: the bindings by name, and for each banned name its banned keys.

    ends: by fingerprint, the time (`time_text`) until which a key may be used. Other keys have no
    end.
    """

    bound: dict[str, Binding] = field(default_factory=dict)
    banned: dict[str, list[str]] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)

    def name_of(self, key: str) -> str | None:
        """Return the name that belongs to this key."""
        return next((name for name, binding in self.bound.items() if binding.key == key), None)

    def ban_of(self, name: str, key: str) -> str | None:
        """Return the banned name that matches this name or key."""
        if name in self.banned:
            return name
        return next((banned for banned, keys in self.banned.items() if key in keys), None)


class NodeRegister:
    """The register of nodes in this file, which is created with the first entry.

    If the file cannot be read, its methods raise `SettingsError`, because a damaged register must
    not free all names.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read_at: tuple[int, int] | None = None  # the file's time and inode
        self._names = Names()

    def read(self) -> Names:
        """Return the current content."""
        try:
            status = self.file.stat()
        except FileNotFoundError:
            self._read_at, self._names = None, Names()
            return self._names
        if self._read_at != (status.st_mtime_ns, status.st_ino):
            self._names = self._parsed()
            self._read_at = (status.st_mtime_ns, status.st_ino)
        return self._names

    @contextmanager
    def changing(self) -> Iterator[Names]:
        """Yield the content for a block. No other process can change it meanwhile.

        When the block ends, the change is on the disk. Raises `SettingsError` on a file system
        without locks, where another process could undo the change, and a ban could get lost
        unnoticed.
        """
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.with_suffix(".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError as error:
                raise SettingsError(
                    f"{lock.name}: cannot be locked ({error.strerror}), so another process could "
                    "undo a change of the register of nodes; keep the folder on a file system with "
                    f"locks ({OUTPUT_ROOT}, output.dir)"
                ) from None
            names = self._parsed() if self.file.exists() else Names()
            yield names
            content = json.dumps(asdict(names), indent=1).encode() + b"\n"
            write_whole(self.file, content, durable=True)

    def _parsed(self) -> Names:
        try:
            table = json.loads(self.file.read_text(encoding="utf-8"))
            bound = {name: Binding(**entry) for name, entry in table["bound"].items()}
            banned = {name: [str(key) for key in keys] for name, keys in table["banned"].items()}
            ends = {str(key): str(end) for key, end in table.get("ends", {}).items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise SettingsError(
                f"{self.file}: the register of nodes cannot be read ({error!r}); restore it. If "
                "you move it away instead, every name goes to the first node that uses it"
            ) from None
        return Names(bound, banned, ends)


def fingerprint(public_key: bytes) -> str:
    """Return a key's fingerprint as `ssh-keygen -l` prints it, or "" for anything else.

    public_key: in PEM or OpenSSH format.
    """
    from cryptography.exceptions import UnsupportedAlgorithm  # most commands read no key
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.hashes import SHA256

    is_pem = public_key.startswith(b"-----BEGIN")
    try:
        load = serialization.load_pem_public_key if is_pem else serialization.load_ssh_public_key
        key: Any = load(public_key)
        digest = serialization.ssh_key_fingerprint(key, SHA256())
    except (ValueError, UnsupportedAlgorithm):
        return ""
    return "SHA256:" + b64encode(digest).decode().rstrip("=")


def time_text(days: int = 0) -> str:
    """Return the time in so many days, as the register writes it. These texts sort by time."""
    return (datetime.now(UTC) + timedelta(days=days)).strftime("%Y-%m-%d %H:%M:%S UTC")


def register_file(output_dir: str) -> Path:
    """Return the register's path: in FEDPROTO_OUTPUT_ROOT, else in the folder of the runs."""
    return Path(os.environ.get(OUTPUT_ROOT) or output_dir).expanduser().resolve() / REGISTER


class NameRefused(ValueError):
    """A node's name is banned, belongs to another node, or is not among the names of the run."""


class Identity:
    """The names of the nodes of a run.

    binds: whether a name belongs to the key of the node that first used it.
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
        """Return the fingerprint of the node's key, or "" for a simulated node."""
        if node_id not in self._keys:
            node = self._known.get(node_id)
            self._keys[node_id] = fingerprint(node.public_key) if node else ""
        return self._keys[node_id]

    def names(self) -> list[str]:
        """Return the names of all nodes that ever connected to this run or to this server's earlier
        runs."""
        given = {self.given_name(node_id) for node_id in self._known} - {""}
        return [shown(name) for name in sorted(given | self._register.read().bound.keys())]

    def given_name(self, node_id: int) -> str:
        """Return the name that the operator gave the node, or "" without one."""
        node = self._known.get(node_id)
        return node.name if node and self.key(node_id) else ""

    def is_stronger(self, node_id: int, other_id: int, label: str) -> bool:
        """Return whether the operator gave the label to this node and not to the other one."""
        return self.given_name(node_id) == label != self.given_name(other_id)

    def label(self, node_id: int, says: str) -> str:
        """Return the label of a node that reports the name `says`, or raise `NameRefused`."""
        label = self.given_name(node_id) or says or str(node_id)
        if says and says != label:
            raise NameRefused(
                f"it calls itself {shown(says)!r}, but its key is registered under the name "
                f"{label!r}"
            )
        if fault := self.fault(node_id, label):
            raise NameRefused(fault)
        return label

    def fault(self, node_id: int, label: str) -> str | None:
        """Return why the node may not use this label, or None if it may."""
        key = self.key(node_id)
        if not key:
            return None
        names = self._register.read()
        if banned := names.ban_of(label, key):
            unban = f"fedproto nodes unban {shlex.quote(banned)}"
            return f"{banned!r} is banned from this server ({unban})"
        if (end := names.ends.get(key)) and end <= time_text():
            return f"its key {key} ended at {end}; the site needs a new key (fedproto keys)"
        if self.given_name(node_id):
            return None  # the operator chose the name
        if any(label in (self.given_name(i), str(i)) for i in self._known if i != node_id):
            return f"its name {shown(label)!r} is another node's registered name, or its id"
        bound = names.bound.get(label)
        if bound and bound.key != key and (self._binds or bound.named):
            return (
                f"its name {shown(label)!r} belongs to the key {bound.key}, and its own is {key}; "
                f"if the site has a new key: fedproto nodes release {shlex.quote(shown(label))}"
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
            since = before.since if before and before.key == key else time_text()
            if former := names.name_of(key):  # the operator has renamed the node
                del names.bound[former]
            names.bound[label] = Binding(
                key, node_id, is_registered, since, time_text(), self._run, clients
            )
