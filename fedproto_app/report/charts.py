"""Make the charts of every task (gains, errors, learning curves), and the PNG files of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from fedproto_app.core.charts import (
    Axis,
    Bars,
    Chart,
    DotRow,
    Dots,
    Line,
    Lines,
    Section,
    gain_text,
    is_wide,
    number,
)
from fedproto_app.core.errors import FedProtoError
from fedproto_app.report.comparison import Question, mean_errors, questions
from fedproto_app.report.drawing import charts_png
from fedproto_app.report.run_files import Record
from fedproto_app.report.runs import Group, Run, read_rounds, read_task
from fedproto_app.report.taking_part import Candidate, chosen_to_share
from fedproto_app.report.task_report import report_for
from fedproto_app.tasks.metrics import TaskMetrics

if TYPE_CHECKING:
    from fedproto_app.data.series import ClientSeries
    from fedproto_app.serving import ClientForecast

MOST_METHODS = 12  # rows of dots, or lines. More cannot be told apart
_TRAFFIC = "numbers sent, up and down, all clients"

MOST_CLIENTS = 6  # forecasts in one picture
_PERIODS_SHOWN = 4  # periods of history shown before a forecast


# For each label, the records of rounds.jsonl and a value for each of them.
Curves = Mapping[str, tuple[Sequence[Record], Sequence[float | None]]]


def gains_chart(chosen: Candidate) -> Bars | None:
    """Return a chart of each client's gain over its best local model, the largest gain first.

    A gain is how much lower the error is, as a share of the local model's error. Return None if
    there are no gains.
    """
    gains = {name: 1 - ratio for name, ratio in chosen.gain.ratios.items() if name in chosen.errors}
    if not gains:
        return None
    names = sorted(gains, key=lambda name: (-gains[name], name))
    values = np.array([gains[name] for name in names])
    first, middle, last = (gain_text(gain) for gain in (values[0], np.median(values), values[-1]))
    text = (
        f"Bars of each client's gain: {chosen.gain.better} of {len(values)} have a lower "
        f"error. {names[0]} gains most ({first}), {names[-1]} least ({last}); the median is "
        f"{middle}."
    )
    name = report_for(chosen.group.task).metrics.error
    title = f"Each client's gain: how much lower its {name} is than with its best local model"
    if without := len(chosen.rival) - len(names):
        title += f" ({without} {'client' if without == 1 else 'clients'} without an error left out)"
    if values.min() < -1:
        title += "; losses are cut at 100%"
    return Bars(title, text, Axis("gain", percent=True), names, values)


def errors_section(groups: Sequence[Group], labels: Sequence[str]) -> Section:
    """Return the section on the clients' errors: a row per group, a dot per client."""
    metrics = report_for(groups[0].task).metrics
    shown = list(zip(labels, groups, strict=True))[:MOST_METHODS]
    about = "Each dot is a client, and the stroke marks the median client."
    if len(groups) > MOST_METHODS:
        about += f" Shown are the first {MOST_METHODS} rows of the table of methods."
    charts = errors_charts({label: mean_errors(group, metrics) for label, group in shown}, metrics)
    return Section("Errors of all clients", about, charts)


def errors_charts(
    errors_by_label: Mapping[str, Mapping[str, float]], metrics: TaskMetrics
) -> list[Dots]:
    """Return a chart with a row of test errors for each label, or [] if there are no errors."""
    rows = [
        DotRow(label, np.array([*errors.values()]), [*errors], median(errors.values()))
        for label, errors in errors_by_label.items()
        if errors
    ]
    if not rows:
        return []
    name, percent = metrics.error, metrics.is_accuracy
    values = np.concatenate([row.values for row in rows])
    axis = Axis(f"test {name} of a client", log=not percent and is_wide(values), percent=percent)
    medians = [f"{row.label} {_value_text(median(row.values), percent)}" for row in rows]
    text = f"Dots of the clients' test {name}. Medians: {', '.join(medians)}."
    return [Dots("By client", text, axis, rows)]


def learning_section(groups: Sequence[Group], labels: Sequence[str]) -> Section:
    """Return the section on learning curves, by round and by traffic, of the first seed's runs."""
    metrics = report_for(groups[0].task).metrics
    field = metrics.latest.round.name
    curves = (
        _curves_of_run(groups[0].runs[0].rounds, groups[0].task)
        if len(groups) == 1
        else {
            label: (group.runs[0].rounds, [line.get(field) for line in group.runs[0].rounds])
            for label, group in list(zip(labels, groups, strict=True))[:MOST_METHODS]
        }
    )
    charts = learning_charts(curves, metrics, "test " if len(groups) > 1 else "")
    lines = charts[0].lines
    if max((len(line.x) for line in lines), default=0) < 2:
        about = "There was only one round, so there is no learning curve."
        return Section("Learning", about if lines else "")
    about = (
        "The first chart is by round, the second by the amount of numbers sent so far"
        + (", for the first seed" if any(len(group.runs) > 1 for group in groups) else "")
        + ". A method with only one round is a single dot."
    )
    return Section("Learning and what it costs", about, charts)


def _curves_of_run(rounds: Sequence[Record], task: str) -> Curves:
    return {label: (rounds, values) for label, values in report_for(task).curves(rounds).items()}


