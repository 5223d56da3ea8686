"""``fedproto export``: write finished runs for other tools."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedproto_app.core.errors import SettingsError
from fedproto_app.report.runs import find_runs


class Target(StrEnum):
    """The formats of an export."""

    csv = "csv"
    parquet = "parquet"
    tensorboard = "tensorboard"
    mlflow = "mlflow"


def export(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run folders, or folders that hold several."),
    ],
    target: Annotated[Target, typer.Option("--to", help="What to write.")],
    output: Annotated[
        str,
        typer.Option(
            metavar="PLACE",
            help="csv, parquet: the files' folder; default RUN/export. tensorboard: a folder with "
            "one for each run; default RUN/tensorboard. mlflow: the address of a tracking server, "
            "or a folder; default MLFLOW_TRACKING_URI, else mlflow.",
        ),
    ] = "",
) -> None:
    """Write finished runs for other tools.

    csv and parquet are long tables, one number per row: rounds, clients and,
    for several steps ahead, steps. tensorboard is a folder of events: figures
    by round, distributions over clients, settings. mlflow has settings as
    parameters, figures by round as metrics, and the run's files. Existing
    files are never overwritten. All formats but csv need a library:
    pip install "fedproto-app\\[parquet]", \\[tensorboard] or \\[mlflow].
    The setting output.tensorboard = true writes events during a run.

    [bold]Examples[/bold]

      fedproto export runs/my-run --to csv
      fedproto export runs --to parquet --output tables
      fedproto export runs --to tensorboard --output board
      tensorboard --logdir board
      fedproto export runs --to mlflow
      fedproto export runs --to mlflow --output http://localhost:5000
    """
    runs, without = find_runs(places)
    for folder in without:
        typer.echo(f"skipped {folder}: no summary.json, so no finished run", err=True)
    if target in (Target.csv, Target.parquet) and len(runs) > 1 and not output:
        raise SettingsError(f"--to {target}: say where {len(runs)} runs go with --output FOLDER")
    folder = Path(output).expanduser() if output else runs[0].folder / "export"
    written: list[Path] | list[str]
    if target is Target.csv:
        from fedproto_app.report.export.files import write_csv

        written = write_csv(runs, folder)
    elif target is Target.parquet:
        from fedproto_app.report.export.files import write_parquet

        written = write_parquet(runs, folder)
    elif target is Target.tensorboard:
        from fedproto_app.report.export.events import write_events

        written = write_events(runs, folder if output else None)
    else:
        from fedproto_app.report.export.mlflow_runs import write_mlflow

        written = [write_mlflow(runs, output)]
    for place in written:
        typer.echo(place)
