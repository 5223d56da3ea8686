"""``fedproto report``: finished runs as one file for people."""

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
            help=f"Where to write it; default: {REPORT} in RUN, or here if there are several.",
        ),
    ] = None,
) -> None:
    """Write a report on finished runs to send on: one HTML file, which opens offline.

    It says what was found in a sentence, then shows the table of methods,
    who gains and who does not, every client, errors by step ahead or by
    class, forecasts, learning and what it cost, and how to repeat it. Runs
    that differ only in their seed are one row. Whether sharing pays is told
    where a run in which nothing is shared (solo, naive) is among them.

    [bold]Examples[/bold]

      fedproto report runs/my-run
      fedproto report runs
      fedproto report runs/solo-* runs/fuels-* --output for-the-board.html
    """
    look_here_for_users_code()  # forecasts of models may need a module of the user's
    from fedproto_app.report.page.document import write_report  # jinja2 is for this command alone

    runs, without = find_runs(places)
    for folder in without:
        typer.echo(f"skipped {folder}: no summary.json, so no finished run", err=True)
    file = output or (places[0] if len(places) == 1 else Path()) / REPORT
    write_report(runs, file)
    typer.echo(file)
