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
from fedproto_app.core.loading import look_here_for_users_code
from fedproto_app.report.charts import draw, draw_comparison
from fedproto_app.report.comparison import (
    heavy_clients,
    not_converged,
    pairs,
    questions,
    with_better_off,
)
from fedproto_app.report.page import REPORT
from fedproto_app.report.runs import Run, find_runs, group_runs, ranked
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
    typer.Argument(metavar="RUN…", help="Run folders, or folders that hold several."),
]


def compare(
    places: Places,
    output: Annotated[Format, typer.Option("--format", help="How to print it.")] = "table",
    sort: Annotated[
        Sort,
        typer.Option(
            help="Sort forecasts by the median or mean test MSE over clients, the median MASE, the "
            "mean of the worst tenth of the clients, or the share better off than with their best "
            "local model."
        ),
    ] = _FIRST,
    test_pairs: Annotated[
        bool,
        typer.Option(
            "--pairs",
            help="Compare each row, client by client, with the clients' best local models, or with "
            "the best row if every run shares something, by the rule of the verdict.",
        ),
    ] = False,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="Draw the runs into this file as well."),
    ] = None,
) -> None:
    """Put finished runs side by side, in one table for runs on the same data.

    Runs that differ only in their seed share one row: mean and standard
    error over the seeds, the best row first. Errors of forecasts are on the
    standardised scale, for the kept models. A client is better off if its
    error is lower than with its best local model, the run without sharing
    that has its lowest validation error. The sentence below the table says
    whether federated learning pays, using the sharing runs with the lowest
    validation error. Accuracies on images are of the last round's
    models, and on sequences of the kept models, the last round's models, and
    the mean over all rounds.

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
    lines = [*heavy_clients(groups), *not_converged(groups), *taking_part(groups)]
    results_console(stderr=output == "csv", highlight=False).print(*lines, sep="\n", markup=False)
    if test_pairs and not tested:
        typer.echo("--pairs: no two runs have clients with errors to compare", err=True)
    if picture is not None:
        draw_comparison(groups, picture)
    if output == "table" and not test_pairs and len(groups) > 1:
        where = " ".join(shlex.quote(str(place)) for place in places)
        say_next(Console(stderr=True), f"fedproto compare {where} --pairs --picture comparison.png")


def pictures(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
) -> None:
    """Draw a run's pictures into RUN/pictures and print their paths.

    The pictures show each client's test error, and the mean by round and by
    communicated parameters. Forecasting: for
    FUELS the matrix of divergences between prototypes, and after a simulation
    also the learned filters and the forecasts of single clients.
    Classification: accuracy by stage and by class, and the clients' classes.
    Sequences: the clusters over the rounds, the similarity of the clients
    and the forgetting factor.

    [bold]Example[/bold]

      fedproto pictures runs/my-run
    """
    look_here_for_users_code()  # pictures of models may need the user's modules
    for file in draw(run):
        typer.echo(file)


def report(
    places: Places,
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
            help="Folder of the files. Default: RUN/export.",
        ),
    ] = "",
) -> None:
    """Write finished runs as long tables for other tools.

    A table has one number per row: rounds, clients and, for several steps
    ahead, steps. Existing files are never overwritten. parquet needs
    pip install "fedproto-app\\[parquet]".

    [bold]Examples[/bold]

      fedproto export runs/my-run --to csv
      fedproto export runs --to parquet --output tables
    """
    from fedproto_app.report.export import write_csv, write_parquet

    runs = _finished(places)
    if len(runs) > 1 and not output:
        raise SettingsError(f"--to {target}: name the folder of {len(runs)} runs with --output")
    folder = Path(output).expanduser() if output else runs[0].folder / "export"
    write = write_csv if target == "csv" else write_parquet
    for file in write(runs, folder):
        typer.echo(file)


def _finished(places: Sequence[Path]) -> list[Run]:
    """Return the finished runs in these places. Say which folders hold none."""
    runs, without = find_runs(places)
    for folder in without:
        typer.echo(f"skipped {folder}: no summary.json, so no finished run", err=True)
    return runs
