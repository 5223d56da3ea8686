"""``fedproto forecast``: forecast the next values of series with the clients' kept models."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedproto_app.cli import say_next
from fedproto_app.cli.options import NodeStateFolder, TrainedRun
from fedproto_app.core.errors import DataError, FedProtoError, did_you_mean
from fedproto_app.core.whole_file import write_whole
from fedproto_app.report.check.findings import refusals

if TYPE_CHECKING:
    from fedproto_app.data.format import Reading
    from fedproto_app.serving import ClientForecast
    from fedproto_app.settings import DataSettings

ROWS = 20  # in the table of clients


def forecast(
    run: TrainedRun = None,
    state: NodeStateFolder = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The series up to now: a file, or a folder of CSV files. Default: the data source "
            "of the run, or of --site.",
        ),
    ] = None,
    covariates: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A table of the columns known in advance, with a column of times and, if clients "
            "differ, one of clients. Rows after the last value are the future. Earlier rows fill "
            "gaps in the data. Default: the data's rows after the last value, and data.covariates "
            "of the run.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Write the forecasts into this file instead of stdout."),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="PNG",
            help="Draw the last periods of up to six clients, with their forecasts and intervals.",
        ),
    ] = None,
    steps: Annotated[
        int,
        typer.Option(
            min=1,
            help="How many values to forecast. A model forecasts data.horizon values at once, and "
            "the errors and intervals of a run are for these. Values further ahead use earlier "
            "forecasts as input, are less accurate, and have no intervals.",
        ),
    ] = 1,
    levels: Annotated[
        list[int] | None,
        typer.Option(
            "--level",
            metavar="PERCENT",
            min=1,
            max=99,
            help="Draw an interval that should hold this percentage of values; may be repeated. "
            "Default: 80 and 95.",
        ),
    ] = None,
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client", metavar="NAME", help="Only this client; may be repeated. Default: all."
        ),
    ] = None,
    source: Annotated[
        str,
        typer.Option(
            help="How to read the file of --data, such as long-csv. Default: as --site says, else "
            "recognised from the file."
        ),
    ] = "",
    layout: Annotated[
        Literal["as-data", "long"],
        typer.Option(
            help="as-data: the layout and column names of the data. long: a row for each client "
            "and step, with the columns unique_id, ds and y_hat."
        ),
    ] = "as-data",
    site: Annotated[
        Path | None,
        typer.Option(
            metavar="SITE.toml",
            help="The node's settings file. Needed if it names the source, the clients or columns.",
        ),
    ] = None,
) -> None:
    """Forecast the next values with each client's kept model.

    The series must have the same client names and the same sampling step as
    in training, and should include the newest values. A client needs as many
    steps as its model looks back: the largest of period × periodic-window,
    data.lags and close-window. Series are scaled as in training. A gap, even
    at the end, is filled with the value before it. The first forecast is for
    the step after the newest value of any client. Forecasts have the units
    and decimals of the data. They are never negative if the data never are.
    Weekdays and times of day that never have a value get no forecast.

    The CSV has the layout and the column names of the data. The intervals
    are in further columns: lo-80, hi-80, lo-95 and hi-95, or in a wide table
    for each client, such as north-lo-80. With --layout long, or if the data
    are no table, the columns are unique_id, ds and y_hat. If the data have no
    times, ds counts steps: the first row of a file is step 0. A table of the
    clients goes to stderr. A client is listed there but gets no forecast if
    it has no model or too few values, or if its values end before the
    training run's. If --client names such a client, this is an error.
    Exit code: 0 written, 2 nothing written.

    [bold]Examples[/bold]

      fedproto forecast runs/my-run --steps 24 --out day.csv --picture day.png

      fedproto forecast runs/my-run --data sites.csv --client north

      fedproto forecast runs/my-run --steps 24 --covariates weather.csv

      fedproto forecast --state /state --data traffic.h5 --client 773869 --client 767541

      fedproto forecast --state /state --site /etc/fedproto/site.toml
    """
    # torch and the readers are slow to import.
    from fedproto_app.data.known_columns import as_trained, table_in
    from fedproto_app.data.series import notes_of
    from fedproto_app.data.sources import load_histories
    from fedproto_app.serving import forecast as forecasts_of
    from fedproto_app.serving import (
        reasons_for_gaps,
        require_forecasts,
        states_of,
        trained_columns,
        write_csv,
    )
    from fedproto_app.tasks.forecasting.metrics import LEVELS

    nodes = [require_forecasts(node) for node in states_of(run, state)]
    if state is not None and data is None and site is None:
        raise FedProtoError("--state needs --data, or --site with the node's own source")
    reading = _reading(nodes[0].settings.data, data, source, site)
    for option, file in (("--out", out), ("--picture", picture)):
        for path in (reading.path, reading.covariates, str(covariates or "")):
            if file is not None:
                require_writable(option, file, path)
    future = table_in(covariates, "--covariates") if covariates else None
    columns = trained_columns(nodes, future)
    series = load_histories(as_trained(reading, columns), steps, future)
    client_forecasts, left_out = forecasts_of(
        nodes,
        series,
        steps,
        clients=clients or (),
        levels=list(dict.fromkeys(levels or LEVELS)),
    )

    text = io.StringIO()
    write_csv(client_forecasts, text, layout)
    if out is None:
        typer.echo(text.getvalue(), nl=False)
    else:
        write_output("--out", out, text.getvalue().encode())
    if picture is not None:
        from fedproto_app.report.charts import forecast_charts
        from fedproto_app.report.drawing import charts_png

        charts = forecast_charts(client_forecasts, series, nodes[0].settings.data.period)
        title = (
            f"the first {len(charts)} of {len(client_forecasts)} clients"
            if len(charts) < len(client_forecasts)
            else ""
        )
        write_output("--picture", picture, charts_png(charts, title))
    console = Console(stderr=True, highlight=False)
    console.print(_summary(client_forecasts))
    if (hidden := len(client_forecasts) - ROWS) > 0:
        console.print(f"... and {hidden} more")
    for note in notes_of(series) if columns else []:
        console.print(f"[yellow]note[/yellow] {escape(note)}", soft_wrap=True)
    for line in refusals(left_out):
        console.print(f"[yellow]left out[/yellow] {escape(line)}", soft_wrap=True)
    for line in refusals(reasons_for_gaps(client_forecasts)):
        console.print(f"[yellow]empty[/yellow] {escape(line)}", soft_wrap=True)
    for file in (out, picture):
        if file is not None:
            console.print(f"written: {escape(str(file))}", soft_wrap=True)
    if picture is None:
        say_next(console, "the same with --picture next.png draws them")


def _reading(
    trained: DataSettings, data: Path | None, source: str, site: Path | None
) -> DataSettings:
    """Return settings that read the series up to now from `data`, else as the site or run does."""
    from fedproto_app.data.format import Reading, fields_of_some_sources, sources_of
    from fedproto_app.node.site import site_file
    from fedproto_app.settings import DataSettings

    reading = site_file(site).reads(trained) if site else trained
    if data is None:
        if source:
            raise FedProtoError(f"--source {source} says how to read --data, which is not set")
        return reading.model_copy(update={"max_steps": 0})
    by_site = reading.source if site else ""
    recognised = Reading(source or by_site) if source or site else _recognised(data, trained)
    reader = recognised.source
    of_files = {name for name, record in sources_of("series").items() if record.path != "no path"}
    if source and source not in of_files:
        near = did_you_mean(source, sorted(of_files))
        raise FedProtoError(f"--source {source}: {near}known are {', '.join(sorted(of_files))}")
    if reader not in of_files:
        raise DataError(f"{data}: holds no series but looks like source {reader}")
    updates: dict[str, object] = {
        "source": reader,
        "path": str(data),
        "max_clients": 0,
        "max_steps": 0,
    }
    if not site and reader != trained.source:  # the run's settings are for another kind of file
        fields = DataSettings.model_fields
        updates |= {name: fields[name].default for name in ("clients", *fields_of_some_sources())}
        updates |= {name: value for name, value in recognised.fields.items() if name != "source"}
    return reading.model_copy(update=updates)


def _recognised(data: Path, trained: DataSettings) -> Reading:
    """Return how to read the file. Use the columns of the run's data if the file has them."""
    from fedproto_app.data.recognition import reading_of

    names = ("clients", "columns", "client_column", "time_column", "time_unit")
    default = type(trained).model_fields
    answers = {
        f"data.{name.replace('_', '-')}": value
        for name in names
        if (value := getattr(trained, name)) != default[name].default
    }
    try:
        return reading_of(data, answers)
    except DataError:
        return reading_of(data)


