"""The tables of docs/results/systems.md: the methods of FUELS's paper, here and as printed.

    python -m benchmarks.systems_results milano-choice      # hyper-parameters by validation
    python -m benchmarks.systems_results milano electricity # the rows of the paper's table 1

`milano-choice` runs each setting of a grid for 40 rounds and shows validation errors alone;
`benchmarks.forecasting_results` uses the settings that it chooses. The other tables use the runs of
that script and make the missing runs. Finished runs are not repeated. Lines of the page whose runs
are missing stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from benchmarks import forecasting_results
from benchmarks.forecasting_results import FILES, QUICK, TITLES
from benchmarks.pages import Lines
from benchmarks.result_page import (
    Changes,
    Experiment,
    Page,
    Row,
    command,
    number,
    spread_text,
)
from fedproto_app.report.runs import Group, Run, read_clients
from fedproto_app.tasks.metrics import UNKNOWN, error_text

# A, Table 1: MSE on Net, Electricity and METR-LA; values that a client sends a round.
PRINTED: dict[str, tuple[tuple[float, float, float], str]] = {
    "fedavg": ((2.02, 0.34, 0.22), "100,737"),
    "fedprox": ((1.76, 0.39, 0.21), "100,737"),
    "fedrep": ((2.50, 0.27, 0.29), "100,608"),
    "pfedme": ((1.62, 0.77, 0.26), "100,737"),
    "per-fedavg": ((1.65, 0.29, 0.53), "100,737"),
    "fedproto": ((2.56, 0.70, 0.88), "6,144"),
    "fedpcl": ((4.99, 0.98, 1.27), "106,881"),
    "cnfgnn": ((2.28, 1.01, 0.91), "72,065"),
    "fcgcn": ((2.57, 4.20, 2.17), "/"),
    "fedgru": ((2.19, 1.04, 0.98), "/"),
    "fuels": ((0.96, 0.24, 0.19), "768"),
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
    """Return all tables by their name on the command line and in the page's markers."""
    forecasts, shown = forecasting_results.experiments(), (*PRINTED, *OURS)
    tables = {
        name: replace(
            forecasts[name],
            rows={row: forecasts[name].rows[row] for row in shown if row in forecasts[name].rows},
            table=partial(_beside_paper, name),
            arrange=partial(_in_order, [TITLES[row] for row in shown]),
        )
        for name in BESIDE
    }
    rows = {
        _setting_name(changes): Row(
            f"milano-choice-{method}-{number}", {"method": method, **_CHOICE, **changes}
        )
        for method, grid in GRIDS.items()
        for number, changes in enumerate(grid)
    }
    tables["milano-choice"] = Experiment(
        "fuels-milano.toml", FILES["milano"], (0,), rows, _choices, _about, arrange=_lowest_bold
    )
    return tables


def _setting_name(changes: Changes) -> str:
    return " ".join(f"{key}={value}" for key, value in changes.items())


def _about(runs: Sequence[Run]) -> str:
    return f"{runs[0].summary['clients']} clients, {runs[0].summary['rounds']} rounds"


def _in_order(order: Sequence[str], lines: Lines) -> Lines:
    """Sort rows by their first cell; unlisted rows are last."""
    head, *rows = lines
    places = {title: place for place, title in enumerate(order)}
    return [head, *sorted(rows, key=lambda row: places.get(row[0], len(places)))]


def _choices(groups: Mapping[str, Group]) -> Lines:
    """Return a row for each setting."""
    lines = [["setting", "validation MSE", "round kept"]]
    for name, group in groups.items():
        error, kept_round = _validation(group.runs[0].folder)
        lines.append([_cell(name), error_text(error), f"{kept_round:.0f}"])
    return lines


def _cell(name: str) -> str:
    return f"`{name}`"


def _lowest_bold(lines: Lines) -> Lines:
    """Sort as in `GRIDS` and mark the lowest validation error of each grid."""
    grids = [[_cell(_setting_name(changes)) for changes in grid] for grid in GRIDS.values()]
    head, *rows = _in_order([title for grid in grids for title in grid], lines)
    errors = {title: error.replace("**", "") for title, error, _ in rows}
    for grid in grids:
        listed = [title for title in grid if title in errors]
        if listed:
            best = min(listed, key=lambda title: float(errors[title]))
            errors[best] = f"**{errors[best]}**"
    return [head, *([title, errors[title], memory] for title, _, memory in rows)]


@cache
def _validation(folder: Path) -> tuple[float, float]:
    """Return the means over clients of the kept models' validation MSE and round."""
    clients = read_clients(folder)
    return float(clients["validation_mse"].mean()), float(clients["kept_round"].mean())


def _beside_paper(name: str, groups: Mapping[str, Group]) -> Lines:
    """Return the errors here next to the errors that the paper prints."""
    place, data = BESIDE[name]
    lines = [["method", "MSE", "values sent a round", f"A, {data}: MSE", "A: values"]]
    for row, group in groups.items():
        values_sent = number(group, "parameters_up_per_client_round")
        printed = [UNKNOWN, UNKNOWN]
        if row in PRINTED:
            errors, values = PRINTED[row]
            printed = [f"{errors[place]:.2f}", values if place < 2 else UNKNOWN]
        lines.append([TITLES[row], spread_text(group, "mse", error_text), values_sent, *printed])
    return lines


PAGE = Page(
    file="systems.md",
    maker="benchmarks.systems_results",
    folder="results/forecasting",
    experiments=experiments(),
    quick=QUICK,
)

if __name__ == "__main__":
    command(PAGE, __doc__)
