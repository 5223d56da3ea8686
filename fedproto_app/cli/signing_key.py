"""``fedproto signing-key``: by which other sites know a site's part in masked sums."""

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
    """Show the public key by which other sites know this site's part in masked sums.

    The site draws the private key when there is none yet, and keeps it in
    its state directory. Send the line to the other sites by a way that
    does not lead through the server; each writes it into its own file:

      [masked-sums]
      known = ["ssh-ed25519 AAAA…"]

    [bold]Example[/bold]

      fedproto signing-key site.toml
    """
    from fedproto_app.node.masked_sum import signer_of  # imports Flower, which is slow

    typer.echo(signer_of(site_file(site)).line)
