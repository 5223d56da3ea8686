"""``fedproto keys`` and ``fedproto signing-key``: make and show the keys of server and sites."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedproto_app.cli import say_next

_SITE = Path("/etc/fedproto/site.toml")


def keys(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder for the keys, made if needed."),
    ],
    hosts: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME_OR_IP",
            help="A DNS name or IP address of the server; may be repeated. localhost and 127.0.0.1 "
            "are always included.",
        ),
    ] = None,
    nodes: Annotated[
        list[str] | None,
        typer.Option("--node", metavar="NAME", help="A node to make a key for; may be repeated."),
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only print when the certificates in DIR expire. The exit code is 1 if one "
            "expires within 30 days.",
        ),
    ] = False,
) -> None:
    """Make a private CA, the server's certificate, and a key for each node.

    --host makes DIR/ca.crt, ca.key, server.pem and server.key. An existing
    CA is used again. --node makes DIR/nodes/NAME and NAME.pub. A site can
    run this with --node on its own machine and send only NAME.pub, so that
    its private key never leaves the site. Existing files are never
    overwritten. Only you can read the private files.

    [bold]Examples[/bold]

      fedproto keys /etc/fedproto/keys --host fl.example.org --node harbour
      fedproto keys /etc/fedproto/keys --node station --node airport
      fedproto keys /etc/fedproto/keys --check
    """
    if check:
        _check(folder)
        return
    from fedproto_app.ops.keys import make_keys  # imports cryptography, rarely needed

    files = make_keys(folder, hosts or [], nodes or [])
    home = folder.expanduser().resolve()
    typer.echo(f"made in {home}:")
    for file in files:
        kind = "private" if file.private else "public"
        typer.echo(f"  {file.path.relative_to(home)!s:<24} {kind:<8} → {file.goes_to}")
    if nodes:
        typer.echo("\nRegister each node once (SUPERLINK: a connection in $FLWR_HOME/config.toml):")
    for file in files:
        if file.path.suffix == ".pub":
            public = shlex.quote(str(file.path))
            typer.echo(f"  fedproto nodes register {public} SUPERLINK")
    after = "fedproto run CONFIG.toml --superlink SUPERLINK, once the nodes are connected"
    more = f"fedproto keys {shlex.quote(str(folder))} --node NAME, for each node"
    say_next(Console(stderr=True), after if nodes else more)


def _check(folder: Path) -> None:
    from fedproto_app.ops.keys import certificates_in

    ends, today = certificates_in(folder.expanduser()), datetime.now(UTC)
    for certificate in ends:
        typer.echo(certificate.line(today))
    if any(certificate.is_soon(today) for certificate in ends):
        typer.echo("renew them in time, see Keys in docs/deployment.md", err=True)
        raise typer.Exit(1)


def signing_key(
    site: Annotated[
        Path, typer.Argument(metavar="[SITE.toml]", help=f"The site's file. Default: {_SITE}.")
    ] = _SITE,
) -> None:
    """Show the public key that authenticates this site in masked sums.

    The site makes the private key on first use, and keeps it in its state
    directory. Send the printed line to the other sites, but not through the
    server. Each of them adds it to its own settings file:

      [masked-sums]
      known = ["ssh-ed25519 AAAA…"]

    [bold]Example[/bold]

      fedproto signing-key site.toml
    """
    from fedproto_app.node.masking import signer_of  # imports Flower, which is slow
    from fedproto_app.node.site import site_file

    typer.echo(signer_of(site_file(site)).line)
