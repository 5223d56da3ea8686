"""``fedproto forecast``: the next values of series, by the models that a node has kept."""

from __future__ import annotations

import io
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedproto_app.errors import DataError, FedProtoError
from fedproto_app.tasks.findings import refusals
from fedproto_app.users_code import look_here_for_users_code
from fedproto_app.whole_file import write_whole

if TYPE_CHECKING:
    from fedproto_app.node.inference import ClientForecast

ROWS = 20  # of the table of clients


class Source(StrEnum):
    """The sources of series that are files."""

    wide_csv = "wide-csv"
    csv_folder = "csv-folder"
    hdf5 = "hdf5"
    npz = "npz"


def forecast(
    state: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="A node's state folder: runs/NAME/state/NODE of a simulation, "
            "STATE-DIR/RUN-TOKEN/NODE of a deployed node; or a folder above it, if no other is "
            "below.",
        ),
    ],
    data: Annotated[
        Path, typer.Option(metavar="FILE", help="The series up to now, or a folder of CSV files.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Write the forecasts into this file, not to stdout."),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            min=1,
            help="How many values ahead. Models learn to forecast one, and the errors that a run "
            "reports are of one; more come from forecasts of forecasts and get worse.",
        ),
    ] = 1,
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client", metavar="NAME", help="Only this client; may be repeated. Default: all."
        ),
    ] = None,
    source: Annotated[
        Source | None,
        typer.Option(help="How to read FILE. Default: as SITE.toml says, or told from its name."),
    ] = None,
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="SITE.toml",
            help="The node's own settings, if they choose clients or columns of such files.",
        ),
    ] = None,
) -> None:
    """Forecast what comes next, with each client's own kept model.

    FILE holds the series with the clients' names and the sampling step of
    training, from whenever on to the newest values; the clients need as
    many steps as their models look back (period × periodic-window). They
    are scaled as in training. Gaps are filled with the value before them,
    also at the end; the first forecast is for the step after the file's
    last row. Forecasts are in the series' own units.

    The CSV has the columns client, time, forecast, or client, step,
    forecast for files without times: the first row of a file is step 0.
    A table of the clients goes to stderr. Clients that have no model here,
    or too few values, are named and left out, unless --client asks for
    them: then it is an error. Exit code: 0 written, 2 nothing written.

    [bold]Examples[/bold]

      fedproto forecast --state runs/my-run/state/0 --data sites.csv

      fedproto forecast --state runs/my-run/state/0 --data sites.csv --steps 24 --out day.csv

      fedproto forecast --state /state --data traffic.h5 --client 773869 --client 767541

      fedproto forecast --state /state --data sites/ --site /etc/fedproto/site.toml
    """
    # torch and the readers are slow to import, which every other command would wait for.
    from fedproto_app.data.recognition import source_of
    from fedproto_app.data.sources import FILE_SOURCES, load_histories
    from fedproto_app.node.inference import forecast as forecasts_of
    from fedproto_app.node.inference import open_state, write_csv
    from fedproto_app.node.site import site_file

    if out is not None:
        _require_writable(out, data)
    node = open_state(state)
    look_here_for_users_code()  # the models may be a module of the user's
    reading = site_file(site).reads(node.settings.data) if site else node.settings.data
    reader = source.value if source else reading.source if site else source_of(data)
    if reader not in FILE_SOURCES:
        raise DataError(f"{data}: holds no series, it looks like source {reader}")
    whole = {"source": reader, "path": str(data), "max_clients": 0, "max_steps": 0}
    series = load_histories(reading.model_copy(update=whole))
    made, left_out = forecasts_of(node, series, steps, clients or ())

    text = io.StringIO()
    write_csv(made, text)
    if out is None:
        typer.echo(text.getvalue(), nl=False)
    else:
        try:
            write_whole(out, text.getvalue().encode())
        except OSError as error:
            raise FedProtoError(f"--out {out}: {error.strerror}") from None
    console = Console(stderr=True, highlight=False)
    console.print(_summary(made))
    if (hidden := len(made) - ROWS) > 0:
        console.print(f"... and {hidden} more")
    for line in refusals(left_out):
        console.print(f"[yellow]left out[/yellow] {escape(line)}", soft_wrap=True)


def _require_writable(out: Path, data: Path) -> None:
    """Refuse an output that would destroy the data, or become a client of it, before any work."""
    if out.is_dir() or not out.parent.is_dir():
        fault = "is a folder" if out.is_dir() else f"there is no folder {out.parent}"
        raise FedProtoError(f"--out {out}: {fault}")
    if out.resolve().is_relative_to(data.resolve()):
        raise FedProtoError(f"--out {out}: the data are there, which are never written to")


def _summary(made: list[ClientForecast]) -> Table:
    """A row a client: its newest value, how many are missing since, and the first forecast."""
    table = Table(box=None, header_style="bold")
    table.add_column("client")
    for title in ("last value", "missing since", "next value", "at", "steps"):
        table.add_column(title, justify="right", no_wrap=title == "at")
    for one in made[:ROWS]:
        table.add_row(
            escape(one.client),
            f"{one.last:.6g}",
            str(one.gap or "-"),
            f"{one.values[0]:.6g}",
            one.when(0),
            str(len(one.values)),
        )
    return table
