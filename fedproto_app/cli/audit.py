"""``fedproto audit``: whether an audit log is as its gate wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedproto_app.core.errors import DataError


def audit(
    file: Annotated[Path, typer.Argument(help="The log, such as /audit/audit.jsonl.")],
    noted: Annotated[
        str, typer.Option(metavar="HASH", help="A hash that an earlier check printed.")
    ] = "",
) -> None:
    """Check that no line of an audit log was changed, taken out or put in.

    Every line holds the hash of the line before. Note the last hash that
    this prints at another place: with --noted it shows later that the log
    still has that line, so that nobody wrote the whole log anew.
    Exit code: 0 unbroken, 2 broken, with the first line that does not fit.

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
