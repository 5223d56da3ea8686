"""The tables of docs/results/systems.md: what FUELS's paper compares with, here and as printed.

    python -m benchmarks.systems_results milano-choice      # hyper-parameters by validation
    python -m benchmarks.systems_results milano electricity # the rows of the paper's table 1

`milano-choice` runs each setting of a grid for 40 rounds and shows validation errors alone; what it
chooses is what `benchmarks.forecasting_results` has in its rows. The other tables take the runs of
that script, and make what is missing. Finished runs are not repeated. Lines of the page whose runs
are not there stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks import forecasting_results
from benchmarks.forecasting_results import FILES, QUICK, TITLES
from benchmarks.page_tables import Lines
from benchmarks.result_page import Experiment, Page, Row, command, number, spread_text
from benchmarks.result_runs import Changes
from fedproto_app.report.runs import Group, Run, read_clients
from fedproto_app.report.task_report import UNKNOWN, error_text

# A, Table 1: MSE and MAE on Net, Electricity and METR-LA, values that a client sends a round.
Printed = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
PRINTED: dict[str, tuple[Printed, str]] = {
    "fedavg": (((2.02, 0.60), (0.34, 0.40), (0.22, 0.24)), "100,737"),
    "fedprox": (((1.76, 0.61), (0.39, 0.45), (0.21, 0.23)), "100,737"),
    "fedrep": (((2.50, 0.69), (0.27, 0.35), (0.29, 0.28)), "100,608"),
    "pfedme": (((1.62, 0.62), (0.77, 0.71), (0.26, 0.27)), "100,737"),
    "per-fedavg": (((1.65, 0.64), (0.29, 0.39), (0.53, 0.44)), "100,737"),
    "fedproto": (((2.56, 0.90), (0.70, 0.67), (0.88, 0.58)), "6,144"),
    "fedpcl": (((4.99, 1.34), (0.98, 0.82), (1.27, 0.71)), "106,881"),
    "cnfgnn": (((2.28, 0.87), (1.01, 0.49), (0.91, 0.57)), "72,065"),
    "fcgcn": (((2.57, 0.92), (4.20, 1.30), (2.17, 0.96)), "/"),
    "fedgru": (((2.19, 0.91), (1.04, 0.61), (0.98, 0.78)), "/"),
    "fuels": (((0.96, 0.51), (0.24, 0.34), (0.19, 0.23)), "768"),
}
# Which of the paper's data stand beside which of ours, and its name.
BESIDE = {"milano": (0, "Net"), "electricity": (1, "Electricity"), "metr-la": (2, "METR-LA")}
OURS = ("kindred", "analytic-shrunk", "naive", "solo")

_CHOICE: Changes = {"rounds": 40, "data.calendar": "phase"}
GRIDS: dict[str, list[Changes]] = {
    "per-fedavg": [
        {"per-fedavg.step-size": 0.001},
        {"per-fedavg.step-size": 0.01},
        {"per-fedavg.step-size": 0.1},
    ],
    "pfedme": [
        {"pfedme.proximal-lambda": float(pull), "pfedme.outer-step": step}
        for pull, step in ((1, 0.5), (15, 0.5), (30, 0.5), (1, 1.0), (15, 0.1), (15, 1.0))
    ],
    "fedgru": [
        {"fedgru.clusters": 1},
        {"fedgru.clusters": 2},
        {"fedgru.clusters": 3},
        {"fedgru.clusters": 2, "fedgru.organisations": 25},
    ],
    "fcgcn": [
        {"graph.source": "profiles", "graph.neighbours": 4},
        {"graph.source": "profiles", "graph.neighbours": 8},
        {"graph.source": "positions"},
    ],
    "fedpcl": [
        {"fedpcl.temperature": temperature, "fedpcl.contrast-weight": weight}
        for temperature in (0.02, 0.07, 0.5)
        for weight in (0.1, 1.0)
    ],
    "cnfgnn": [
        {"cnfgnn.server-epochs": 1},
        {"cnfgnn.server-epochs": 5},
        {"cnfgnn.server-epochs": 1, "graph.source": "positions"},
    ],
}


def experiments() -> dict[str, Experiment]:
    """All tables, by the name that the command line and the page's markers call them."""
    known = forecasting_results.experiments()
    made = {
        name: replace(
            known[name],
            rows={
                row: known[name].rows[row] for row in (*PRINTED, *OURS) if row in known[name].rows
            },
            table=_BesidePaper(*BESIDE[name]),
            arrange=partial(_in_order, [TITLES[row] for row in (*PRINTED, *OURS)]),
        )
        for name in BESIDE
    }
    rows = {
        _named(changes): Row(_folder(method, number), {"method": method, **_CHOICE, **changes})
        for method, grid in GRIDS.items()
        for number, changes in enumerate(grid)
    }
    made["milano-choice"] = Experiment(
        "fuels-milano.toml", FILES["milano"], (0,), rows, _choices, _about, arrange=_lowest_bold
    )
    return made


