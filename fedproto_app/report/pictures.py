"""Draw PNG files of runs from their artefacts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedproto_app.core.charts import Axis, Chart, Line, Lines
from fedproto_app.core.errors import FedProtoError
from fedproto_app.report.charts import comparison_charts, difference_charts, run_charts
from fedproto_app.report.drawing import charts_png
from fedproto_app.report.pairs import Pair
from fedproto_app.report.runs import Group, labels, read_task
from fedproto_app.report.taking_part import chosen_to_share
from fedproto_app.report.task_report import report_for

if TYPE_CHECKING:
    from fedproto_app.data.series import ClientSeries
    from fedproto_app.serving.forecasts import ClientForecast

MOST_CLIENTS = 6  # forecasts in one picture
_PERIODS_SHOWN = 4  # of the history before a forecast


def draw(run_dir: Path) -> list[Path]:
    """Draw what the run's artefacts allow into ``<run_dir>/pictures``, and return the PNG files.

    Raises `FedProtoError` if there is nothing to draw.
    """
    files = []
    for name, charts in pictures_of(run_dir).items():
        file = run_dir / "pictures" / name
        write_picture(file, charts, run_dir.name)
        files.append(file)
    if not files:
        raise FedProtoError(f"{run_dir}: no clients.csv, rounds.jsonl or divergence.npz to draw")
    return files


def pictures_of(run_dir: Path) -> Mapping[str, Sequence[Chart]]:
    """Return the charts of each picture that the run's artefacts allow, by file name."""
    task = read_task(run_dir)
    return {**run_charts(run_dir, task), **report_for(task).pictures(run_dir)}


def draw_comparison(groups: Sequence[Group], file: Path) -> None:
    """Draw the charts of `comparison_of` into one PNG."""
    write_picture(file, comparison_of(groups))


def comparison_of(groups: Sequence[Group]) -> list[Chart]:
    """Return the charts of groups of runs, task by task and dataset by dataset.

    The charts show distributions over the clients and costs, and for the first seed's runs the
    task's wide line charts, such as several methods' forecasts for a client.
    """
    rows: dict[tuple[str, str], dict[str, Group]] = defaultdict(dict)  # by label
    for group, label in zip(groups, labels(groups), strict=True):
        rows[group.task, group.dataset][label] = group
    return [
        chart
        for (task, _), members in rows.items()
        for chart in (*comparison_charts(members), *_wide_charts(task, members))
    ]


def _wide_charts(task: str, members: Mapping[str, Group]) -> list[Lines]:
    """Return the wide line charts about the chosen way of sharing, or the first group."""
    chosen = chosen_to_share(list(members.values()))
    first = next(iter(members))
    if len(chosen) == 1:
        first = next(label for label, group in members.items() if group is chosen[0].group)
    runs = {label: group.runs[0].folder for label, group in members.items()}
    sections = report_for(task).sections(runs, first)
    charts = [chart for section in sections for chart in section.charts]
    return [chart for chart in charts if isinstance(chart, Lines) and chart.wide]


def draw_differences(pairs: Sequence[Pair], file: Path) -> None:
    """Draw each client's difference between two methods' errors into one PNG.

    Raises `FedProtoError` if there are no pairs.
    """
    if not pairs:
        raise FedProtoError("--differences: no two runs have clients with errors to compare")
    write_picture(file, difference_charts(pairs))


def forecast_charts(
    forecasts: Sequence[ClientForecast], series: Sequence[ClientSeries], period: int
) -> list[Lines]:
    """Return charts of the first `MOST_CLIENTS` forecasts, after the end of each series."""
    from fedproto_app.tasks.forecasting.metrics import LEVELS

    histories = {client.name: client for client in series}
    charts = []
    for forecast in forecasts[:MOST_CLIENTS]:
        history = histories[forecast.client].values[-_PERIODS_SHOWN * period :]
        positions = forecast.first - len(history) + np.arange(len(history) + len(forecast.values))
        x, places = Axis("step", integers=True), positions.astype(np.float64)
        if forecast.clock is not None:
            x, places = Axis(times=True), forecast.clock.seconds(positions)
        bands = {
            f"{level}% interval": width
            for level, width in zip(LEVELS, forecast.half_widths, strict=True)
        }
        lines = [
            Line("known", places[: len(history)], history.astype(np.float64)),
            Line("forecast", places[len(history) :], forecast.values, 1, bands),
        ]
        y = Axis("value, in the data's units")
        text = f"Line chart of the last values of {forecast.client} and their forecast."
        charts.append(Lines(forecast.client, text, x, y, lines, wide=True))
    return charts


def write_picture(file: Path, charts: Sequence[Chart], title: str = "") -> None:
    """Write the charts as one PNG, and create its folder if needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(charts_png(charts, title))
