"""The commands of ``fedproto``."""

from __future__ import annotations

from typing import Annotated

import typer

from fedproto_app.cli.audit import audit
from fedproto_app.cli.check_method import check_method
from fedproto_app.cli.data import data_app
from fedproto_app.cli.demo import demo
from fedproto_app.cli.forecast import forecast
from fedproto_app.cli.init import init
from fedproto_app.cli.keys import keys, signing_key
from fedproto_app.cli.metrics import metrics
from fedproto_app.cli.nodes import nodes_app
from fedproto_app.cli.results import compare, export, pictures, report
from fedproto_app.cli.run import run
from fedproto_app.cli.sweep import sweep
from fedproto_app.cli.try_file import try_file
from fedproto_app.core.version import __version__

FIRST_STEPS = """\
fedproto trains models for many clients without collecting their data. Try, in this order:

  fedproto demo                forecast simulated sites with local and federated models (2 minutes)
  fedproto try my.csv          do the same for your own file
  fedproto data check my.csv   see how a run would read a file
  fedproto compare runs        compare the results of runs

fedproto --help lists all commands; fedproto --install-completion adds shell completion."""

app = typer.Typer(
    invoke_without_command=True,
    rich_markup_mode="rich",
    help="Personalised federated learning on time series, images and sequences, with Flower.",
    epilog="Start with: fedproto demo",
    pretty_exceptions_show_locals=False,  # local variables may hold a client's data
)
app.command()(demo)
app.command("try")(try_file)
app.command()(init)
app.command()(run)
app.command()(sweep)
app.command()(compare)
app.command()(report)
app.command()(pictures)
app.command()(export)
app.command()(forecast)
app.command()(keys)
app.command("signing-key")(signing_key)
app.command()(audit)
app.command()(metrics)
app.command()(check_method)
app.add_typer(data_app, name="data")
app.add_typer(nodes_app, name="nodes")


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedproto-app {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(FIRST_STEPS)
