"""The tables of docs/results/classification.md: methods on images in stages, with a long tail.

    python -m benchmarks.classification_results                      # all of it
    python -m benchmarks.classification_results digits --seeds 0 1 2
    python -m benchmarks.classification_results cifar10-if50 --only gldp,fedavg
    python -m benchmarks.classification_results --page-only          # from existing runs

Each row is a `fedproto run`; finished runs in the output folder are not repeated, so the command
can be interrupted; delete a run's folder to repeat it. A table summarises all finished runs of its
experiment, from any call, and keeps the page's lines whose runs are missing. A run whose settings
differ from its row's present settings is refused. Test images are never used to choose:
validation errors choose between variants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.pages import Lines
from benchmarks.result_page import (
    Changes,
    Experiment,
    Page,
    Row,
    Table,
    command,
    number,
    percent,
)
from fedproto_app.report.runs import Group, Run
from fedproto_app.tasks.metrics import UNKNOWN, percent_text

CIFAR10 = "cifar10_jpeg.zip"
Variants = Mapping[str, Changes]
# The paper's A_glo and A_loc (in the ablation A_sel) in percent, by method, GLDP's by inference.
Papers = Mapping[str, tuple[float | None, float | None]]
# The rows of a table of methods; the second is what validation chose over the first.
METHODS: dict[str, Changes] = {
    "gldp": {"method": "gldp"},
    "gldp-shared": {"method": "gldp", "gldp.prototype-encoder": "shared"},
    **{name: {"method": name} for name in ("fedavg", "fedprox", "fedrep", "apfl", "solo")},
}
# Closed forms: one message a stage, nothing trained.
CLOSED: dict[str, Changes] = {
    "naive": {"method": "naive"},
    "analytic": {"method": "analytic"},
    "analytic-even": {"method": "analytic", "analytic.prior": "even"},
    "analytic-few": {"method": "analytic", "analytic.features": 25},
    "analytic-many": {"method": "analytic", "analytic.features": 200},
    "analytic-alone": {"method": "analytic", "analytic.sharing": "none"},
}
SIMPLEST: dict[str, Changes] = {name: CLOSED[name] for name in ("naive", "analytic")}
# Each step from FedAvg to Census. The same runs have the accuracy of the averaged
# head with a client's class frequencies.
CENSUS: dict[str, Changes] = {
    "census": {"method": "census"},
    "census-learned": {"method": "census", "census.features": 0},
    "census-plain": {
        "method": "census",
        "census.features": 0,
        "census.logit-adjustment": 0.0,
    },
}
# Personalised methods of other libraries (docs/compared.md).
PERSONALISED: dict[str, Changes] = {
    name: {"method": name}
    for name in ("fedavg-ft", "fedala", "knn-per", "fedtgp", "per-fedavg", "pfedme")
}
# Where the server has images of its own, which no client of any method gets.
RESERVED: Changes = {"data.partition.reserve-per-class": 10}
SERVER_METHODS: dict[str, Changes] = {
    **{name: {"method": name} for name in ("fedavg", "creff", "fedic")},
    "analytic": CLOSED["analytic"],
}

# Where the paper's protocol is followed, rows that tell of gldp's other inferences in full. They
# train what gldp trains.
PAPER_METHODS: dict[str, Changes] = {
    **METHODS,
    **{
        f"gldp-{inference}": {**METHODS["gldp"], "gldp.inference": inference}
        for inference in ("global-prototypes", "head")
    },
    **SIMPLEST,
}
# M = 1: a hundred clients, ten a round and the paper's 50 rounds; as many test images as train
# images, so that rare classes are among them in proportion.
ONE_STAGE: Changes = {
    "rounds": 50,
    "participation": 0.1,
    "data.partition.clients": 100,
    "data.partition.stages": 1,
    "data.partition.test-ratio": 1.0,
}

# The variants of an ablation; the full method's row comes from the table of methods.
ABLATION: dict[str, Changes] = {
    "lambda-0": {"gldp.balance": 0.0},
    "lambda-1": {"gldp.balance": 1.0},
    "neither-loss": {"gldp.relations": False},
    "predictions": {"gldp.local-relation": "prediction"},
    "predictions-lambda-1": {"gldp.balance": 1.0, "gldp.local-relation": "prediction"},
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
PAPER: dict[str, Papers] = {
    "if50": {
        "local-prototypes": (65.36, 65.36),
        "global-prototypes": (65.22, 65.22),
        "fedavg": (59.94, 38.77),
        "fedprox": (59.23, 38.80),
        "fedrep": (62.68, 60.97),
        "apfl": (60.32, 36.02),
    },
    "if100": {
        "local-prototypes": (71.32, 71.32),
        "global-prototypes": (71.19, 71.19),
        "fedavg": (64.33, 39.26),
        "fedprox": (62.60, 40.52),
        "fedrep": (66.91, 65.27),
        "apfl": (65.11, 37.94),
    },
}
# A_loc with one stage: table 1, CIFAR-10, by the number of classes and the imbalance factor.
_TABLE_1 = ("fedavg", "fedrep", "fedprox", "apfl", "global-prototypes", "local-prototypes")
PAPER_ONE_STAGE: dict[tuple[int, int], Papers] = {
    setting: {name: (None, x) for name, x in zip(_TABLE_1, figures, strict=True)}
    for setting, figures in {
        (4, 10): (43.10, 42.25, 44.55, 30.37, 63.39, 60.52),
        (4, 50): (50.53, 49.00, 53.15, 46.73, 75.79, 75.20),
        (4, 100): (55.02, 53.39, 57.17, 49.78, 78.87, 78.09),
        (5, 10): (43.73, 43.48, 44.63, 39.96, 60.61, 56.98),
        (5, 50): (53.80, 53.31, 55.58, 51.23, 74.75, 73.82),
        (5, 100): (59.61, 57.28, 60.40, 54.19, 78.42, 77.25),
    }.items()
}
# A_glo and A_sel: table 4, CIFAR-10.
PAPER_ABLATION: Papers = {
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
    "predictions": "L_LP between predictions (GLDP, eq. 8)",
    "predictions-lambda-1": "λ = 1, L_LP between predictions",
}


INFERENCES = {
    "local-prototypes": "local prototypes",
    "global-prototypes": "global prototypes",
    "head": "head",
}
# Titles of rows that are not named after their method alone.
TITLES = {
    "naive": "most frequent class",
    "census": "**Census**",
    "census-learned": "Census, no fixed features",
    "census-plain": "Census, no fixed features, plain loss",
    "analytic": "closed form",
    "analytic-even": "closed form, even",
    "analytic-few": "closed form, 25 filters",
    "analytic-many": "closed form, 200 filters",
    "analytic-alone": "closed form, alone",
}
# The figures of a table of methods, by their key in a run's summary.
_FIGURES = {
    "balanced_local": "balanced A_loc",
    "balanced_global": "balanced A_glo",
    "few_local": "few-shot A_loc",
}
_CLASSES = ("own classes", "everybody's")
ON_ALL_CLASSES = (
    "-everybody"  # behind a row's name: the same method, tested on all clients' classes
)

_PERCENT_POINT = 0.01


def experiments() -> dict[str, Experiment]:
    """Return all tables by their name on the command line and in the page's markers."""
    digits = _rows("digits", METHODS)
    digits_paper = _rows("digits-paper", PAPER_METHODS)
    if50, if100 = (_rows(f"cifar10-if{f}", METHODS, _tail(f)) for f in (50, 100))
    closed = _rows("digits-closed", CLOSED)
    closed50, closed100 = (_rows(f"cifar10-closed-if{f}", CLOSED, _tail(f)) for f in (50, 100))
    uniform = {**_tail(50), "data.partition.class-draw": "uniform"}
    paper50, paper100 = (_rows(f"cifar10-paper-if{f}", PAPER_METHODS, _tail(f)) for f in (50, 100))

    def on_digits(config: str, rows: Mapping[str, Row], table: Table) -> Experiment:
        return Experiment(config, "", (0, 1, 2), rows, table, about)

    def on_cifar10(config: str, rows: Mapping[str, Row], table: Table) -> Experiment:
        return Experiment(config, CIFAR10, (0,), rows, table, about)

    first, paper = "gldp-cifar10.toml", "gldp-cifar10-paper.toml"
    return {
        "digits": on_digits("gldp-digits.toml", digits, methods_table),
        "digits-closed": on_digits("gldp-digits.toml", closed, _plain_table),
        "digits-census": on_digits(
            "gldp-digits.toml",
            _with_ends("digits-census", digits, closed, {}),
            _plain_table,
        ),
        "digits-personalised": on_digits(
            "gldp-digits.toml",
            {
                **_rows("digits-personalised", PERSONALISED),
                **{name: digits[name] for name in ("fedavg", "solo")},
            },
            _plain_table,
        ),
        "cifar10-census-if50": on_cifar10(
            first,
            _with_ends("cifar10-census-if50", if50, closed50, {**_tail(50), "evaluate-every": 5}),
            _plain_table,
        ),
        "digits-reserved": on_digits(
            "gldp-digits.toml", _rows("digits-reserved", SERVER_METHODS, RESERVED), _plain_table
        ),
        "cifar10-closed-if50": replace(on_cifar10(first, closed50, _plain_table), seeds=(0, 1, 2)),
        "cifar10-closed-if100": replace(
            on_cifar10(first, closed100, _plain_table), seeds=(0, 1, 2)
        ),
        "digits-paper": on_digits("gldp-digits-paper.toml", digits_paper, methods_table),
        "digits-paper-ablation": on_digits(
            "gldp-digits-paper.toml",
            _ablation_of("digits-paper-ablation", digits_paper["gldp"], {}),
            _ablation(None),
        ),
        "digits-one-stage": on_digits(
            "gldp-digits-paper.toml", _one_stage("digits-one-stage", {}), one_stage_table
        ),
        "cifar10-if50": on_cifar10(first, if50, _beside(PAPER["if50"])),
        "cifar10-if100": on_cifar10(first, if100, _beside(PAPER["if100"])),
        "cifar10-if50-uniform": on_cifar10(
            first, _rows("cifar10-if50-uniform", METHODS, uniform), _beside(PAPER["if50"])
        ),
        "ablation": on_cifar10(
            first, _ablation_of("ablation", if50["gldp"], _tail(50)), _ablation(PAPER_ABLATION)
        ),
        "cifar10-paper-if50": on_cifar10(paper, paper50, _beside(PAPER["if50"])),
        "cifar10-paper-if100": on_cifar10(paper, paper100, _beside(PAPER["if100"])),
        "cifar10-paper-ablation": on_cifar10(
            paper,
            _ablation_of("cifar10-paper-ablation", paper50["gldp"], _tail(50)),
            _ablation(PAPER_ABLATION),
        ),
        **{
            f"cifar10-one-stage-{classes}-classes-if{factor}": replace(
                on_cifar10(
                    paper,
                    _one_stage(
                        f"cifar10-one-stage-{classes}-classes-if{factor}",
                        {**_tail(factor), "data.partition.classes": classes},
                    ),
                    _one_stage_beside(figures),
                ),
                on_request=classes == 5,
            )
            for (classes, factor), figures in PAPER_ONE_STAGE.items()
        },
    }


