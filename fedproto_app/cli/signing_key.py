"""``fedproto signing-key``: show the key that authenticates a site in masked sums."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedproto_app.node.site import site_file

_SITE = Path("/etc/fedproto/site.toml")


def signing_key(
    site: Annotated[
        Path, typer.Argument(metavar="[SITE.toml]", help=f"The site's file. Default: {_SITE}.")
    ] = _SITE,
) -> None:
    """Show the public key that authenticates this site in masked sums.

    The site makes the private key on first use, and keeps it in its state
    directory. Send the line to the other sites, but not through the server;
    each site adds it to its own file:

      [masked-sums]
      known = ["ssh-ed25519 AAAA…"]

    [bold]Example[/bold]

      fedproto signing-key site.toml
    """
    from fedproto_app.node.masking import signer_of  # imports Flower, which is slow

    typer.echo(signer_of(site_file(site)).line)
