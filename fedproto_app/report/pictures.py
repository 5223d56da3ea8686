"""Pictures of runs, drawn from their artefacts alone.

matplotlib is imported where it is needed, and only its object interface is used: the server app
draws at the end of a run, in a thread, where pyplot's global state has no place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedproto_app.core.errors import FedProtoError
from fedproto_app.report.drawing import (
    PARAMETERS,
    STYLE,
    client_figures,
    look,
    plot_chart,
    plot_distribution,
    plot_known,
    sent_so_far,
)
from fedproto_app.report.page.charts import Lines
from fedproto_app.report.runs import Group, labels, read_rounds, read_task
from fedproto_app.report.taking_part import chosen_to_share
from fedproto_app.report.task_report import Measure, report_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(run_dir: Path) -> list[Path]:
    """Draw what the run's artefacts allow into ``<run_dir>/pictures``; returns the PNG files.

    Which pictures there are is the task's affair. Raises `FedProtoError` if there is nothing to
    draw.
    """
    from matplotlib import rc_context

    folder, drawn = run_dir / "pictures", []
    with rc_context(STYLE):
        for name, figure in report_for(read_task(run_dir)).pictures(run_dir).items():
            folder.mkdir(exist_ok=True)
            figure.savefig(folder / name)
            drawn.append(folder / name)
    if not drawn:
        raise FedProtoError(f"{run_dir}: no clients.csv, rounds.jsonl or divergence.npz to draw")
    return drawn


def draw_comparison(groups: Sequence[Group], file: Path) -> None:
    """Draw groups of runs into one PNG, as `comparison_figure` has them."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        figure = comparison_figure(groups)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file)


def comparison_figure(groups: Sequence[Group]) -> Figure:
    """Groups of runs: for each task and dataset a row of two panels, and the task's own below.

    Left, the distribution over clients (of all seeds) of what the task ranks by; right, its mean in
    the first seed's run against the parameters communicated so far. Below, of the first seeds'
    runs, the task's wide charts of lines: of forecasts, what several methods forecast for a client.
    """
    from matplotlib.figure import Figure

    named = list(zip(groups, labels(groups), strict=True))
    rows: dict[tuple[str, str], dict[str, Group]] = defaultdict(dict)  # by label
    for group, label in named:
        rows[group.task, group.dataset][label] = group
    looks = {label: look(i) for i, label in enumerate(sorted({label for _, label in named}))}
    wide = {key: _wide_charts(key[0], members) for key, members in rows.items()}
    heights = [height for charts in wide.values() for height in (4.2, *[2.9] * len(charts))]
    figure = Figure(figsize=(11, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    number = 0
    for (task, dataset), members in rows.items():
        measure = report_for(task).measure
        figures = {
            label: np.concatenate(
                [client_figures(run.folder, measure.client, measure.scale) for run in group.runs]
            )
            for label, group in members.items()
        }
        left, right = (figure.add_subplot(grid[number, column]) for column in (0, 1))
        plot_distribution(left, figures, looks, measure)
        left.set_title(f"{dataset}: {measure.name} over clients")
        first = {label: group.runs[0].folder for label, group in members.items()}
        _plot_cost(right, first, looks, measure)
        right.set_title(f"{dataset}: {measure.name} and cost")
        for below, chart in enumerate(wide[task, dataset], start=1):
            axes = figure.add_subplot(grid[number + below, :])
            plot_chart(axes, chart, looks)
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
        number += 1 + len(wide[task, dataset])
    return figure


def _wide_charts(task: str, members: Mapping[str, Group]) -> list[Lines]:
    """About the way of sharing that validation errors choose, or the first group."""
    chosen = chosen_to_share(list(members.values()))
    first = next(iter(members))
    if len(chosen) == 1:
        first = next(label for label, group in members.items() if group is chosen[0].group)
    runs = {label: group.runs[0].folder for label, group in members.items()}
    sections = report_for(task).sections(runs, first)
    charts = [chart for section in sections for chart in section.charts]
    return [chart for chart in charts if isinstance(chart, Lines) and chart.wide]


def _plot_cost(
    axes: Axes,
    folders: Mapping[str, Path],
    looks: Mapping[str, dict[str, Any]],
    measure: Measure,
) -> None:
    """The measure against the parameters communicated so far; a label and a look each."""
    least = float("inf")  # parameters of a method's first round
    for label, folder in folders.items():
        rounds = read_rounds(folder)
        values = [record[measure.round] for record in rounds]
        places = plot_known(
            axes, sent_so_far(rounds), values, measure.scale, label=label, **looks[label]
        )
        least = min([least, *(x for x in places if x > 0)])
    if least < float("inf"):
        # Methods differ by orders of magnitude, and some send nothing at all.
        # From a power of ten on: one inside the straight part would lie on top of 0.
        axes.set_xscale("symlog", linthresh=10 ** floor(log10(least)))
    axes.set(xlabel=PARAMETERS, ylabel=measure.axis)
    if axes.lines:
        axes.legend()