def _rows(folder: str, variants: Variants, common: Changes | None = None) -> dict[str, Row]:
    return {
        name: Row(f"{folder}/{name}", {**(common or {}), **changes})
        for name, changes in variants.items()
    }


def _with_ends(
    folder: str, trained: Mapping[str, Row], closed: Mapping[str, Row], common: Changes
) -> dict[str, Row]:
    """Return the steps from FedAvg to Census, with FedAvg and the closed form."""
    ends = {"fedavg": trained["fedavg"], "analytic": closed["analytic"]}
    return {**_rows(folder, CENSUS, common), **ends}


def _tail(imbalance: int) -> Changes:
    return {"data.partition.imbalance-factor": float(imbalance)}


def _one_stage(folder: str, common: Changes) -> dict[str, Row]:
    """Return each method twice, the second time tested on all clients' classes."""
    tests = {"": {}, ON_ALL_CLASSES: {"data.partition.test-mix": "everybody"}}
    variants = {
        name + suffix: {**ONE_STAGE, **tested, **changes}
        for name, changes in (METHODS | SIMPLEST).items()
        for suffix, tested in tests.items()
    }
    return _rows(folder, variants, common)


def _ablation_of(folder: str, full: Row, common: Changes) -> dict[str, Row]:
    without = {name: {**METHODS["gldp"], **changes} for name, changes in ABLATION.items()}
    return {"gldp": full, **_rows(folder, without, common)}


