"""The tables of docs/results/forecasting.md: what taking part is worth, on real series.

    python -m benchmarks.forecasting_results                        # everything
    python -m benchmarks.forecasting_results milano --seeds 0       # one table, one seed
    python -m benchmarks.forecasting_results milano --only kindred,solo
    python -m benchmarks.forecasting_results milano-day --page-only # from existing runs

Each row is a `fedproto run`; finished runs in the output folder are not repeated, so the command
can be interrupted; delete a run's folder to repeat it. A table summarises all finished runs of its
experiment, from any call, and keeps the page's lines whose runs are missing. The share
of clients that are better off compares with the rows without sharing whose runs are present: make
those too beside a new row. All rows of a table have the same inputs: the papers' windows and the
phase of the day; on electricity, which has dates, also the day of the week. Methods that train stop
when their validation error has not fallen for 20 rounds, at 200 at most. Test errors are never
used to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf

from benchmarks import pooled_trees
from benchmarks.pages import Lines, data_root
from benchmarks.result_page import (
    Changes,
    Experiment,
    Page,
    Row,
    command,
    number,
    spread_text,
)
from fedproto_app.report.comparison import with_better_off
from fedproto_app.report.runs import Group, Run
from fedproto_app.tasks.metrics import BETTER_OFF, UNKNOWN, error_text, percent_text

FILES = {
    "milano": "milano_internet_hourly.csv.gz",
    "electricity": "electricity_2014_hourly.csv.gz",
    "m4": "m4_hourly.csv.gz",
    "metr-la": "metr_la_week_5min.csv.gz",
}
SEEDS = (0, 1, 2)
Cell = Callable[[Group], str]

# For --quick: small enough to see that everything works, too small for any figure to count.
QUICK: Changes = {"rounds": 2, "data.max-clients": 4}

_CONVERGED: Changes = {"rounds": 200, "patience": 20}
CLOSED: dict[str, Changes] = {
    "naive": {"method": "naive"},
    "seasonal-naive": {"method": "seasonal-naive"},
    "analytic-alone": {"method": "analytic", "analytic.sharing": "none"},
    "analytic-federated": {"method": "analytic", "analytic.sharing": "federated"},
    "analytic-shrunk": {"method": "analytic"},
    "kindred-alone": {"method": "kindred", "kindred.sharing": "none"},
    "kindred-common": {"method": "kindred", "kindred.sharing": "common"},
    "kindred-random": {"method": "kindred", "kindred.sharing": "random"},
    "kindred-linear": {"method": "kindred", "kindred.features": 0},
    "kindred": {"method": "kindred"},
    "kindred-200": {"method": "kindred", "kindred.features": 200},
}
_FEDPCL: Changes = {
    "method": "fedpcl",
    "fedpcl.temperature": 0.5,
    "fedpcl.contrast-weight": 0.1,
}
TRAINED: dict[str, Changes] = {
    "solo": {"method": "solo"},
    "fedavg": {"method": "fedavg"},
    "fedavg-tuned": {"method": "fedavg", "fedavg.fine-tune-epochs": 1},  # as fedavg-ft
    "fedprox": {"method": "fedprox"},
    "fedrep": {"method": "fedrep"},
    "apfl": {"method": "apfl"},
    "ditto": {"method": "ditto"},
    # These, FedGRU and FedPCL as `benchmarks.systems_results` chose on milano by validation.
    "per-fedavg": {"method": "per-fedavg", "per-fedavg.step-size": 0.001},
    "pfedme": {"method": "pfedme", "pfedme.proximal-lambda": 1.0, "pfedme.outer-step": 1.0},
    "fedgru": {"method": "fedgru", "fedgru.organisations": 1000},  # each client its own
    "fcgcn": {"method": "fcgcn"},
    "fedala": {"method": "fedala"},
    "knn-per": {"method": "knn-per"},
    "cnfgnn": {"method": "cnfgnn"},
    "cnfgnn-fuels": {"method": "cnfgnn", "cnfgnn.model": "fuels"},
    "fedproto": {"method": "fedproto"},
    "fedpcl": _FEDPCL,
    "fedpcl-multiple": {**_FEDPCL, "fedpcl.prototypes": "multiple"},
    "fedpcl-contrast": {"method": "fedpcl", "fedpcl.supervised": False},
    "fedda": {"method": "fedda"},
    "fuels": {"method": "fuels"},
    "fuels-algorithm-1": {
        "method": "fuels",
        "fuels.prediction-weight": 5.0,
        "fuels.inter-weight": 1.0,
    },
}
TITLES = {
    "naive": "last value",
    "seasonal-naive": "last period",
    "analytic-alone": "ridge, alone",
    "analytic-federated": "ridge, one for all",
    "analytic-shrunk": "ridge, pulled to that",
    "kindred-alone": "Kindred, alone",
    "kindred-common": "Kindred, all alike",
    "kindred-random": "Kindred, random kin",
    "kindred-linear": "Kindred, linear",
    "kindred": "**Kindred**",
    "kindred-200": "Kindred, twice as many waves",
    "solo": "Solo",
    "fedavg": "FedAvg",
    "fedavg-tuned": "FedAvg, fine-tuned",
    "fedprox": "FedProx",
    "fedrep": "FedRep",
    "apfl": "APFL",
    "ditto": "Ditto",
    "per-fedavg": "Per-FedAvg",
    "pfedme": "pFedMe",
    "fedgru": "FedGRU",
    "fcgcn": "FCGCN",
    "fedala": "FedALA",
    "knn-per": "kNN-Per",
    "cnfgnn": "CNFGNN",
    "cnfgnn-fuels": "CNFGNN, FUELS's encoder",
    "fedproto": "FedProto",
    "fedpcl": "FedPCL",
    "fedpcl-multiple": "FedPCL, all prototypes",
    "fedpcl-contrast": "FedPCL, by contrast alone",
    "fedda": "FedDA",
    "fuels": "FUELS",
    "fuels-algorithm-1": "FUELS, weights of A, Algorithm 1",
}
_POOLED = "LightGBM on pooled data"
# These join clients by a graph, and METR-LA has one of its own.
OF_GRAPHS = ("fcgcn", "cnfgnn", "cnfgnn-fuels")
# The newest part of each client's train samples, in periods: about a quarter.
QUARTERS = {"milano": 5, "electricity": 15, "m4": 5}
# By validation (docs/results/systems.md); electricity and M4 have no positions.
_POSITIONS: Changes = {"graph.source": "positions"}
# FedDA's statistics need four weeks a window, which these lack: means of four days instead.
FEW_WEEKS = ("milano", "m4")
# M4's clients are not measured at the same times, and all prototypes to all of 414 take long; a
# week of METR-LA has no window of statistics.
LEFT_OUT = {
    "m4": ("fcgcn", "cnfgnn", "cnfgnn-fuels", "fedpcl-multiple"),
    "metr-la": ("fedda",),
}


def experiments() -> dict[str, Experiment]:
    """Return all tables by their name on the command line and in the page's markers."""
    tables = {}
    whole_history: dict[str, Changes] = {
        "milano": {},
        "electricity": {},
        "m4": {"data.max-clients": 0},
        "m4-100": {},
        "metr-la": {"data.source": "wide-csv"},
    }
    for name, common in whole_history.items():
        tables[name] = _experiment(name, common, {**CLOSED, **TRAINED})
    for name, periods in QUARTERS.items():
        common = {"data.history": periods, **({"data.max-clients": 0} if name == "m4" else {})}
        rows = {**CLOSED, "solo": TRAINED["solo"], "fedavg": TRAINED["fedavg"]}
        tables[f"{name}-quarter"] = _experiment(f"{name}-quarter", common, rows)
    for name in ("milano", "electricity"):
        tables[f"{name}-day"] = _experiment(
            f"{name}-day", {"data.horizon": 24}, {**CLOSED, **TRAINED}
        )
    return tables


