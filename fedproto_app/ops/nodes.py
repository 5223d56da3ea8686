"""List, register and revoke the nodes of a SuperLink, with their names, ids and keys.

``flwr supernode list`` prints neither names nor keys. This module therefore calls Flower's Control
API, over the connection in Flower's config.toml.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Self

import click

from fedproto_app.core.errors import FederationError, SettingsError
from fedproto_app.server.node_register import Names, fingerprint

if TYPE_CHECKING:  # Flower is slow to import
    from flwr.proto.node_pb2 import NodeInfo

REVOKED = "revoked"  # what Flower calls unregistered
ONLINE = "online"


@dataclass(frozen=True)
class KnownNode:
    """A node of a SuperLink.

    name: the name under which its key is registered, or "". status: Flower's "registered" (never
    online), "online" or "offline", or our "revoked". last_online: when it was last online, or "".
    """

    node_id: int
    name: str
    key: str
    status: str
    last_online: str


class Nodes:
    """The nodes of a SuperLink, for use in a ``with`` block. superlink: its connection's name.

    Raises `FederationError` with Flower's message if the SuperLink refuses a request.
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

    def listed(self) -> list[KnownNode]:
        """Return every node that was ever registered, sorted by name and time of registration."""
        with _plainly():
            nodes = self._client.ListNodes(self._messages.ListNodesRequest()).nodes_info
        in_order = sorted(nodes, key=lambda node: (node.name, node.registered_at))
        return [_known_node(node) for node in in_order]

    def register(self, public_key: Path, name: str) -> bool:
        """Register a key under a name. Return whether the key was new.

        Raises `SettingsError` if the file holds no public key, if the key is registered under
        another name, or if it was revoked, because Flower never accepts it again.
        """
        key = read_key(public_key)
        registered = next((node for node in self.listed() if node.key == fingerprint(key)), None)
        if registered is None:
            with _plainly():
                request = self._messages.RegisterNodeRequest(public_key=key, name=name)
                self._client.RegisterNode(request)
            return True
        if registered.status == REVOKED:
            raise SettingsError(
                f"{public_key}: this key was revoked, and Flower never accepts it again; the site "
                "needs a new key (fedproto keys)"
            )
        if registered.name != name:
            raise SettingsError(
                f"{public_key}: is already registered under the name {registered.name!r}, not "
                f"{name!r}"
            )
        return False

    def revoke(self, node: KnownNode) -> None:
        """Unregister the node. Its key is then refused for good."""
        with _plainly():
            request = self._messages.UnregisterNodeRequest(node_id=node.node_id)
            self._client.UnregisterNode(request)


def matching_nodes(nodes: Sequence[KnownNode], text: str, names: Names) -> list[KnownNode]:
    """Return the nodes whose name, fingerprint or id is this text. Revoked nodes are left out.

    names: the server's register. It also names nodes whose keys were registered without a name.
    Raises `SettingsError` if no node matches.
    """
    bound = names.bound.get(text)
    tests: list[Callable[[KnownNode], bool]] = [
        lambda node: node.name == text,
        lambda node: text in (node.key, str(node.node_id)),
        lambda node: bound is not None and not node.name and node.key == bound.key,
    ]
    alive = [node for node in nodes if node.status != REVOKED]
    for test in tests:
        if matches := [node for node in alive if test(node)]:
            return matches
    alive_names = ", ".join(dict.fromkeys(node.name or str(node.node_id) for node in alive))
    raise SettingsError(f"{text!r}: no node has this name; registered: {alive_names or 'none'}")


def require_registered(superlink: str, names: Sequence[str]) -> None:
    """Raise `SettingsError` if the SuperLink lacks a node with one of these names (`nodes.names`).

    A node whose key was registered without a name tells its name only when it is asked. While there
    are such nodes, no name is refused.
    """
    with Nodes(superlink) as nodes:
        registered = {node.name for node in nodes.listed() if node.status != REVOKED}
    unknown = [name for name in names if name not in registered]
    if unknown and registered and all(registered):
        raise SettingsError(
            f"nodes.names: no node is called {', '.join(map(repr, unknown))}; registered: "
            f"{', '.join(sorted(registered))}"
        )


def _known_node(node: NodeInfo) -> KnownNode:
    status = REVOKED if node.status == "unregistered" else node.status
    last_active = node.last_deactivated_at or node.last_activated_at
    return KnownNode(
        node.node_id, node.name, fingerprint(node.public_key), status, _minute(last_active)
    )


def _minute(time: str) -> str:
    """Return Flower's ISO time as a text for readers, to the second."""
    return f"{time[:19].replace('T', ' ')} UTC" if time else ""


def read_key(file: Path) -> bytes:
    """Return a public key in PEM format, which the Control API expects.

    Raises `SettingsError` if the file holds no public key.
    """
    from cryptography.hazmat.primitives import serialization  # most commands read no key
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_ssh_public_key(file.expanduser().read_bytes())
    except OSError as error:
        raise SettingsError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SettingsError(
            f"{file}: must be a public key such as fedproto keys makes (NAME.pub): ECDSA, OpenSSH"
        )
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@contextmanager
def _plainly() -> Iterator[None]:
    """Turn Flower's errors into one line, and suppress the output of its command line."""
    from flwr.cli.utils import flwr_cli_exc_handler

    try:
        with redirect_stdout(StringIO()), flwr_cli_exc_handler():
            yield
    except click.ClickException as error:
        message = " ".join(error.message.split())
        raise FederationError(
            f"the SuperLink could not be reached, or refused the request: {message}"
        ) from None
