"""The tables of docs/results/fuels.md: what FUELS's parts do, and what keeps it from gaining more.

    python -m benchmarks.fuels_results                       # everything
    python -m benchmarks.fuels_results milano --seeds 0      # one table, one seed
    python -m benchmarks.fuels_results beta rho --page-only  # from existing runs

Each row is a `fedproto run`; finished runs in the output folder are not repeated, so the command
can be interrupted; delete a run's folder to repeat it. Tables share runs: every sweep has the
default, and `causes` reads runs of milano. A table summarises all finished runs of its
experiment, from any call, and keeps the page's lines whose runs are missing. A run whose settings
differ from its row's present settings is refused. Test errors are never used to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from benchmarks.pages import Lines
from benchmarks.result_page import Changes, Experiment, Page, Row, command, spread_text
from fedproto_app.report.runs import Group, Run, read_rounds
from fedproto_app.tasks.metrics import UNKNOWN, error_text, percent_text

MILANO, ELECTRICITY = "milano_internet_hourly.csv.gz", "electricity_2014_hourly.csv.gz"
M4 = "m4_hourly.csv.gz"
SEEDS = (0, 1, 2)
Cell = Callable[[Group], str]

# For --quick: small enough to see that everything works, too small for any figure to count.
QUICK: Changes = {"rounds": 2, "data.max-clients": 4}

_MEASURED: Changes = {"fuels.diagnostics": True}
_ALGORITHM_1: Changes = {"fuels.prediction-weight": 5.0, "fuels.inter-weight": 1.0}
VARIANTS: dict[str, Changes] = {
    "solo": {"method": "solo"},
    "default": {},
    "aaai": {"fuels.negatives": "similarity"},
    "preprint": {"fuels.prototype-dim": 0},
    "algorithm-1": _ALGORITHM_1,
    "renewed": {"fuels.renew-optimizer": True},
    "faster-filter": {"fuels.filter-rate": 10.0},
    "algorithm-1-renewed": {**_ALGORITHM_1, "fuels.renew-optimizer": True},
    "without-intra": {"fuels.intra": False},
    "random": {"fuels.comparison": "random"},
    "random-algorithm-1": {**_ALGORITHM_1, "fuels.comparison": "random"},
}
TITLES = {
    "solo": "Solo",
    "default": "FUELS as configured",
    "aaai": "pure A: `similarity`, d_p 32",
    "preprint": "pure P: `filtered`, no projector",
    "algorithm-1": "weights of A, Algorithm 1: 5·L_pred + L_intra + L_inter",
    "renewed": "optimiser renewed after the first guidance",
    "faster-filter": "W learns ten times as fast",
    "algorithm-1-renewed": "weights of A, Algorithm 1, optimiser renewed",
    "without-intra": "w/o intra",
    "random": "control: random partners",
    "random-algorithm-1": "control: random partners, weights of A, Algorithm 1",
}
# Whose course over the rounds the page shows, and at which rounds.
COURSES = ("default", "algorithm-1", "renewed")
ROUNDS = (1, 2, 3, 10, 100)

# What the papers vary (P, Figs. 6 and tables 4 and 5; α has no table), one setting at a time. d_r
# is what P calls so, the width of each of the two GRUs, and P has no projector.
_SWEEP_ROUNDS = 60
SWEEPS: dict[str, dict[str, Changes]] = {
    "beta": {f"{beta}": {"fuels.beta": float(beta)} for beta in (10, 30, 50, 70, 90)},
    "tau": {f"{tau:g}": {"fuels.temperature": tau} for tau in (0.02, 0.05, 0.1, 0.5, 1.0)},
    "rho": {f"{rho:g}": {"fuels.inter-weight": rho} for rho in (0.1, 1.0, 5.0, 10.0, 50.0)},
    "width": {
        f"{width}": {"model.representation-dim": 2 * width, "fuels.prototype-dim": 0}
        for width in (4, 8, 16, 32, 64, 128, 256)
    },
    "alpha": {f"{share:g}": {"participation": share} for share in (0.2, 0.5, 0.8, 1.0)},
    "noise": {
        kind: {"fuels.noise": kind} for kind in ("none", "laplace", "gaussian", "exponential")
    },
}


def experiments() -> dict[str, Experiment]:
    """Return all tables by their name on the command line and in the page's markers."""
    milano = partial(Experiment, "fuels-milano.toml", MILANO)
    subset: Changes = {"data.max-clients": 25, "rounds": 100}
    tables = {
        "milano": milano(SEEDS, _variants("milano", {}), _compared, _about),
        "electricity": Experiment(
            "fuels-electricity.toml",
            ELECTRICITY,
            SEEDS,
            _variants("electricity", {}),
            _compared,
            _about,
        ),
        "m4": Experiment("fuels-m4.toml", M4, SEEDS, _variants("m4", subset), _compared, _about),
    }
    shown = {name: tables["milano"].rows[name] for name in COURSES}
    causes = milano(SEEDS[:1], shown, _courses, _about, keys=2)
    sweeps = {
        name: milano(SEEDS[:1], _sweep(name, values), partial(_swept, name), _about)
        for name, values in SWEEPS.items()
    }
    return {**tables, "causes": causes, **sweeps}


