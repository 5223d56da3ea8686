"""The charts that every task has: who gains, errors of all clients, learning and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import median

import numpy as np
from numpy.typing import NDArray

from fedproto_app.report.drawing import is_wide, sent_so_far
from fedproto_app.report.page.axes import number
from fedproto_app.report.page.charts import Axis, Bars, DotRow, Dots, Line, Lines, Section
from fedproto_app.report.pairs import mean_errors
from fedproto_app.report.runs import Group, read_clients, read_rounds
from fedproto_app.report.taking_part import Candidate
from fedproto_app.report.task_report import Measure, report_for

MOST_METHODS = 12  # rows of dots, or lines; more cannot be told apart
_SENT = "numbers sent, up and down, all clients"


def gains_section(chosen: Candidate) -> Section:
    """Each client's error beside its best alone, the one that gains most first."""
    ratios = {name: ratio for name, ratio in chosen.ratios().items() if isfinite(ratio)}
    names = sorted(ratios, key=lambda name: (ratios[name], name))
    values = np.array([ratios[name] - 1 for name in names])
    without = len(chosen.rival) - len(names)
    better = int((values < 0).sum())
    text = f"Bars of the change of each client's error: {better} of {len(values)} have a lower one."
    if names:
        text += (
            f" The most to gain has {names[0]} ({values[0]:+.0%}), the least {names[-1]} "
            f"({values[-1]:+.0%}); the median is {np.median(values):+.0%}."
        )
    about = (
        f"The test error of each client with {chosen.label} beside its best alone. To the left the "
        "error is lower with the others, to the right higher."
    )
    if len(names) and values.max() > 1:
        about += " Bars are cut at twice the error."
    if without:
        about += f" {without} clients are left out: they have no error, or none alone."
    axis = Axis("change of the test error", percent=True)
    chart = Bars(
        "Change of each client's error", text, axis, names, values, "gains", "does not gain"
    )
    return Section("Who gains and who does not", about, [chart] if names else [])


def errors_section(groups: Sequence[Group], labels: Sequence[str]) -> Section:
    """A row of dots for each group, a dot for each client; the stroke is the median."""
    report = report_for(groups[0].task)
    columns = report.client_errors
    rows = []
    for group, label in list(zip(groups, labels, strict=True))[:MOST_METHODS]:
        errors = mean_errors(group, columns) if columns else _figures(group, report.measure)
        if errors:
            middle = median(errors.values())
            rows.append(DotRow(label, np.array([*errors.values()]), [*errors], middle))
    percent = bool(columns and columns.right) or (not columns and report.measure.scale == 0.01)
    name = columns.name if columns else report.measure.name
    values = np.concatenate([row.values for row in rows]) if rows else np.zeros(0)
    axis = Axis(f"test {name} of a client", log=not percent and is_wide(values), percent=percent)
    told = [f"{row.label} {_told(row.middle, percent)}" for row in rows if row.middle is not None]
    text = f"Dots of the clients' test {name}. Medians: {', '.join(told)}."
    about = "Every dot is a client, the stroke is the median client."
    if len(groups) > MOST_METHODS:
        about += f" The first {MOST_METHODS} rows of the table of methods."
    chart = Dots("By client", text, axis, rows, wide=True)
    return Section("Errors of all clients", about, [chart] if rows else [])


def _told(value: float | None, percent: bool) -> str:
    if value is None:
        return "unknown"
    return f"{value:.1%}" if percent else number(value)


def _figures(group: Group, measure: Measure) -> dict[str, float]:
    folder = group.runs[0].folder
    rows = read_clients(folder) if (folder / "clients.csv").exists() else []
    return {row["client"]: float(row[measure.client]) for row in rows if row[measure.client]}


def learning_section(groups: Sequence[Group], labels: Sequence[str]) -> Section:
    """What was reached after each round, and after how much traffic, in the first seed's runs."""
    report = report_for(groups[0].task)
    measure = report.measure
    percent = measure.scale == 0.01
    by_round: list[Line] = []
    by_cost: list[Line] = []
    evaluated = 0
    for place, (group, label) in enumerate(zip(groups, labels, strict=True)):
        folder = group.runs[0].folder
        if place >= MOST_METHODS or not (folder / "rounds.jsonl").exists():
            continue
        rounds = read_rounds(folder)
        curves: Mapping[str, Sequence[float | None]] = (
            report.curves(rounds)
            if len(groups) == 1
            else {label: [line.get(measure.round) for line in rounds]}
        )
        numbers = np.array([float(line["round"]) for line in rounds])
        sent = np.array(sent_so_far(rounds), dtype=np.float64)
        for name, values in curves.items():
            y = np.array([np.nan if value is None else float(value) for value in values])
            known = np.isfinite(y)
            evaluated = max(evaluated, int(known.sum()))
            if known.any():
                look = len(by_round) if len(groups) == 1 else place
                by_round.append(Line(name, numbers[known], y[known], look=look))
                by_cost.append(Line(name, sent[known], y[known], look=look))
    name = measure.axis.removeprefix("test ").removesuffix(" (%)")
    if evaluated < 2:
        about = "One round was all there was to learn, so there is no curve."
        return Section("Learning", about if by_round else "", ())
    y_axis = Axis(name, log=not percent and is_wide(_all(by_round)), percent=percent)
    best = min(by_round, key=lambda line: measure.badness(float(line.y[-1])))
    ends = ", ".join(f"{line.label} {_told(float(line.y[-1]), percent)}" for line in by_round[:6])
    text = f"Line chart over the rounds. At the end: {ends}. Best there: {best.label}."
    cost = f"The same against the numbers sent. At the end: {_costs(by_cost)}."
    sent_values = np.concatenate([line.x for line in by_cost])
    about = (
        "Left by round, right by what was sent until then"
        + (", for the first seed" if any(len(group.runs) > 1 for group in groups) else "")
        + ". A single dot is a method that has one round."
    )
    which = "test " if len(groups) > 1 else ""
    return Section(
        "Learning and what it costs",
        about,
        [
            Lines(f"{which}{name} by round", text, Axis("round", whole=True), y_axis, by_round),
            Lines(
                f"{which}{name} by traffic", cost, Axis(_SENT, log=_spans(sent_values)), y_axis,
                by_cost,
            ),
        ],
    )  # fmt: skip


def _spans(sent: NDArray[np.float64]) -> bool:
    """Methods differ by orders of magnitude, and some send nothing at all."""
    return is_wide(sent) or bool((sent == 0).any() and (sent > 0).any())


def _all(lines: Sequence[Line]) -> NDArray[np.float64]:
    return np.concatenate([line.y for line in lines])


def _costs(lines: Sequence[Line]) -> str:
    return ", ".join(f"{line.label} {number(float(line.x[-1]))}" for line in lines[:6])
