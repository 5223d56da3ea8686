"""``fedproto try``: say whether federated learning pays on a file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from fedproto_app.cli import say_next
from fedproto_app.cli.options import (
    Clients,
    ClientsFrom,
    Covariates,
    Holidays,
    Horizon,
    KnownColumns,
    Period,
    ReadingChanges,
    Source,
    Target,
    reading_changes,
)
from fedproto_app.core.endings import NOTHING_WRITTEN, WhenStopped
from fedproto_app.report.fitting_table import FittingTable


def try_file(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Series: a CSV, Parquet, Excel or HDF5 file, or a folder of them. Images: a "
            "folder or .zip with a folder for each site and class. Labelled sequences: .npz, .ts "
            "or a folder for each class.",
        ),
    ],
    horizon: Horizon = None,
    period: Period = None,
    clients_from: ClientsFrom = "",
    target: Target = "",
    known_columns: KnownColumns = None,
    covariates: Covariates = "",
    holidays: Holidays = "",
    source: Source = "",
    clients: Clients = None,
    windows: Annotated[
        int,
        typer.Option(
            help="Backtest over this number of windows. The models are retrained for each, so 5 "
            "windows take five times as long."
        ),
    ] = 1,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Train on the newest 28 periods only; compare fewer methods."),
    ] = False,
    changes: ReadingChanges = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder for the runs. Stopped runs in it are resumed. Default: runs/try-NAME.",
        ),
    ] = None,
) -> None:
    """Say whether federated learning pays for the clients in a file.

    It recognises the format of the file. It forecasts one period of a series,
    or predicts classes, with simple methods, with local closed forms, and with
    a federated closed form. The answer is one sentence, one table, a report
    and, for series, a file with the next values. Columns known in advance,
    such as a weather forecast, get rows of their own in the table. They show
    what the columns bring to local models, and what federated learning adds.

    Nothing leaves this machine. In a deployment, Kindred's server would read
    each client's mean day. With kindred.sharing=groups and masked sums, it
    would read only totals.

    [bold]Examples[/bold]

      fedproto try sales.csv
      fedproto try meters/ --horizon 12
      fedproto try sales.csv --clients-from store --target units
      fedproto try sales.csv --horizon 28 --windows 5
      fedproto try sales.csv --known price,promotion --holidays DE-BY
      fedproto try scans.zip
    """
    console = Console(stderr=True, highlight=False)
    console.print(f"reading {path} …", markup=False)  # torch and the readers are slow to import
    from fedproto_app.experiments import trial

    place = folder or trial.unused_folder(path)
    with WhenStopped(lambda: _left_behind(path, place)):
        answer = trial.try_file(
            path,
            horizon=horizon,
            period=period,
            clients_from=clients_from,
            clients=clients,
            windows=windows,
            quick=quick,
            changes=reading_changes(changes, source, known_columns, covariates, holidays),
            folder=place,
            target=target,
        )
    out = Console(highlight=False)
    for line in answer.warnings:
        out.print(f"[yellow]warning[/yellow] {escape(line)}", soft_wrap=True)
    out.print(answer.verdict, style="bold", markup=False)
    figures = list(answer.scores[0].figures) if answer.scores else []
    rows = [
        [
            score.title,
            *(f"{score.figures[name]:.4g}" for name in figures),
            str(score.best_for),
        ]
        for score in answer.scores
    ]
    out.print(FittingTable(["", *figures, "best for"], rows))
    for title, file in (("report", answer.report), ("forecast", answer.forecast)):
        if file is not None:
            out.print(f"{title}: {file}", soft_wrap=True, markup=False)
    say_next(console, f"fedproto compare {shlex.quote(str(answer.folder))} --pairs")


def _left_behind(path: Path, folder: Path) -> str:
    """Return what to say when the command is stopped."""
    if not folder.exists():
        return NOTHING_WRITTEN
    option = shlex.join(["--folder", str(folder)])
    return f"stopped; the same command with {option} goes on with {path}"