def learning_charts(curves: Curves, metrics: TaskMetrics, prefix: str = "") -> list[Lines]:
    """Return charts of the curves, by round and by traffic. Curves without values are left out.

    prefix: the word before the figure's name in the titles.
    """
    by_round, by_cost = [], []
    for place, (label, (rounds, values)) in enumerate(curves.items()):
        y = np.array([np.nan if value is None else float(value) for value in values])
        is_known = np.isfinite(y)
        if not is_known.any():
            continue
        numbers = np.array([float(record["round"]) for record in rounds])
        sent = [float(record["parameters_up"] + record["parameters_down"]) for record in rounds]
        traffic = np.cumsum(sent)
        by_round.append(Line(label, numbers[is_known], y[is_known], look=place))
        by_cost.append(Line(label, traffic[is_known], y[is_known], look=place))
    by_round, by_cost = _merged(by_round), _merged(by_cost)
    name, percent = metrics.axis.removeprefix("test "), metrics.is_accuracy
    all_values = np.concatenate([np.zeros(0), *(line.y for line in by_round)])
    y_axis = Axis(f"{prefix}{name}", log=not percent and is_wide(all_values), percent=percent)
    best = sorted(by_round, key=lambda line: metrics.badness(float(line.y[-1])))
    ends = (f"{line.label} {_value_text(float(line.y[-1]), percent)}" for line in by_round[:6])
    text = f"Line chart over the rounds. At the end: {', '.join(ends)}."
    text += "".join(f" Best there: {line.label}." for line in best[:1])
    costs = (f"{line.label} {number(float(line.x[-1]))}" for line in by_cost[:6])
    cost = f"The same values by the amount of numbers sent. At the end: {', '.join(costs)}."
    traffic = np.concatenate([np.zeros(0), *(line.x for line in by_cost)])
    # Methods differ by orders of magnitude, and some send nothing at all.
    log = is_wide(traffic) or bool((traffic == 0).any() and (traffic > 0).any())
    return [
        Lines(f"{prefix}{name} by round", text, Axis("round", integers=True), y_axis, by_round),
        Lines(f"{prefix}{name} by traffic", cost, Axis(_TRAFFIC, log=log), y_axis, by_cost),
    ]


def _merged(lines: Sequence[Line]) -> list[Line]:
    """Merge equal lines into one line with all their labels, so that no line hides another."""
    alike: dict[tuple[bytes, bytes], list[Line]] = defaultdict(list)
    for line in lines:
        alike[line.x.tobytes(), line.y.tobytes()].append(line)
    return [
        replace(equal[0], label=" = ".join(line.label for line in equal))
        for equal in alike.values()
    ]


def _value_text(value: float, percent: bool) -> str:
    return f"{value:.1%}" if percent else number(value)


def draw(run_dir: Path) -> list[Path]:
    """Draw all charts that the run has data for into ``<run_dir>/pictures``. Return the PNG files.

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
    """Return the charts of each picture that the run has data for, by file name."""
    task = read_task(run_dir)
    report, charts = report_for(task), dict[str, Sequence[Chart]]()
    if (run_dir / "clients.csv").exists():
        errors = mean_errors(Group((Run(run_dir, {}, {}),)), report.metrics)
        charts["clients.png"] = errors_charts({run_dir.name: errors}, report.metrics)
    if rounds := read_rounds(run_dir):
        charts["rounds.png"] = learning_charts(_curves_of_run(rounds, task), report.metrics)
    charts |= report.pictures(run_dir)
    return {name: drawn for name, drawn in charts.items() if drawn}


def comparison_of(groups: Sequence[Group]) -> list[Chart]:
    """Return charts of groups of runs, question by question, as in a report.

    They show the clients' errors and the learning curves. For the first seed's runs, the task's
    wide line charts follow, such as several methods' forecasts for a client.
    """
    return [
        replace(chart, title=f"{question.title}: {chart.title}")
        for question in questions(groups)
        for chart in (
            *errors_section(question.groups, question.labels).charts,
            *learning_section(question.groups, question.labels).charts,
            *_wide_charts(question),
        )
    ]


def _wide_charts(question: Question) -> list[Lines]:
    """Return the wide line charts about the chosen way of sharing, or the first group."""
    chosen = chosen_to_share(question)
    names, groups = question.labels, list(question.groups)
    first = names[groups.index(chosen.group) if chosen else 0]
    runs = {label: group.runs[0].folder for label, group in zip(names, groups, strict=True)}
    sections = report_for(groups[0].task).sections(runs, first)
    charts = [chart for section in sections for chart in section.charts]
    return [chart for chart in charts if isinstance(chart, Lines) and chart.wide]


def forecast_charts(
    forecasts: Sequence[ClientForecast], series: Sequence[ClientSeries], period: int
) -> list[Lines]:
    """Return charts of the first `MOST_CLIENTS` forecasts, each after the end of its series."""
    histories = {client.name: client for client in series}
    charts = []
    for forecast in forecasts[:MOST_CLIENTS]:
        history = histories[forecast.client].values[-_PERIODS_SHOWN * period :]
        positions = forecast.first - len(history) + np.arange(len(history) + len(forecast.values))
        x, places = Axis("step", integers=True), positions.astype(np.float64)
        if forecast.clock is not None:
            x, places = Axis(times=True), forecast.clock.seconds(positions)
        limits, values = forecast.limits, forecast.values
        bands = {
            f"{level}% interval": np.stack(
                [values - limits[f"lo-{level}"], limits[f"hi-{level}"] - values]
            )
            for level in sorted(forecast.levels)
        }
        lines = [
            Line("known", places[: len(history)], history.astype(np.float64)),
            Line("forecast", places[len(history) :], values, 1, bands),
        ]
        y = Axis("value, in the data's units")
        text = f"Line chart of the last values of {forecast.client} and their forecast."
        charts.append(Lines(forecast.client, text, x, y, lines, wide=True))
    return charts


def write_picture(file: Path, charts: Sequence[Chart], title: str = "") -> None:
    """Write the charts as one PNG, and create its folder if needed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(charts_png(charts, title))
