"""``fedproto audit``: check that an audit log is unchanged since its gate wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedproto_app.core.errors import DataError


def audit(
    file: Annotated[Path, typer.Argument(help="The log, such as /audit/audit.jsonl.")],
    noted: Annotated[
        str, typer.Option(metavar="HASH", help="The last hash that an earlier check printed.")
    ] = "",
) -> None:
    """Check that no line of an audit log was changed, removed or inserted.

    Every line holds the hash of the line before it. This command prints the
    last hash. Store it on another machine. Given to a later check by --noted,
    it shows that nobody has rewritten the whole log since.
    Exit code: 0 unbroken, 2 broken. The error names the first wrong line.

    [bold]Examples[/bold]

      fedproto audit /audit/audit.jsonl
      fedproto audit /audit/audit.jsonl --noted 9f2c…
    """
    from fedproto_app.ops.gate.audit import verify

    try:
        chain = verify(file, noted)
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from None
    typer.echo(f"{chain.lines} lines from {chain.first_time} to {chain.last_time}, unbroken")
    if chain.unreadable:
        typer.echo(f"unreadable lines, as after a power failure: {chain.unreadable}")
    typer.echo(f"last hash: {chain.last}")
