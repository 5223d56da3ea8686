"""A server's register of node names and keys, in one JSON file.

All runs of a server share the file. A name belongs to one key, and a key to one name. Flower keeps
a node's id while its key is registered, and never registers a key twice. If the SuperLink's
database is lost, the ids change but the keys do not, so the register uses keys.
"""

from __future__ import annotations

import fcntl
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
    load_ssh_public_key,
)

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.whole_file import write_whole
from fedproto_app.settings.paths import OUTPUT_ROOT

REGISTER = "nodes.json"  # the file's name, in the folder that holds the runs' folders


@dataclass(frozen=True)
class Binding:
    """The key that a name belongs to, and when its node was last seen.

    key: its fingerprint. named: whether the operator chose the name when registering the key;
    otherwise the node was the first to use it. clients: their number in the run of this name.
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
    """The register's content: bindings by name, and the banned keys by banned name."""

    bound: dict[str, Binding] = field(default_factory=dict)
    banned: dict[str, list[str]] = field(default_factory=dict)

    def name_of(self, key: str) -> str | None:
        """Return the name that belongs to this key."""
        return next((name for name, binding in self.bound.items() if binding.key == key), None)

    def ban_of(self, name: str, key: str) -> str | None:
        """Return the banned name that matches this name or key."""
        if name in self.banned:
            return name
        return next((banned for banned, keys in self.banned.items() if key in keys), None)


class NodeRegister:
    """The register in this file, which appears with the first entry.

    Raise `SettingsError` if the file cannot be read: a lost register must not free all names.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read_at: tuple[int, int] | None = None  # the file's time and inode
        self._names = Names()

    def read(self) -> Names:
        """Return the present content."""
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
        """Yield the content, to be changed within the block; one process at a time."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.with_suffix(".lock").open("a") as lock:
            with suppress(OSError):  # a file system without locks: the last writer wins
                fcntl.flock(lock, fcntl.LOCK_EX)
            names = self._parsed() if self.file.exists() else Names()
            yield names
            write_whole(self.file, json.dumps(asdict(names), indent=1).encode() + b"\n")

    def _parsed(self) -> Names:
        try:
            table = json.loads(self.file.read_text(encoding="utf-8"))
            bound = {name: Binding(**entry) for name, entry in table["bound"].items()}
            banned = {name: [str(key) for key in keys] for name, keys in table["banned"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise SettingsError(
                f"{self.file}: the register of nodes cannot be read ({error!r}): restore it, or "
                "move it away, and every name goes to the first node that uses it"
            ) from None
        return Names(bound, banned)


def fingerprint(public_key: bytes) -> str:
    """Return a key's fingerprint as `ssh-keygen -l` prints it; "" for anything else.

    public_key: in PEM or OpenSSH format.
    """
    try:
        key: PublicKeyTypes = (
            load_pem_public_key(public_key)
            if public_key.startswith(b"-----BEGIN")
            else load_ssh_public_key(public_key)
        )
        line = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    except (ValueError, UnsupportedAlgorithm):
        return ""
    digest = sha256(b64decode(line.split()[1])).digest()
    return "SHA256:" + b64encode(digest).decode().rstrip("=")


def now() -> str:
    """Return the present time as the register writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def register_file(output_dir: str) -> Path:
    """Return the register's path: in FEDPROTO_OUTPUT_ROOT, else in the folder of the runs."""
    return Path(os.environ.get(OUTPUT_ROOT) or output_dir).expanduser().resolve() / REGISTER