def _experiment(name: str, common: Changes, rows: Mapping[str, Changes]) -> Experiment:
    dataset = next(key for key in FILES if name.startswith(key))
    calendar = "week" if dataset == "electricity" else "phase"
    experiment_rows = {
        row: Row(
            f"{name}-{row}",
            {
                "data.calendar": calendar,
                **common,
                **(_CONVERGED if row in TRAINED else {}),
                **(_roads() if row in OF_GRAPHS and dataset == "metr-la" else {}),
                **({"rounds": 40} if (row, dataset) == ("cnfgnn", "metr-la") else {}),  # 2 hours
                **(_POSITIONS if (row, dataset) == ("fcgcn", "milano") else {}),
                **({"fedda.week": 4} if row == "fedda" and dataset in FEW_WEEKS else {}),
                **changes,
            },
        )
        for row, changes in rows.items()
        if row not in LEFT_OUT.get(dataset, ())
    }
    config = f"fuels-{dataset}.toml"
    return Experiment(
        config, FILES[dataset], SEEDS, experiment_rows, _table, _about, arrange=_lowest_median_first
    )


def _roads() -> Changes:
    """Return settings of METR-LA's road graph."""
    names = data_root() / FILES["metr-la"]
    edges = data_root() / "metr_la_adjacency.csv.gz"
    return {"graph.source": "file", "graph.path": str(edges), "graph.names": str(names)}


