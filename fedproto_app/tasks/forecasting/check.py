"""The part of ``fedproto data check`` that looks at series."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedproto_app.cli.findings import reasons
from fedproto_app.data.inspection import ClientInspection, Inspection, inspect_clients
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import shortest_length
from fedproto_app.settings import DataSettings

ROWS = 20  # of the table of clients, unless all are asked for


def check_series(settings: DataSettings, every: bool) -> bool:
    """Print every client of the source, or the first ones; whether one is usable."""
    inspection = inspect_clients(load_series(settings), settings)
    console = Console()
    console.print(_client_table(inspection, len(inspection.clients) if every else ROWS))
    if (hidden := len(inspection.clients) - ROWS) > 0 and not every:
        console.print(f"... and {hidden} more (--all lists them)")
    console.print(_summary(inspection, settings))
    for clients, reason in reasons({one.name: one.refused or "" for one in inspection.refused}):
        console.print(f"[red]refused[/red] {escape(clients)}: {escape(reason)}")
    return bool(inspection.usable)


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
