"""The commands of ``fedproto``."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from fedproto_app.core.version import __version__

FIRST_STEPS = """\
fedproto trains models for many clients without collecting their data. Try, in this order:

  fedproto demo                forecast simulated sites with local and federated models (2 minutes)
  fedproto try my.csv          do the same for your own file
  fedproto data check my.csv   see how a run would read a file
  fedproto compare runs        compare the results of runs

fedproto --help lists all commands; fedproto --install-completion adds shell completion."""

# Each command, where it is defined, and the first sentence of its help text. Its module is imported
# when it is called, because most modules import slowly.
COMMANDS = {
    "demo": (
        "demo:demo",
        "Forecast the traffic of 24 simulated sites, with a week of data and with all of it.",
    ),
    "try": (
        "try_file:try_file",
        "Say whether federated learning pays for the clients in a file.",
    ),
    "init": ("init:init", "Write a commented settings file for the data at hand."),
    "run": (
        "run:run",
        "Run an experiment in a simulated federation or on real nodes, and print its results.",
    ),
    "sweep": (
        "sweep:sweep",
        "Try settings on several seeds, and choose the best by validation error.",
    ),
    "compare": (
        "results:compare",
        "Compare finished runs, in one table for all runs on the same data.",
    ),
    "report": (
        "results:report",
        "Write a report on finished runs: one HTML file, which opens offline.",
    ),
    "pictures": (
        "results:pictures",
        "Draw a run's pictures into RUN/pictures and print their paths.",
    ),
    "export": ("results:export", "Write finished runs as long tables for other tools."),
    "forecast": (
        "forecast:forecast",
        "Forecast the next values with each client's kept model.",
    ),
    "predict": (
        "predict:predict",
        "Classify new images or sequences with a client's kept model.",
    ),
    "keys": (
        "keys:keys",
        "Make a private CA, the server's certificate, and a key for each node.",
    ),
    "signing-key": (
        "keys:signing_key",
        "Show the public key that authenticates this site in masked sums.",
    ),
    "audit": (
        "audit:audit",
        "Check that no line of an audit log was changed, removed or inserted.",
    ),
    "metrics": (
        "metrics:metrics",
        "Serve metrics over HTTP for Prometheus, until it is stopped.",
    ),
    "check-method": (
        "check_method:check_method",
        "Check that a method's results depend on the seed, not on the nodes.",
    ),
    "data": ("data:data_app", "Inspect a data set before training on it."),
    "nodes": (
        "nodes:nodes_app",
        "List the nodes of a federation, and manage their keys and names.",
    ),
}


def imported_command(name: str) -> click.Command:
    """Import a command's module and return the command. name: a key of COMMANDS."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    defined = getattr(import_module(f"fedproto_app.cli.{module}"), attribute)
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich")
    if isinstance(defined, typer.Typer):
        alone.add_typer(defined, name=name)
        group = typer.main.get_command(alone)
        assert isinstance(group, click.Group)
        return group.commands[name]
    alone.command(name)(defined)
    return typer.main.get_command(alone)


class _Commands(TyperGroup):
    """All commands. Until a command is called, it has only its name and a help text."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, (_, first_sentence) in COMMANDS.items():
            self.commands[name] = click.Command(name, help=first_sentence)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, listed, arguments = super().resolve_command(ctx, args)
        return name, imported_command(name) if name in COMMANDS else listed, arguments


app = typer.Typer(
    cls=_Commands,
    invoke_without_command=True,
    rich_markup_mode="rich",
    help="Personalised federated learning on time series, images and sequences, with Flower.",
    epilog="Start with: fedproto demo",
    pretty_exceptions_show_locals=False,  # local variables may hold a client's data
)


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
