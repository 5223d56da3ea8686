"""The tables of docs/results/classification.md: methods on images in stages, with a long tail.

    python -m benchmarks.classification_results                      # all of it
    python -m benchmarks.classification_results digits --seeds 0 1 2
    python -m benchmarks.classification_results cifar10-if50 --only gldp,fedavg
    python -m benchmarks.classification_results --page-only          # from the runs that there are

Each row is a `fedproto run`; finished runs in the output folder are not repeated, so the command
can be interrupted; delete a run's folder to repeat it. A table tells of all finished runs of its
experiment, whichever call made them. A run there with other settings than its row now has is
refused. Test images choose nothing: between variants the errors on validation images choose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.result_page import (
    Experiment,
    Lines,
    Page,
    Row,
    Table,
    command,
    costs,
    percent,
)
from benchmarks.result_runs import Changes
from fedproto_app.report.runs import Group, Run
from fedproto_app.report.task_report import UNKNOWN, percent_text

CIFAR10 = "cifar10_jpeg.zip"
# The rows of a table of methods; the second is what validation chose over the first.
METHODS: dict[str, Changes] = {
    "gldp": {"method": "gldp"},
    "gldp-shared": {"method": "gldp", "gldp.prototype-encoder": "shared"},
    **{name: {"method": name} for name in ("fedavg", "fedprox", "fedrep", "apfl", "solo")},
    **{name: {"method": name} for name in ("creff", "fedic")},
}
RESERVED = "data.partition.reserve-per-class"  # images that no client gets: fedic's server has them

# What gldp is compared with in the ablation; the full method's row is that of cifar10-if50.
ABLATION: dict[str, Changes] = {
    "lambda-0": {"gldp.balance": 0.0},
    "lambda-1": {"gldp.balance": 1.0},
    "neither-loss": {"gldp.relations": False},
    "predictions": {"gldp.balance": 1.0, "gldp.local-relation": "prediction"},
}
# For --quick: small enough to see that everything works, too small for any figure to count.
QUICK: Changes = {
    "rounds": 2,
    "evaluate-every": 1,
    "local-epochs": 1,
    "gldp.encoder-epochs": 1,
    "gldp.head-epochs": 1,
    "fedrep.encoder-epochs": 1,
    "fedrep.head-epochs": 1,
    "data.partition.clients": 4,
    "data.partition.stages": 2,
}

# The paper's figures in percent. A_glo and A_loc: tables 2 and 3, CIFAR-10 [20, 4, 5].
INFERENCES = {
    "local-prototypes": "local prototypes",
    "global-prototypes": "global prototypes",
    "head": "head",
}
PAPER: dict[str, dict[str, tuple[float, float]]] = {
    "cifar10-if50": {
        "local-prototypes": (65.36, 65.36),
        "global-prototypes": (65.22, 65.22),
        "fedavg": (59.94, 38.77),
        "fedprox": (59.23, 38.80),
        "fedrep": (62.68, 60.97),
        "apfl": (60.32, 36.02),
    },
    "cifar10-if100": {
        "local-prototypes": (71.32, 71.32),
        "global-prototypes": (71.19, 71.19),
        "fedavg": (64.33, 39.26),
        "fedprox": (62.60, 40.52),
        "fedrep": (66.91, 65.27),
        "apfl": (65.11, 37.94),
    },
}
# A_glo and A_sel: table 4, CIFAR-10.
PAPER_ABLATION = {
    "gldp": (65.22, 64.61),
    "lambda-0": (65.09, 63.47),
    "lambda-1": (61.56, 60.52),
    "neither-loss": (62.68, 41.78),
}
ABLATION_TITLES = {
    "gldp": "gldp",
    "lambda-0": "λ = 0: without L_LP",
    "lambda-1": "λ = 1: without L_GP",
    "neither-loss": "neither L_LP nor L_GP",
    "predictions": "λ = 1, L_LP between predictions (GLDP, eq. 8)",
}

_PERCENT_POINT = 0.01


def experiments() -> dict[str, Experiment]:
    """All tables, by the name that the command line and the page's markers call them."""

    def rows(folder: str, variants: Mapping[str, Changes], common: Changes) -> dict[str, Row]:
        return {
            name: Row(f"{folder}/{name}", {**common, **changes})
            for name, changes in variants.items()
        }

    def cifar10(imbalance: float) -> Changes:
        return {"data.partition.imbalance-factor": imbalance, RESERVED: 100}

    if50, if100 = (
        rows(f"cifar10-if{factor}", METHODS, cifar10(float(factor))) for factor in (50, 100)
    )
    uniform = rows(
        "cifar10-if50-uniform",
        METHODS,
        {**cifar10(50.0), "data.partition.class-draw": "uniform"},
    )
    without = {name: {**METHODS["gldp"], **changes} for name, changes in ABLATION.items()}
    ablation = {"gldp": if50["gldp"], **rows("ablation", without, cifar10(50.0))}
    digits = rows("digits", METHODS, {RESERVED: 10})

    def beside(name: str) -> Table:
        return lambda groups: methods_table(groups, PAPER[name])

    def of_cifar10(rows: Mapping[str, Row], table: Table) -> Experiment:
        return Experiment("gldp-cifar10.toml", CIFAR10, (0,), rows, table, about)

    return {
        "digits": Experiment("gldp-digits.toml", "", (0, 1, 2), digits, methods_table, about),
        "cifar10-if50": of_cifar10(if50, beside("cifar10-if50")),
        "cifar10-if100": of_cifar10(if100, beside("cifar10-if100")),
        "cifar10-if50-uniform": of_cifar10(uniform, beside("cifar10-if50")),
        "ablation": of_cifar10(ablation, ablation_table),
    }