def _about(runs: Sequence[Run]) -> str:
    return f"{runs[0].summary['clients']} clients"


def _table(groups: Mapping[str, Group]) -> Lines:
    """Return a row for each method."""
    completed = with_better_off(list(groups.values()))
    rows = zip(groups, completed, strict=True)
    lines = [[TITLES[name], *_cells(group)] for name, group in rows]
    return [["method", *_COLUMNS], *lines, *_pooled_trees(groups)]


def _lowest_median_first(lines: Lines) -> Lines:
    """Sort by the median; rows without a median follow, pooled data is last."""
    head, *rows = lines
    median = head.index("median MSE")

    def place(row: Sequence[str]) -> tuple[bool, float]:
        mean = row[median].partition(" ± ")[0]
        return row[0] == _POOLED, inf if mean == UNKNOWN else float(mean)

    return [head, *sorted(rows, key=place)]


def _pooled_trees(groups: Mapping[str, Group]) -> list[list[str]]:
    """Return the row of LightGBM if it is installed; one step ahead only."""
    [run, *_] = next(iter(groups.values())).runs
    if not pooled_trees.is_there() or run.settings.get("data.horizon", 1) != 1:
        return []
    name = run.folder.name.removesuffix(f"-{run.settings['method']}-s{run.summary['seed']}")
    cache = run.folder.parent / f"{name}-lightgbm.json"
    figures = pooled_trees.errors(run.settings, cache)
    cells = dict.fromkeys(_COLUMNS, UNKNOWN)
    for column, figure in (
        ("MSE", "mse"),
        ("median MSE", "mse_median"),
    ):
        cells[column] = error_text(figures[figure])
    return [[_POOLED, *cells.values()]]


def _cells(group: Group) -> list[str]:
    return [cell(group) for cell in _COLUMNS.values()]


def _percent(group: Group, figure: str) -> str:
    share = group.spread(figure).mean
    return UNKNOWN if share is None else f"{percent_text(share)}%"


_COLUMNS: dict[str, Cell] = {
    "MSE": partial(spread_text, figure="mse", text=error_text),
    "median MSE": partial(spread_text, figure="mse_median", text=error_text),
    "better off": partial(_percent, figure=BETTER_OFF),
    "values sent": partial(number, figure="parameters_up_per_client"),
    "seeds": lambda group: str(len(group.runs)),
}

PAGE = Page(
    file="forecasting.md",
    maker="benchmarks.forecasting_results",
    folder="results/forecasting",
    experiments=experiments(),
    quick=QUICK,
)

if __name__ == "__main__":
    command(PAGE, __doc__)