def require_writable(option: str, out: Path, data: str) -> None:
    """Refuse, before any work, an output that would overwrite the data or be read as a client."""
    if out.is_dir() or not out.parent.is_dir():
        fault = "is a folder" if out.is_dir() else f"there is no folder {out.parent}"
        raise FedProtoError(f"{option} {out}: {fault}")
    if out.exists() and not out.is_file():  # it would be replaced by a file
        raise FedProtoError(f"{option} {out}: is a device or a pipe; expected a file")
    if data and out.resolve().is_relative_to(Path(data).resolve()):
        raise FedProtoError(f"{option} {out}: is part of the data, which are never overwritten")


def write_output(option: str, out: Path, content: bytes) -> None:
    """Write or replace the file. A link stays, and the file that it leads to is replaced."""
    try:
        write_whole(out.resolve(), content)
    except OSError as error:
        raise FedProtoError(f"{option} {out}: {error.strerror}") from None


def _summary(forecasts: list[ClientForecast]) -> Table:
    """Return a table of clients: last value, number of missing values since, next forecast."""
    table = Table(box=None, header_style="bold")
    table.add_column("client")
    for title in ("last value", "missing since", "next value", "at", "steps"):
        table.add_column(title, justify="right", no_wrap=title == "at")
    for forecast in forecasts[:ROWS]:
        ahead = int(np.argmax(np.isfinite(forecast.values)))  # 0 if all are at empty times
        next_value = forecast.values[ahead]
        table.add_row(
            escape(forecast.client),
            f"{forecast.last:.6g}",
            str(forecast.gap or "-"),
            f"{next_value:.6g}" if np.isfinite(next_value) else "-",
            forecast.when(ahead),
            str(len(forecast.values)),
        )
    return table
