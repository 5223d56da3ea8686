"""The columns of docs/results/classification.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.page_tables import Lines
from benchmarks.result_page import costs, percent
from fedproto_app.report.runs import Group
from fedproto_app.report.task_report import UNKNOWN, percent_text

INFERENCES = {
    "local-prototypes": "local prototypes",
    "global-prototypes": "global prototypes",
    "head": "head",
}
# Of rows that are not called by their method alone.
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
THIRDS = ("many", "medium", "few")
EVERYBODY = "-everybody"  # behind a row's name: the same method, tested on everybody's classes

# The paper's A_glo and A_loc (in the ablation A_sel) in percent, by method, GLDP's by inference.
Papers = Mapping[str, tuple[float | None, float | None]]

_PERCENT_POINT = 0.01


class Scores(NamedTuple):
    """What a line of a table is of: a method, or GLDP with one rule of inference."""

    title: str
    paper_name: str  # the key of the paper's figures
    averaged: str  # A_glo
    own: str  # A_loc
    papers_own: str  # A_loc, of the model that the paper counts as a client's own
    complete: bool  # only of a run's chosen inference is there more than the accuracies


def methods_table(groups: Mapping[str, Group], paper: Papers | None = None) -> Lines:
    """One row a method, for gldp one an inference; beside the paper's figures where given."""
    beside = ["paper's A_glo", "paper's A_loc"] if paper else []
    lines = [
        [
            *("method", "A_glo", "A_loc", "A_loc, as the paper", *beside, "A_sel"),
            *("forgetting, own", "averaged", "balanced, own", "averaged"),
            *(*THIRDS, *(f"{third}, averaged" for third in THIRDS)),
            *("validation error, own", "averaged", "values up", "MB up", "seconds", "seeds"),
        ]
    ]
    figures = [
        *("accuracy_selected", "forgetting_local", "forgetting_global"),
        *("balanced_local", "balanced_global"),
        *(f"{third}_{model}" for model in ("local", "global") for third in THIRDS),
    ]
    for name, group in groups.items():
        rest = [*(percent(group, figure) for figure in figures), *_validation_errors(group)]
        for line in _scores(name, group):
            if not line.complete and f"{name}-{line.paper_name}" in groups:
                continue  # told in full by a row of its own
            accuracies = [line.averaged, line.own, line.papers_own]
            more = rest if line.complete else [UNKNOWN] * len(rest)
            papers = _papers(paper, line.paper_name)
            lines.append([line.title, *accuracies, *papers, *more, *costs(group).values()])
    return lines


def one_stage_table(groups: Mapping[str, Group], paper: Papers | None = None) -> Lines:
    """One row a method and inference, with M = 1: tested on own classes and on everybody's.

    groups: those with `EVERYBODY` behind a method's name are of the same training.
    """
    tested = ("A_glo", "A_loc", "A_loc, as the paper", "balanced A_loc", "balanced A_glo")
    lines = [
        [
            "method",
            *(f"{head}, own classes" for head in tested),
            *(f"{head}, everybody's" for head in tested),
            *(["paper's A_loc"] if paper else []),
            *("validation error, own", "averaged", "seconds", "seeds"),
        ]
    ]
    for name, group in groups.items():
        if name.endswith(EVERYBODY):
            continue
        other = groups.get(name + EVERYBODY)
        theirs = _scores(name, other) if other else []
        for place, line in enumerate(_scores(name, group)):
            parts = [_tested(group, line)]
            parts.append(_tested(other, theirs[place]) if other else [UNKNOWN] * len(tested))
            papers = _papers(paper, line.paper_name)[1:]
            errors = _validation_errors(group) if line.complete else [UNKNOWN] * 2
            cost = [costs(group)[column] for column in ("seconds", "seeds")]
            lines.append([line.title, *parts[0], *parts[1], *papers, *errors, *cost])
    return lines


def ablation_table(
    groups: Mapping[str, Group], titles: Mapping[str, str], paper: Papers | None = None
) -> Lines:
    """One row a variant of gldp, by every inference.

    By the paper's table 2 its table 4 tells A_glo by global prototypes.
    """
    ways = [f"{m}, {title}" for m in ("A_glo", "A_loc") for title in INFERENCES.values()]
    beside = ["paper's A_glo", "paper's A_sel"] if paper else []
    more = ["forgetting, own", "averaged", "validation error, own", "averaged", "seeds"]
    lines = [["variant", *ways, "A_sel", *beside, *more]]
    for name, group in groups.items():
        scores = [
            percent(group, f"by_inference.{inference}.{model}")
            for model in ("global", "local")
            for inference in INFERENCES
        ]
        selected = percent(group, "accuracy_selected")
        lost = [percent(group, f"forgetting_{model}") for model in ("local", "global")]
        rest = [*lost, *_validation_errors(group), str(len(group.runs))]
        lines.append([titles[name], *scores, selected, *_papers(paper, name), *rest])
    return lines


def _scores(name: str, group: Group) -> list[Scores]:
    """A line for each rule of inference; for a method without such rules one.

    What the paper counts as a client's own model: GLDP's is the shared encoder with what the client
    adds to it, since its tables have one figure for both. Of the others it is the model as local
    training left it.
    """
    if group.method != "gldp":
        averaged, own = (percent(group, f"accuracy_{model}") for model in ("global", "local"))
        title = TITLES.get(name, name)
        found = [Scores(title, name, averaged, own, own, complete=True)]
        if group.method == "census":
            own = percent(group, "by_inference.head.local")
            found.append(Scores(f"{title}, head", name, UNKNOWN, own, own, complete=False))
        return found
    chosen = str(group.runs[0].settings["gldp.inference"])
    # What is inferred otherwise than by default trains alike: its row is there to complete one.
    shown = INFERENCES if chosen == "local-prototypes" else [chosen]
    found = []
    for inference in shown:
        averaged, own = (
            percent(group, f"by_inference.{inference}.{model}") for model in ("global", "local")
        )
        title = f"{name.removesuffix(f'-{inference}')}, {INFERENCES[inference]}"
        complete = inference == chosen
        found.append(Scores(title, inference, averaged, own, averaged, complete))
    return found


def _tested(group: Group, line: Scores) -> list[str]:
    balanced = [percent(group, f"balanced_{model}") for model in ("local", "global")]
    shown = balanced if line.complete else [UNKNOWN] * 2
    return [line.averaged, line.own, line.papers_own, *shown]


def _validation_errors(group: Group) -> list[str]:
    """Of own and of averaged models; a method that averages nothing has own models alone."""
    own, averaged = "validation_error_local", "validation_error"
    if group.spread(own).mean is None:
        own, averaged = averaged, own
    return [percent(group, own), percent(group, averaged)]


def _papers(paper: Papers | None, name: str) -> list[str]:
    if paper is None:
        return []
    figures = paper.get(name, (None, None))
    return [percent_text(None if one is None else one * _PERCENT_POINT) for one in figures]
