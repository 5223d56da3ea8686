"""``fedproto data``: look at a data set before training on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from click.core import ParameterSource
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedproto_app.cli.image_check import check_images
from fedproto_app.data.eligibility import holds_images
from fedproto_app.data.inspection import ClientInspection, Inspection, inspect_clients, source_of
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import shortest_length
from fedproto_app.errors import SettingsError
from fedproto_app.settings import DataSettings, settings_from

DEFAULTS = DataSettings()
PARTITION = DEFAULTS.partition
ROWS = 20  # of the table of clients, unless all are asked for
NAMED = 5  # clients that share one reason of refusal

data_app = typer.Typer(
    help="Look at a data set before training on it.", no_args_is_help=True, rich_markup_mode="rich"
)


@data_app.callback()
def _data() -> None:
    """Look at a data set before training on it."""


SERIES, IMAGES = "Series", "Images"  # panels of the options that only one of them takes


@data_app.command()
def check(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(
            help="Series: a .csv, .csv.gz, .h5 or .npz file, or a folder of CSV files. Images: a "
            "folder or .zip of class folders, a CIFAR folder, or an .npz file with x_train."
        ),
    ] = "",
    source: Annotated[
        str,
        typer.Option(
            help="How to read it: wide-csv, csv-folder, hdf5, npz or synthetic-traffic; "
            "class-folders, cifar, image-npz or digits; package.module:factory. Default: told "
            "from the path."
        ),
    ] = "",
    max_clients: Annotated[int, typer.Option(help="Only the first so many clients; 0 = all.")] = 0,
    every: Annotated[bool, typer.Option("--all", help="List every client, or class.")] = False,
    period: Annotated[
        int, typer.Option(help="Samples a period.", rich_help_panel=SERIES)
    ] = DEFAULTS.period,
    close_window: Annotated[
        int, typer.Option(help="Values just before the target.", rich_help_panel=SERIES)
    ] = DEFAULTS.close_window,
    periodic_window: Annotated[
        int, typer.Option(help="Values whole periods before the target.", rich_help_panel=SERIES)
    ] = DEFAULTS.periodic_window,
    max_steps: Annotated[
        int, typer.Option(help="Only the first so many steps; 0 = all.", rich_help_panel=SERIES)
    ] = 0,
    scheme: Annotated[
        str,
        typer.Option(
            help="Who holds which images: long-tail, dirichlet or given (by the source).",
            rich_help_panel=IMAGES,
        ),
    ] = PARTITION.scheme,
    clients: Annotated[
        int, typer.Option(help="N, to deal the images to.", rich_help_panel=IMAGES)
    ] = PARTITION.clients,
    classes_per_stage: Annotated[
        int, typer.Option(help="S, of each client at each stage.", rich_help_panel=IMAGES)
    ] = PARTITION.classes,
    stages: Annotated[
        int, typer.Option(help="M, of each client.", rich_help_panel=IMAGES)
    ] = PARTITION.stages,
    imbalance_factor: Annotated[
        float,
        typer.Option(help="IF, the largest class over the smallest.", rich_help_panel=IMAGES),
    ] = PARTITION.imbalance_factor,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png", help="Draw the partition into this file.", rich_help_panel=IMAGES
        ),
    ] = None,
) -> None:
    """Show what a data set holds, and what a run would refuse of it.

    Series: each client's length, period and missing values. Images: the
    classes, the images that cannot be read (of more than 5000, as many
    drawn at random are decoded), and what dealing them to clients and
    stages comes to. The same rules decide here and in a run.
    Exit code: 0 at least one client is usable and no image corrupt, 1 not
    so, 2 wrong options or data that cannot be read.

    [bold]Examples[/bold]

      fedproto data check traffic.csv

      fedproto data check metr-la.h5 --period 288

      fedproto data check sites/ --all

      fedproto data check --source my_data:load

      fedproto data check cifar10.zip --clients 100 --stages 1

      fedproto data check hospitals/ --scheme given --picture partition.png

      fedproto data check --source digits --clients 5 --stages 2
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
            "data.partition.scheme": scheme,
            "data.partition.clients": clients,
            "data.partition.classes": classes_per_stage,
            "data.partition.stages": stages,
            "data.partition.imbalance-factor": imbalance_factor,
        }
    ).data
    if ":" in source and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's own module lies where they stand
    has_images = holds_images(settings)
    _refuse_options_of_the_other_kind(context, source, has_images)
    if has_images:
        could_start = check_images(settings, every, picture)
    else:
        could_start = _check_series(settings, every)
    raise typer.Exit(0 if could_start else 1)


def _refuse_options_of_the_other_kind(
    context: typer.Context, source: str, has_images: bool
) -> None:
    """An option without effect would look as if it had one."""
    for option in context.command.params:
        panel = getattr(option, "rich_help_panel", None)
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and panel == (SERIES if has_images else IMAGES):
            held = IMAGES if has_images else SERIES
            raise SettingsError(
                f"{option.opts[0]} is for {panel.lower()}, but source {source} holds {held.lower()}"
            )


def _check_series(settings: DataSettings, every: bool) -> bool:
    """Print every client of the source, or the first ones; whether one is usable."""
    inspection = inspect_clients(load_series(settings), settings)
    console = Console()
    console.print(_client_table(inspection, len(inspection.clients) if every else ROWS))
    if (hidden := len(inspection.clients) - ROWS) > 0 and not every:
        console.print(f"... and {hidden} more (--all lists them)")
    console.print(_summary(inspection, settings))
    for clients, reason in _refusals(inspection):
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


def _refusals(inspection: Inspection) -> list[tuple[str, str]]:
    """(the clients, briefly; the reason) of every reason for which clients are refused."""
    by_reason: dict[str, list[str]] = {}
    for client in inspection.refused:
        by_reason.setdefault(client.refused or "", []).append(client.name)
    return [
        (", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" * (len(names) > NAMED)), why)
        for why, names in by_reason.items()
    ]
