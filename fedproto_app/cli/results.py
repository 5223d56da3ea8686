"""Commands on finished runs: ``fedproto compare``, ``pictures``, ``report`` and ``export``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from fedproto_app.cli import results_console, say_next
from fedproto_app.core.errors import SettingsError
from fedproto_app.report.charts import comparison_of, draw, write_picture
from fedproto_app.report.comparison import (
    heavy_clients,
    not_converged,
    pairs,
    questions,
    with_better_off,
)
from fedproto_app.report.page import REPORT
from fedproto_app.report.runs import Run, find_runs, group_runs, ranked, without_repeats
from fedproto_app.report.table import (
    by_task,
    comparison_csv,
    comparison_markdown,
    comparison_table,
    pairs_csv,
    pairs_markdown,
    pairs_table,
)
from fedproto_app.report.taking_part import taking_part
from fedproto_app.tasks.forecasting.metrics import FORECASTING

Format = Literal["table", "markdown", "csv"]
Sort = StrEnum("Sort", list(FORECASTING.orders))  # type: ignore[misc]  # of forecasts
Target = Literal["csv", "parquet"]
_FIRST = next(iter(Sort))
Places = Annotated[
    list[Path],
    typer.Argument(metavar="RUN…", help="Folders of runs, or folders that hold several runs."),
]


def compare(
    places: Places,
    output: Annotated[Format, typer.Option("--format", help="How to print it.")] = "table",
    sort: Annotated[
        Sort,
        typer.Option(
            help="Sort forecasts by the clients' median or mean test MSE, their median MASE, the "
            "mean error of the worst tenth of the clients, or the share of clients that are better "
            "off than with their best local model."
        ),
    ] = _FIRST,
    test_pairs: Annotated[
        bool,
        typer.Option(
            "--pairs",
            help="Compare each row, client by client, with the clients' best local models. If no "
            "run is local, compare it with the best row. The rule is that of the verdict.",
        ),
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Also draw the comparison into this file."),
    ] = None,
) -> None:
    """Compare finished runs, in one table for all runs on the same data.

    Runs that differ only in their seed share one row, with the mean and the
    standard error over the seeds. The best row comes first. Forecast errors
    come from the kept models, on the standardised scale. A client is better
    off if its error is lower than with its best local model. That is the
    model with the client's lowest validation error among the runs without
    sharing. The sentence below the table says whether federated learning
    pays. It uses the sharing runs with the lowest validation error. For
    images, accuracies come from the last round's models. For sequences, they
    come from the kept models and from the last round's models, with the mean
    over all rounds.

    [bold]Examples[/bold]

      fedproto compare runs
      fedproto compare runs/fuels-* runs/fedavg-* --format markdown
      fedproto compare runs --sort mase --pairs
      fedproto compare runs --picture comparison.png
    """
    groups, repeated = group_runs(_finished(places))
    for run in repeated:
        typer.echo(f"skipped {run.folder}: a later run has the same settings and seed", err=True)
    groups = ranked(with_better_off(groups), sort)
    by_question = questions(groups)
    tested = list(filter(None, (pairs(q.groups) for q in by_question if test_pairs)))
    if output == "table":
        tables = [*map(comparison_table, by_question), *map(pairs_table, tested)]
        results_console(highlight=False).print(*tables, "", sep="\n")
    elif output == "markdown":
        texts = [*map(comparison_markdown, by_question), *map(pairs_markdown, tested)]
        typer.echo("\n\n".join(texts))
    else:
        pairs_of_tasks = list(filter(None, map(pairs, by_task(groups)))) if test_pairs else []
        texts = [*map(comparison_csv, by_task(groups)), *map(pairs_csv, pairs_of_tasks)]
        typer.echo("\n\n".join(texts))
    doubts = without_repeats(run.warnings for group in groups for run in group.runs)
    warnings = [f"warning: {doubt}" for doubt in doubts]
    lines = [*warnings, *heavy_clients(groups), *not_converged(groups), *taking_part(groups)]
    results_console(stderr=output == "csv", highlight=False).print(*lines, sep="\n", markup=False)
    if test_pairs and not tested:
        typer.echo("--pairs: no two runs have clients with errors to compare", err=True)
    if picture is not None:
        write_picture(picture, comparison_of(groups))
    if output == "table" and not test_pairs and len(groups) > 1:
        where = " ".join(shlex.quote(str(place)) for place in places)
        say_next(Console(stderr=True), f"fedproto compare {where} --pairs --picture comparison.png")


def pictures(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
) -> None:
    """Draw a run's pictures into RUN/pictures and print their paths.

    All runs: each client's test error, and the mean test error plotted over
    rounds and over communicated parameters. Forecasting: for FUELS the matrix
    of divergences between prototypes. After a simulation, also the learned
    filters and forecasts of single clients. Images: the accuracy by stage
    and by class, and the clients' classes. Sequences: the clusters over the
    rounds, the similarity between clients, and the forgetting factor.

    [bold]Example[/bold]

      fedproto pictures runs/my-run
    """
    for file in draw(run):
        typer.echo(file)


def report(
    places: Places,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help=f"The file to write. Default: {REPORT} in RUN, or in the current folder if there "
            "are several RUNs.",
        ),
    ] = None,
) -> None:
    """Write a report on finished runs: one HTML file, which opens offline.

    The report states the main result in a sentence. It then shows a table of
    the methods, each client's gain, a table of all clients, the errors by
    step ahead or by class, forecasts, learning curves, costs, and how to
    repeat the runs. Runs that differ only in their seed share one row. To
    show whether sharing pays, include a run without sharing (solo, naive).

    [bold]Examples[/bold]

      fedproto report runs/my-run
      fedproto report runs
      fedproto report runs/solo-* runs/fuels-* --output for-the-board.html
    """
    from fedproto_app.report.page.document import write_report  # only this command needs jinja2

    runs = _finished(places)
    file = output or (places[0] if len(places) == 1 else Path()) / REPORT
    write_report(runs, file)
    typer.echo(file)


def export(
    places: Places,
    target: Annotated[Target, typer.Option("--to", help="What to write.")],
    output: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="The folder for the files. Default: RUN/export.",
        ),
    ] = "",
) -> None:
    """Write finished runs as long tables for other tools.

    There is a table of rounds, a table of clients and, if runs forecast
    several steps ahead, a table of steps. Each has one number per row.
    Existing files are never overwritten. To use --to parquet, first
    pip install "fedproto-app\\[parquet]".

    [bold]Examples[/bold]

      fedproto export runs/my-run --to csv
      fedproto export runs --to parquet --output tables
    """
    from fedproto_app.report.export import write_csv, write_parquet

    runs = _finished(places)
    if len(runs) > 1 and not output:
        raise SettingsError(f"--to {target}: for {len(runs)} runs, name a folder with --output")
    folder = Path(output).expanduser() if output else runs[0].folder / "export"
    write = write_csv if target == "csv" else write_parquet
    for file in write(runs, folder):
        typer.echo(file)


def _finished(places: Sequence[Path]) -> list[Run]:
    """Return the finished runs in these places. Print which folders hold none."""
    runs, without = find_runs(places)
    for folder in without:
        typer.echo(f"skipped {folder}: no summary.json, so no finished run", err=True)
    return runs