def _named(changes: Changes) -> str:
    return " ".join(f"{key}={value}" for key, value in changes.items())


def _folder(method: str, number: int) -> str:
    return f"milano-choice-{method}-{number}"


def _about(runs: Sequence[Run]) -> str:
    return f"{runs[0].summary['clients']} clients, {runs[0].summary['rounds']} rounds"


def _in_order(order: Sequence[str], lines: Lines) -> Lines:
    """By the first cells; lines that are not in the order behind."""
    head, *rows = lines
    places = {title: place for place, title in enumerate(order)}
    return [head, *sorted(rows, key=lambda row: places.get(row[0], len(places)))]


def _choices(groups: Mapping[str, Group]) -> Lines:
    """A line a setting."""
    lines = [["setting", "validation MSE", "round kept"]]
    for name, group in groups.items():
        error, kept = _validation(group.runs[0].folder)
        lines.append([_cell(name), error_text(error), f"{kept:.0f}"])
    return lines


def _cell(name: str) -> str:
    return f"`{name}`"


def _lowest_bold(lines: Lines) -> Lines:
    """In the order of the grids; the lowest validation error of each is bold."""
    grids = [[_cell(_named(changes)) for changes in grid] for grid in GRIDS.values()]
    head, *rows = _in_order([title for grid in grids for title in grid], lines)
    errors = {title: error.replace("**", "") for title, error, _ in rows}
    for grid in grids:
        there = [title for title in grid if title in errors]
        if there:
            best = min(there, key=lambda title: float(errors[title]))
            errors[best] = f"**{errors[best]}**"
    return [head, *([title, errors[title], kept] for title, _, kept in rows)]


@cache
def _validation(folder: Path) -> tuple[float, float]:
    """The mean over the clients of the kept models' validation MSE, and of their rounds."""
    rows = read_clients(folder)
    figures = [(float(row["validation_mse"]), float(row["kept_round"])) for row in rows]
    means = np.mean(figures, axis=0)
    return float(means[0]), float(means[1])


class _BesidePaper:
    """A table of what was measured here beside what the paper prints, in the paper's order."""

    def __init__(self, number: int, name: str) -> None:
        self._number, self._name = number, name

    def __call__(self, groups: Mapping[str, Group]) -> Lines:
        head = ["", "MSE", "MAE", "values up a round", f"A, {self._name}: MSE", "MAE", "Comms"]
        lines = []
        for row, group in groups.items():
            here = [spread_text(group, figure, error_text) for figure in ("mse", "mae")]
            sent = number(group, "parameters_up_per_client_round")
            lines.append([TITLES[row], *here, sent, *self._printed(row)])
        return [head, *lines]

    def _printed(self, row: str) -> list[str]:
        if row not in PRINTED:
            return [UNKNOWN] * 3
        errors, sent = PRINTED[row]
        mse, mae = errors[self._number]
        return [f"{mse:.2f}", f"{mae:.2f}", sent if self._number < 2 else UNKNOWN]


PAGE = Page(
    file="systems.md",
    maker="benchmarks.systems_results",
    folder="results/forecasting",
    experiments=experiments(),
    quick=QUICK,
)

if __name__ == "__main__":
    command(PAGE, __doc__)
