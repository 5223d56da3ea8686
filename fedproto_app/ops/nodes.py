"""The nodes that a SuperLink knows: names, ids, keys, and what an operator does with them.

``flwr supernode list`` tells neither names nor keys, so Flower's Control API is asked directly, by
the connection of Flower's own config.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.server.node_register import Names, fingerprint

if TYPE_CHECKING:  # Flower is slow to import
    from flwr.proto.node_pb2 import NodeInfo

REVOKED = "revoked"  # what Flower calls unregistered
ONLINE = "online"


@dataclass(frozen=True)
class KnownNode:
    """A node of a SuperLink.

    name: under which its key is registered, "" without one. status: Flower's "registered" (never
    seen), "online" or "offline", or "revoked". seen: when it was last online, "" if never.
    """

    node_id: int
    name: str
    key: str
    status: str
    seen: str


class Nodes:
    """The nodes of a SuperLink, by the name of its connection, for a ``with`` block.

    Raises `FederationError` with Flower's word when the SuperLink does not do what it is asked.
    """

    def __init__(self, superlink: str) -> None:
        from flwr.cli.flower_config import read_superlink_connection
        from flwr.cli.utils import init_http_client_from_connection
        from flwr.proto import control_pb2

        self._messages = control_pb2
        with _plainly():
            connection = read_superlink_connection(superlink)
            if not connection.address or connection.address.startswith(":"):
                raise SettingsError(
                    f"{superlink}: is a simulation on this machine; name the connection to a "
                    "SuperLink in $FLWR_HOME/config.toml"
                )
            self._client = init_http_client_from_connection(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def all(self) -> list[KnownNode]:
        """Every node that was ever registered, in the order of names and registration."""
        with _plainly():
            told = self._client.ListNodes(self._messages.ListNodesRequest()).nodes_info
        in_order = sorted(told, key=lambda one: (one.name, one.registered_at))
        return [_known(node) for node in in_order]

    def register(self, public_key: Path, name: str) -> bool:
        """Register a key under a name; whether it was new.

        Raises `SettingsError` for what is no public key, for a key that was revoked, which Flower
        never takes again, and for one that is registered under another name.
        """
        key = read_key(public_key)
        same = next((node for node in self.all() if node.key == fingerprint(key)), None)
        if same is None:
            with _plainly():
                asked = self._messages.RegisterNodeRequest(public_key=key, name=name)
                self._client.RegisterNode(asked)
            return True
        if same.status == REVOKED:
            raise SettingsError(
                f"{public_key}: this key was revoked, and Flower never takes a key twice; the site "
                "needs a new one (fedproto keys)"
            )
        if same.name != name:
            raise SettingsError(
                f"{public_key}: is registered already, under the name {same.name!r}, not {name!r}"
            )
        return False

    def revoke(self, node: KnownNode) -> None:
        """Unregister the node: its key is refused from now on, for good."""
        with _plainly():
            asked = self._messages.UnregisterNodeRequest(node_id=node.node_id)
            self._client.UnregisterNode(asked)


def named(nodes: Sequence[KnownNode], wanted: str, names: Names) -> list[KnownNode]:
    """The nodes that are meant by a name, a fingerprint or an id, without those revoked.

    names: the server's register, which knows the names of keys that were registered without one.
    Raises `SettingsError` if there is none.
    """
    bound = names.bound.get(wanted)
    tests: list[Callable[[KnownNode], bool]] = [
        lambda node: node.name == wanted,
        lambda node: wanted in (node.key, str(node.node_id)),
        lambda node: bound is not None and not node.name and node.key == bound.key,
    ]
    alive = [node for node in nodes if node.status != REVOKED]
    for test in tests:
        if meant := [node for node in alive if test(node)]:
            return meant
    known = ", ".join(dict.fromkeys(node.name or str(node.node_id) for node in alive))
    raise SettingsError(f"{wanted!r}: no node is called so; there are: {known or 'none'}")


def _known(node: NodeInfo) -> KnownNode:
    status = REVOKED if node.status == "unregistered" else node.status
    seen = node.last_deactivated_at or node.last_activated_at
    return KnownNode(node.node_id, node.name, fingerprint(node.public_key), status, _minute(seen))


def _minute(time: str) -> str:
    """Flower's ISO time, UTC, to the second."""
    return f"{time[:19].replace('T', ' ')} UTC" if time else ""


def read_key(file: Path) -> bytes:
    """A public key as the Control API takes it, PEM; `SettingsError` if the file is none."""
    try:
        key = load_ssh_public_key(file.expanduser().read_bytes())
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SettingsError(
            f"{file}: must be a public key as fedproto keys makes it, NAME.pub: ECDSA, OpenSSH"
        )
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@contextmanager
def _plainly() -> Iterator[None]:
    """Flower's words in one line, and nothing else of what its command line prints."""
    from flwr.cli.utils import flwr_cli_exc_handler

    try:
        with redirect_stdout(StringIO()), flwr_cli_exc_handler():
            yield
    except click.ClickException as error:
        said = " ".join(error.message.split())
        raise FederationError(f"the SuperLink was not reached, or refused: {said}") from None
