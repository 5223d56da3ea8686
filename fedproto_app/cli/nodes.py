"""``fedproto nodes``: manage the nodes of a federation, their keys and their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedproto_app.cli import results_console
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.events import shown
from fedproto_app.ops.nodes import ONLINE, REVOKED, KnownNode, Nodes, matching_nodes, read_key
from fedproto_app.server.node_register import (
    Binding,
    Names,
    NodeRegister,
    fingerprint,
    register_file,
    time_text,
)

nodes_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")

SuperLink = Annotated[
    str,
    typer.Argument(metavar="SUPERLINK", help="A connection in $FLWR_HOME/config.toml."),
]
Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The node's name, or the fingerprint of its key (see nodes list)."
    ),
]
Runs = Annotated[
    Path,
    typer.Option(
        "--runs",
        metavar="DIR",
        help="The folder of the server's runs. Its file nodes.json is the register of names. "
        "Default: $FEDPROTO_OUTPUT_ROOT, else runs.",
    ),
]


@nodes_app.callback()
def _nodes() -> None:
    """List the nodes of a federation, and manage their keys and names.

    A node authenticates with its key. If a key is registered under a name,
    only that key may use the name. A key that is registered without a name
    keeps the name that it used first.
    """


@nodes_app.command("list")
def list_nodes(
    superlink: SuperLink,
    runs: Runs = Path("runs"),
    show_revoked: Annotated[bool, typer.Option("--all", help="Also list revoked keys.")] = False,
) -> None:
    """List the nodes with their status, key, id, and number of clients.

    A key is shown as the fingerprint that [bold]ssh-keygen -lf NAME.pub[/bold] prints at the
    site. The columns "clients" and "run" are about the last run that accepted
    the node. They are read from the register on the server's machine, and are
    empty elsewhere.

    [bold]Example[/bold]

      fedproto nodes list federation
    """
    names = _register(runs).read()
    with Nodes(superlink) as nodes:
        known_nodes = nodes.listed()
    table = Table(box=SIMPLE_HEAD)
    for column in ("name", "status", "last seen", "clients", "run", "valid until", "key", "id"):
        table.add_column(column, overflow="fold")
    for node in known_nodes:
        if show_revoked or node.status != REVOKED:
            table.add_row(*map(Text, _row(node, names)))
    results_console().print(table)
    if lost := [
        name for name, binding in names.bound.items() if not _is_registered(binding, known_nodes)
    ]:
        typer.echo(f"bound to keys that are not registered: {', '.join(map(shown, lost))}")
    if names.banned:
        typer.echo(f"banned: {', '.join(map(shown, names.banned))}")


@nodes_app.command()
def register(
    public_key: Annotated[Path, typer.Argument(metavar="NAME.pub", help="A public key.")],
    superlink: SuperLink,
    name: Annotated[
        str, typer.Option(help="The node's name. Default: the file's name without .pub.")
    ] = "",
    valid_days: Annotated[
        int | None,
        typer.Option(min=1, help="Days after which the key expires. Default: never."),
    ] = None,
    runs: Runs = Path("runs"),
) -> None:
    """Register a node's key under its name. If repeated, it only changes the expiry date.

    [bold]Example[/bold]

      fedproto nodes register keys/nodes/harbour.pub federation
      fedproto nodes register keys/nodes/harbour.pub federation --valid-days 365
    """
    name = name or public_key.stem
    with Nodes(superlink) as nodes:
        new = nodes.register(public_key, name)
        keys = [node for node in nodes.listed() if node.name == name and node.status != REVOKED]
    end = ""
    if valid_days is not None:
        end = f", until {_end(runs, [fingerprint(read_key(public_key))], valid_days)}"
    typer.echo(f"{name}: {'registered' if new else 'is registered'}{end}")
    if len(keys) > 1:
        typer.echo(
            f"note: {len(keys)} keys are registered under this name; revoke the old one by its "
            f"fingerprint: {', '.join(node.key for node in keys)}",
            err=True,
        )


@nodes_app.command()
def rotate(
    name: Name,
    public_key: Annotated[Path, typer.Argument(metavar="NEW.pub", help="The new public key.")],
    superlink: SuperLink,
    runs: Runs = Path("runs"),
    overlap_days: Annotated[
        int,
        typer.Option(
            min=0,
            help="Accept the old key for this number of days, so that the site can restart its "
            "node when it suits. 0: revoke the old key now.",
        ),
    ] = 0,
) -> None:
    """Register a new key under a node's name, and revoke the old key, now or later.

    First the site moves its old pair of keys away, makes a new pair with
    [bold]fedproto keys DIR --node NAME[/bold], and sends NAME.pub. Afterwards it restarts
    its SuperNode with the new key. Its clients continue with the models on
    its disk.

    [bold]Examples[/bold]

      fedproto nodes rotate harbour new/harbour.pub federation
      fedproto nodes rotate harbour new/harbour.pub federation --overlap-days 7
    """
    with Nodes(superlink) as nodes:
        names, new = _register(runs).read(), fingerprint(read_key(public_key))
        old = [node for node in matching_nodes(nodes.listed(), name, names) if node.key != new]
        if not old:
            raise SettingsError(f"{public_key}: {name} already has this key")
        called = old[0].name or names.name_of(old[0].key)
        if not called:
            raise SettingsError(
                f"{name}: this key has no name; register the new key, then revoke this one"
            )
        nodes.register(public_key, called)
        if overlap_days:
            end = _end(runs, [node.key for node in old], overlap_days)
        else:
            for node in old:
                nodes.revoke(node)
    ended = f"accepted until {end}" if overlap_days else "revoked"
    typer.echo(f"{called}: has the new key {new}; {ended}: {_keys(old)}")


@nodes_app.command()
def revoke(
    name: Name,
    superlink: SuperLink,
    runs: Runs = Path("runs"),
) -> None:
    """Remove a node's key from the federation permanently.

    Flower refuses the key from now on and never registers it again. The node
    keeps its name, so you can register a new key under it. Also remove
    NAME.pub from the folder whose keys the server registers.

    [bold]Example[/bold]

      fedproto nodes revoke harbour federation
    """
    with Nodes(superlink) as nodes:
        matching = matching_nodes(nodes.listed(), name, _register(runs).read())
        if len(matching) > 1:
            raise SettingsError(
                f"{name!r}: {len(matching)} keys are registered under this name; give one of "
                f"their fingerprints: {_keys(matching)}"
            )
        nodes.revoke(matching[0])
    typer.echo(f"{matching[0].name or name}: revoked the key {matching[0].key}")


@nodes_app.command()
def ban(
    name: Name,
    superlink: Annotated[
        str, typer.Argument(metavar="[SUPERLINK]", help="Also ban the keys registered under NAME.")
    ] = "",
    runs: Runs = Path("runs"),
) -> None:
    """Exclude a name and its keys from all runs of this server.

    Current runs stop asking the node from their next round on. Its key stays
    registered, so [bold]fedproto nodes unban NAME[/bold] can lift the ban.

    [bold]Example[/bold]

      fedproto nodes ban harbour federation
    """
    node_register = _register(runs)
    keys: list[str] = []
    if superlink:
        with Nodes(superlink) as nodes:
            keys = [node.key for node in nodes.listed() if name in (node.name, node.key)]
    with node_register.changing() as names:
        if bound := names.bound.get(name):
            keys.append(bound.key)
        if name.startswith("SHA256:"):
            keys.append(name)
        names.banned[name] = list(dict.fromkeys([*names.banned.get(name, []), *keys]))
    typer.echo(f"{name}: banned, with these keys: {', '.join(names.banned[name]) or 'none known'}")


@nodes_app.command()
def unban(name: Name, runs: Runs = Path("runs")) -> None:
    """Lift a ban."""
    with _register(runs).changing() as names:
        if name not in names.banned:
            banned = ", ".join(map(shown, names.banned)) or "nobody"
            raise SettingsError(f"{name!r} is not banned; banned: {banned}")
        del names.banned[name]
    typer.echo(f"{name}: no longer banned")


@nodes_app.command()
def release(name: Name, runs: Runs = Path("runs")) -> None:
    """Release a name from its key. The next node that uses the name gets it.

    This is needed if a site has a new key and keys are registered without
    names. If keys are registered under a name, no release is needed: the
    newest key that connects gets the name.

    [bold]Example[/bold]

      fedproto nodes release harbour
    """
    with _register(runs).changing() as names:
        if name not in names.bound:
            bound = ", ".join(map(shown, names.bound)) or "none"
            raise SettingsError(f"{name!r} is bound to no key here; bound names: {bound}")
        key = names.bound.pop(name).key
    typer.echo(f"{name}: released from the key {key}")


def _register(runs: Path) -> NodeRegister:
    return NodeRegister(register_file(str(runs)))


def _end(runs: Path, keys: Sequence[str], days: int) -> str:
    """Let these keys expire after so many days, and return the date."""
    end = time_text(days)
    with _register(runs).changing() as names:
        names.ends |= dict.fromkeys(keys, end)
    return end


def _row(node: KnownNode, names: Names) -> Sequence[str]:
    name = node.name or names.name_of(node.key) or ""
    bound = names.bound.get(name)
    current = bound if bound and bound.key == node.key else None
    end = names.ends.get(node.key, "")
    status = "ended" if end and end <= time_text() else node.status
    status = "banned" if names.ban_of(name, node.key) is not None else status
    last_seen = "now" if node.status == ONLINE else node.last_online or "never"
    clients, run = (str(current.clients), current.run) if current else ("", "")
    shown_run, until = shown(run), end.partition(" ")[0]
    return [shown(name), status, last_seen, clients, shown_run, until, node.key, str(node.node_id)]


def _is_registered(bound: Binding, nodes: Sequence[KnownNode]) -> bool:
    return any(node.key == bound.key and node.status != REVOKED for node in nodes)


def _keys(nodes: Sequence[KnownNode]) -> str:
    return ", ".join(node.key for node in nodes)