def _beside(paper: Papers) -> Table:
    return lambda groups: methods_table(groups, paper)


def _one_stage_beside(paper: Papers) -> Table:
    return lambda groups: one_stage_table(groups, paper)


def _ablation(paper: Papers | None) -> Table:
    return lambda groups: ablation_table(groups, ABLATION_TITLES, paper)


def about(runs: Sequence[Run]) -> str:
    """Describe the data and the rounds for the note below a table."""
    settings, summary = runs[0].settings, runs[0].summary
    classes, stages, imbalance = (
        settings[f"data.partition.{key}"] for key in ("classes", "stages", "imbalance-factor")
    )
    shape = f"[N, S, M] = [{summary['clients']}, {classes}, {stages}]"
    return f"{shape}, IF {imbalance:g}; {summary['rounds']} rounds"


# --- the tables ---------------------------------------------------------------------------------


class Scores(NamedTuple):
    """The accuracies of a row: a method, or GLDP with one rule of inference."""

    title: str
    paper_name: str  # the key of the paper's figures
    averaged: str  # A_glo
    personal: str  # A_loc
    papers_personal: str  # A_loc, of the model that the paper counts as a client's own
    complete: bool  # only a run's chosen inference has more figures than the accuracies


def methods_table(
    groups: Mapping[str, Group], paper: Papers | None = None, *, as_paper: bool = True
) -> Lines:
    """A row for each method, for gldp for each inference; beside the paper's figures where given.

    as_paper: with a column for the model that the paper counts as a client's own.
    """
    accuracies = ["A_glo", "A_loc", *(["A_loc, as the paper"] if as_paper else [])]
    accuracies += ["paper's A_glo", "paper's A_loc"] if paper else []
    lines = [["method", *accuracies, *_FIGURES.values(), "values sent", "seeds"]]
    for name, group in groups.items():
        figures = [percent(group, figure) for figure in _FIGURES]
        costs = [number(group, "parameters_up_per_client_round"), str(len(group.runs))]
        for line in _scores(name, group):
            if not line.complete and f"{name}-{line.paper_name}" in groups:
                continue  # another row has all its figures
            scores = [line.averaged, line.personal, *([line.papers_personal] if as_paper else [])]
            more = figures if line.complete else [UNKNOWN] * len(figures)
            lines.append([line.title, *scores, *_papers(paper, line.paper_name), *more, *costs])
    return lines