def _variants(folder: str, common: Changes) -> dict[str, Row]:
    return {
        name: Row(f"{folder}-{name}", {**_MEASURED, **common, **changes})
        for name, changes in VARIANTS.items()
    }


def _sweep(name: str, values: Mapping[str, Changes]) -> dict[str, Row]:
    return {
        value: Row(f"sweep-{name}-{value}", {**_MEASURED, "rounds": _SWEEP_ROUNDS, **changes})
        for value, changes in values.items()
    }


def _about(runs: Sequence[Run]) -> str:
    clients = {run.summary["clients"] for run in runs}
    rounds = {run.summary["rounds"] for run in runs}
    return f"{_range(clients)} clients, {_range(rounds)} rounds"


def _range(numbers: set[int]) -> str:
    return " to ".join(str(number) for number in sorted({min(numbers), max(numbers)}))


def _compared(groups: Mapping[str, Group]) -> Lines:
    """Return a row for each variant, in the order of `VARIANTS`."""
    better: Cell = partial(_better_off, groups.get("solo"))
    columns = {**_ERRORS, "better off than alone": better, "W above 0": _kept_pairs}
    lines = [["variant", *columns]]
    for name, group in groups.items():
        lines.append([TITLES[name], *(cell(group) for cell in columns.values())])
    return lines


def _swept(name: str, groups: Mapping[str, Group]) -> Lines:
    """Return a row for each value of the sweep."""
    return [
        [SYMBOLS[name], *_ERRORS],
        *([value, *(cell(group) for cell in _ERRORS.values())] for value, group in groups.items()),
    ]


def _courses(groups: Mapping[str, Group]) -> Lines:
    """Return a row for each variant and round: losses, gradients at the encoder, the filter."""
    lines = [["variant", "round", "test MSE", *COURSE_FIGURES.values()]]
    for name, group in groups.items():
        rounds = {line["round"]: line for line in read_rounds(group.runs[0].folder)}
        for line in (rounds[shown] for shown in ROUNDS if shown in rounds):
            figures = [_digits(line["loss"].get(figure)) for figure in COURSE_FIGURES]
            lines.append([TITLES[name], str(line["round"]), error_text(line["test_mse"]), *figures])
    return lines


def _digits(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3g}"


def _validation(group: Group) -> str:
    """Format the mean validation error of the kept models."""
    errors = [error for run in group.runs for error in run.clients["validation_mse"].tolist()]
    return error_text(fmean(errors))


def _better_off(alone: Group | None, group: Group) -> str:
    """Format the share of clients whose kept model beats Solo's of the same seed."""
    if alone is None or alone is group:
        return UNKNOWN
    solo = {run.summary["seed"]: _test_errors(run) for run in alone.runs}
    better = [
        error < solo[run.summary["seed"]][client]
        for run in group.runs
        if run.summary["seed"] in solo
        for client, error in _test_errors(run).items()
    ]
    return f"{percent_text(fmean(better))}%" if better else UNKNOWN


def _test_errors(run: Run) -> dict[str, float]:
    return run.clients.by_client("mse")


def _kept_pairs(group: Group) -> str:
    """Format the share of W's entries that are positive after the last round."""
    shares = [read_rounds(run.folder)[-1]["loss"].get("filter-kept") for run in group.runs]
    reported = [share for share in shares if share is not None]
    return f"{percent_text(fmean(reported))}%" if reported else UNKNOWN


_ERRORS: dict[str, Cell] = {
    "test MSE": partial(spread_text, figure="mse", text=error_text),
    "last model's MSE": partial(spread_text, figure="last_mse", text=error_text),
    "validation MSE": _validation,
}
SYMBOLS = {
    "beta": "β, percentile",
    "tau": "τ",
    "rho": "ρ",
    "width": "d_r",
    "alpha": "α",
    "noise": "noise",
}
COURSE_FIGURES = {
    "prediction": "L_pred",
    "inter": "L_inter",
    "gradient-prediction": "‖∇L_pred‖",
    "gradient-inter": "‖∇L_inter‖",
    "filter-kept": "W above 0, share",
}

PAGE = Page("fuels.md", "benchmarks.fuels_results", "results-fuels", experiments(), QUICK)

if __name__ == "__main__":
    command(PAGE, __doc__)
