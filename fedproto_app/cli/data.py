"""``fedproto data``: look at a data set before training on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedproto_app.data.inspection import ClientInspection, Inspection, inspect_clients, source_of
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import shortest_length
from fedproto_app.settings import DataSettings, settings_from

DEFAULTS = DataSettings()
ROWS = 20  # of the table of clients, unless all are asked for
NAMED = 5  # clients that share one reason of refusal

data_app = typer.Typer(
    help="Look at a data set before training on it.", no_args_is_help=True, rich_markup_mode="rich"
)


@data_app.callback()
def _data() -> None:
    """Look at a data set before training on it."""


@data_app.command()
def check(
    path: Annotated[
        str,
        typer.Argument(help="A .csv, .csv.gz, .h5 or .npz file, or a folder of CSV files."),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            help="How to read it: wide-csv, csv-folder, hdf5, npz, synthetic-traffic or "
            "package.module:factory. Default: told from the path."
        ),
    ] = "",
    period: Annotated[int, typer.Option(help="Samples a period.")] = DEFAULTS.period,
    close_window: Annotated[
        int, typer.Option(help="Values just before the target.")
    ] = DEFAULTS.close_window,
    periodic_window: Annotated[
        int, typer.Option(help="Values whole periods before the target.")
    ] = DEFAULTS.periodic_window,
    max_clients: Annotated[int, typer.Option(help="Only the first so many clients; 0 = all.")] = 0,
    max_steps: Annotated[int, typer.Option(help="Only the first so many steps; 0 = all.")] = 0,
    every: Annotated[bool, typer.Option("--all", help="List every client.")] = False,
) -> None:
    """Show the clients of a data set: lengths, periods, missing values, and who is refused.

    PATH is a .csv, .csv.gz, .h5 or .npz file, or a folder of CSV files. The same rules decide
    here and in a run: a client that is refused here would be left out there. The exit code is 0
    if at least one client is usable, else 1.

    [bold]Examples[/bold]

      fedproto data check traffic.csv

      fedproto data check metr-la.h5 --period 288

      fedproto data check sites/ --all

      fedproto data check --source my_data:load

      fedproto data check --source synthetic-traffic
    """
    if not source:
        source = source_of(Path(path)) if path else DEFAULTS.source
    settings = settings_from(
        {
            "data.source": source,
            "data.path": path,
            "data.period": period,
            "data.close-window": close_window,
            "data.periodic-window": periodic_window,
            "data.max-clients": max_clients,
            "data.max-steps": max_steps,
        }
    ).data
    if ":" in source and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's own module lies where they stand
    inspection = inspect_clients(load_series(settings), settings)
    console = Console()
    console.print(_client_table(inspection, len(inspection.clients) if every else ROWS))
    if (hidden := len(inspection.clients) - ROWS) > 0 and not every:
        console.print(f"... and {hidden} more (--all lists them)")
    console.print(_summary(inspection, settings))
    for clients, reason in _refusals(inspection):
        console.print(f"[red]refused[/red] {escape(clients)}: {escape(reason)}")
    raise typer.Exit(0 if inspection.usable else 1)


def _client_table(inspection: Inspection, rows: int) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("client")
    for title in ("steps", "start", "period", "missing"):
        table.add_column(title, justify="right")
    table.add_column("verdict")
    for client in inspection.clients[:rows]:
        table.add_row(
            escape(client.name),
            str(client.length),
            str(client.start),
            str(client.period or "-"),
            f"{client.missing_share:.1%}",
            _verdict(client),
        )
    return table


def _verdict(client: ClientInspection) -> str:
    if client.refused is not None:
        return "[red]refused[/red]"
    return "[yellow]constant[/yellow]" if client.constant else "[green]ok[/green]"


def _summary(inspection: Inspection, settings: DataSettings) -> Table:
    shortest, middle, longest = inspection.lengths
    votes = [
        f"{period} ({clients} client{'s' * (clients > 1)})"
        for period, clients in inspection.period_votes[:3]
    ]
    table = Table(box=None, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    table.add_row("clients", f"{len(inspection.clients)}, of them {len(inspection.usable)} usable")
    table.add_row("steps", f"{shortest} shortest, {middle:g} median, {longest} longest")
    table.add_row("needed", f"{shortest_length(settings)} steps at period {settings.period}")
    table.add_row("period found", ", ".join(votes) or "none")
    if inspection.period_votes and inspection.period_votes[0][0] != settings.period:
        table.add_row("", f"[yellow]checked with --period {settings.period}[/yellow]")
    table.add_row("missing", f"{inspection.missing_share:.2%} of all values")
    return table


def _refusals(inspection: Inspection) -> list[tuple[str, str]]:
    """(the clients, briefly; the reason) of every reason for which clients are refused."""
    by_reason: dict[str, list[str]] = {}
    for client in inspection.refused:
        by_reason.setdefault(client.refused or "", []).append(client.name)
    return [
        (", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" * (len(names) > NAMED)), why)
        for why, names in by_reason.items()
    ]