def _plain_table(groups: Mapping[str, Group]) -> Lines:
    return methods_table(groups, as_paper=False)


def one_stage_table(groups: Mapping[str, Group], paper: Papers | None = None) -> Lines:
    """Return a row for each method and inference with M = 1, tested on own and on all classes.

    groups: a name that ends in `ON_ALL_CLASSES` is the same training.
    """
    tested = [f"{head}, {classes}" for classes in _CLASSES for head in ("A_glo", "A_loc")]
    lines = [["method", *tested, *(["paper's A_loc"] if paper else []), "seeds"]]
    for name, group in groups.items():
        if name.endswith(ON_ALL_CLASSES):
            continue
        all_classes = groups.get(name + ON_ALL_CLASSES)
        all_scores = _scores(name, all_classes) if all_classes else []
        for place, line in enumerate(_scores(name, group)):
            pairs = [(line.averaged, line.personal)]
            pairs.append((UNKNOWN, UNKNOWN))
            if all_classes:
                pairs[1] = (all_scores[place].averaged, all_scores[place].personal)
            papers = _papers(paper, line.paper_name)[1:]
            lines.append([line.title, *pairs[0], *pairs[1], *papers, str(len(group.runs))])
    return lines


def ablation_table(
    groups: Mapping[str, Group], titles: Mapping[str, str], paper: Papers | None = None
) -> Lines:
    """Return a row for each variant of gldp, with every inference.

    The paper's table 4 must have A_glo by global prototypes, as its table 2 shows.
    """
    ways = [f"{m}, {title}" for m in ("A_glo", "A_loc") for title in INFERENCES.values()]
    beside = ["A_sel", "paper's A_glo", "paper's A_sel"] if paper else []
    lines = [["variant", *ways, *beside, "seeds"]]
    for name, group in groups.items():
        scores = [
            percent(group, f"by_inference.{inference}.{model}")
            for model in ("global", "local")
            for inference in INFERENCES
        ]
        if paper:
            scores += [percent(group, "accuracy_selected"), *_papers(paper, name)]
        lines.append([titles[name], *scores, str(len(group.runs))])
    return lines


def _scores(name: str, group: Group) -> list[Scores]:
    """Return the accuracies for each rule of inference, or once for a method without rules.

    The paper counts as a client's own model, for GLDP, the shared encoder with the client's
    additions, since its tables have one figure for both; for other methods the model after local
    training.
    """
    if group.method != "gldp":
        averaged, personal = (percent(group, f"accuracy_{model}") for model in ("global", "local"))
        title = TITLES.get(name, name)
        scores = [Scores(title, name, averaged, personal, personal, complete=True)]
        if group.method == "census":
            personal = percent(group, "by_inference.head.local")
            head = f"{title}, head"
            scores.append(Scores(head, name, UNKNOWN, personal, personal, complete=False))
        return scores
    chosen = str(group.runs[0].settings["gldp.inference"])
    # Another inference trains alike: its row is only shown beside the default's.
    shown = INFERENCES if chosen == "local-prototypes" else [chosen]
    scores = []
    for inference in shown:
        averaged, personal = (
            percent(group, f"by_inference.{inference}.{model}") for model in ("global", "local")
        )
        title = f"{name.removesuffix(f'-{inference}')}, {INFERENCES[inference]}"
        complete = inference == chosen
        scores.append(Scores(title, inference, averaged, personal, averaged, complete))
    return scores


def _papers(paper: Papers | None, name: str) -> list[str]:
    if paper is None:
        return []
    figures = paper.get(name, (None, None))
    return [percent_text(None if x is None else x * _PERCENT_POINT) for x in figures]


PAGE = Page(
    "classification.md",
    "benchmarks.classification_results",
    "results-classification",
    experiments(),
    QUICK,
)

if __name__ == "__main__":
    command(PAGE, __doc__)