def about(runs: Sequence[Run]) -> str:
    """What the footnote says of the data and the rounds."""
    settings, summary = runs[0].settings, runs[0].summary
    classes, stages, imbalance = (
        settings[f"data.partition.{key}"] for key in ("classes", "stages", "imbalance-factor")
    )
    shape = f"[N, S, M] = [{summary['clients']}, {classes}, {stages}]"
    return f"{shape}, IF {imbalance:g}; {summary['rounds']} rounds"


def methods_table(
    groups: Mapping[str, Group], paper: Mapping[str, tuple[float, float]] | None = None
) -> Lines:
    """One row a method, for gldp one an inference; beside the paper's figures where given."""
    beside = ["paper's A_glo", "paper's A_loc"] if paper else []
    lines = [
        [
            *("method", "A_glo", "A_loc", *beside, "A_sel", "forgetting, own", "averaged"),
            *("many", "medium", "few", "validation error, own", "averaged"),
            *("values up", "MB up", "seconds", "seeds"),
        ]
    ]
    for name, group in groups.items():
        rest = [
            percent(group, figure)
            for figure in (
                *("accuracy_selected", "forgetting_local", "forgetting_global"),
                *("many_local", "medium_local", "few_local"),
            )
        ]
        rest += _validation_errors(group)
        paid = costs(group).values()

        if not name.startswith("gldp"):
            scores = [percent(group, f"accuracy_{model}") for model in ("global", "local")]
            lines.append([name, *scores, *_papers(paper, name), *rest, *paid])
            continue
        chosen = str(group.runs[0].settings["gldp.inference"])
        for inference, title in INFERENCES.items():
            scores = [
                percent(group, f"by_inference.{inference}.{model}") for model in ("global", "local")
            ]
            # Only of the chosen inference are there more figures than these.
            more = rest if inference == chosen else [UNKNOWN] * len(rest)
            lines.append([f"{name}, {title}", *scores, *_papers(paper, inference), *more, *paid])
    return lines


def _validation_errors(group: Group) -> list[str]:
    """Of own and of averaged models; a method that averages nothing has own models alone."""
    own, averaged = "validation_error_local", "validation_error"
    if group.spread(own).mean is None:
        own, averaged = averaged, own
    return [percent(group, own), percent(group, averaged)]


def ablation_table(groups: Mapping[str, Group]) -> Lines:
    """One row a variant of gldp, beside the paper's.

    A_glo stands there by global prototypes as well: by its table 2 that is what table 4 tells.
    """
    head = ["variant", "A_glo", "A_glo, global prototypes", "A_sel", "paper's A_glo"]
    more = ["forgetting, own", "averaged", "validation error, own", "averaged", "seeds"]
    lines = [[*head, "paper's A_sel", *more]]
    for name, group in groups.items():
        by_global = "by_inference.global-prototypes.global"
        figures = ("accuracy_global", by_global, "accuracy_selected")
        scores = [percent(group, figure) for figure in figures]
        lost = [percent(group, f"forgetting_{model}") for model in ("local", "global")]
        papers = _papers(PAPER_ABLATION, name)
        rest = [*lost, *_validation_errors(group), str(len(group.runs))]
        lines.append([ABLATION_TITLES[name], *scores, *papers, *rest])
    return lines


def _papers(paper: Mapping[str, tuple[float, float]] | None, name: str) -> list[str]:
    if paper is None:
        return []
    known = paper.get(name)
    return [UNKNOWN] * 2 if known is None else [percent_text(f * _PERCENT_POINT) for f in known]


PAGE = Page(
    "classification.md",
    "benchmarks.classification_results",
    "results-classification",
    experiments(),
    QUICK,
)

if __name__ == "__main__":
    command(PAGE, __doc__)
