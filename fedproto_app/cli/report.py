"""``fedproto report``: write a report on finished runs as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedproto_app.core.loading import look_here_for_users_code
from fedproto_app.report.page import REPORT
from fedproto_app.report.runs import find_runs


def report(
    places: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Run folders, or folders that hold several."),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help=f"The file to write; default: {REPORT} in RUN, or in the current folder for "
            "several runs.",
        ),
    ] = None,
) -> None:
    """Write a report on finished runs: one HTML file, which opens offline.

    It states the main result in a sentence. Then it shows the table of
    methods, gains by client, every client, errors by step ahead or by class,
    forecasts, learning curves and their cost, and how to repeat the runs.
    Runs that differ only in their seed share one row. To show whether
    sharing pays, include a run without sharing (solo, naive).

    [bold]Examples[/bold]

      fedproto report runs/my-run
      fedproto report runs
      fedproto report runs/solo-* runs/fuels-* --output for-the-board.html
    """
    look_here_for_users_code()  # forecasts of models may need the user's modules
    from fedproto_app.report.page.document import write_report  # only this command needs jinja2

    runs, without = find_runs(places)
    for folder in without:
        typer.echo(f"skipped {folder}: no summary.json, so no finished run", err=True)
    file = output or (places[0] if len(places) == 1 else Path()) / REPORT
    write_report(runs, file)
    typer.echo(file)
