"""``fedproto``: the command line."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from fedproto_app import __version__
from fedproto_app.cli.compare import compare, pictures
from fedproto_app.cli.data import data_app
from fedproto_app.cli.forecast import forecast
from fedproto_app.cli.keys import keys
from fedproto_app.cli.run import run
from fedproto_app.errors import FederationError, FedProtoError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    help="Personalised federated learning on series, images and sequences, through Flower.",
    epilog="Start with: fedproto run",
)
app.command()(run)
app.command()(compare)
app.command()(pictures)
app.command()(forecast)
app.command()(keys)
app.add_typer(data_app, name="data")


def main() -> NoReturn:
    """Run the command line. An error is told on stderr, without a traceback: exit code 1 for a
    federation that failed, 2 for a mistake in settings, data or arguments."""
    # Being ended from outside must, like Ctrl-C, end what was started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    # Modules of a user's own, which settings name, lie where the command is run.
    sys.path.append(str(Path.cwd()))
    code = 0
    try:
        app()
    except FedProtoError as error:
        typer.echo(f"error: {error}", err=True)
        code = 1 if isinstance(error, FederationError) else 2
    sys.exit(code)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedproto-app {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None: ...
