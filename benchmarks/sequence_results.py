"""The tables of docs/results/sequences.md: Fed-REACT and others on labelled sequences.

    python -m benchmarks.sequence_results                        # all but beta and dtssgd
    python -m benchmarks.sequence_results pendigits-clusters --seeds 0 1 2
    python -m benchmarks.sequence_results ev --only lstm-fedavg,c-9
    python -m benchmarks.sequence_results --page-only            # from the runs that there are

Each row is a `fedproto run`; finished runs in the output folder are not repeated, so the command
can be interrupted; delete a run's folder to repeat it. A table tells of all finished runs of its
experiment, whichever call made them, and has the page's lines whose runs are not there. A run there
with other settings than its row now has is refused. In a table of clusters one run a seed (row
encoder-…) learns the encoder that the others take; it is made first, whatever --only says. Test
sequences choose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import stdev

from fedproto_app.core.methods import METHODS

from benchmarks.page_tables import Lines
from benchmarks.result_page import (
    Experiment,
    Page,
    Table,
    command,
    costs,
    percent,
    spread_text,
)
from benchmarks.result_runs import Changes
from benchmarks.sequence_papers import PAPER
from benchmarks.sequence_rows import (
    LABELS_BETAS,
    TITLES,
    beta_rows,
    closed_rows,
    cluster_rows,
    dtssgd_rows,
    encoder_rows,
    encoder_rows_50,
    ev_rows,
    label_rows,
    scale_rows,
    subject_rows,
    unlabelled_rows,
    vowel_rows,
)
from fedproto_app.report.runs import Group, Run, read_clients
from fedproto_app.report.task_report import UNKNOWN, percent_text

AIRWRITING, PENDIGITS = "airwriting_leap_1183_10subjects.npz", "pendigits.npz"
VOWELS = "JapaneseVowels"  # a folder
SEEDS = (0, 1, 2)
Cell = Callable[[Group], str]
Text = Callable[[float | None], str]

# For --quick: small enough to see that everything works, too small for any figure to count.
QUICK: Changes = {
    "rounds": 2,
    "local-epochs": 1,
    "encoder.rounds": 1,
    "encoder.steps": 1,
    "data.clusters.samples": 40,
    "data.synthetic.windows": 40,
    "data.sequences.window": 20,
}


def experiments() -> dict[str, Experiment]:
    """All tables, by the name that the command line and the page's markers call them."""
    airwriting = partial(Experiment, "fed-react-airwriting.toml", AIRWRITING)
    pendigits = partial(Experiment, "fed-react-pendigits.toml", PENDIGITS)
    table_1 = of_columns(ENCODER, PAPER["encoder"])
    table_2 = of_columns(CLUSTERS, PAPER["clusters"])
    table_5 = of_columns(ENCODER, PAPER["dtssgd"])
    return {
        "airwriting-encoder": airwriting(SEEDS, encoder_rows("airwriting-encoder"), table_1, about),
        "pendigits-encoder": pendigits(SEEDS, encoder_rows("pendigits-encoder"), table_1, about),
        "airwriting-clusters": airwriting(
            SEEDS, cluster_rows("airwriting-clusters"), table_2, about
        ),
        "pendigits-clusters": pendigits(SEEDS, cluster_rows("pendigits-clusters"), table_2, about),
        "airwriting-closed": airwriting(
            SEEDS, closed_rows("airwriting-closed"), of_columns(ENCODER), about
        ),
        "pendigits-closed": pendigits(
            SEEDS, closed_rows("pendigits-closed"), of_columns(ENCODER), about
        ),
        "labels": pendigits(
            (0,), label_rows("labels", LABELS_BETAS, {}), by_beta_and_labels, about_labels, keys=2
        ),
        "renamed": pendigits(
            SEEDS,
            label_rows("renamed", LABELS_BETAS[-1:], {"data.clusters.renamed": True}),
            by_beta_and_labels,
            about_labels,
            keys=2,
        ),
        "unlabelled": pendigits(SEEDS, unlabelled_rows("unlabelled"), of_columns(ENCODER), about),
        "vowels": Experiment(
            "fed-react-vowels.toml",
            VOWELS,
            SEEDS,
            vowel_rows("vowels"),
            of_columns(CLUSTERS),
            about,
        ),
        "airwriting-subjects": airwriting(
            SEEDS, subject_rows("airwriting-subjects"), of_columns(SUBJECTS), about
        ),
        "ev": Experiment(
            "fed-react-ev.toml",
            "",
            (0,),
            ev_rows("ev"),
            of_columns(EV, PAPER["ev"], _two_digits),
            about,
        ),
        "encoder50": pendigits(
            (0,), encoder_rows_50("encoder50"), of_columns(ENCODER, PAPER["encoder50"]), about
        ),
        "scale100": pendigits(
            (0,), scale_rows("scale100"), of_columns(CLUSTERS, PAPER["scale100"]), about
        ),
        "beta": pendigits(
            (0,), beta_rows("beta"), of_columns(CLUSTERS, PAPER["beta"]), about, on_request=True
        ),
        "dtssgd": airwriting((0,), dtssgd_rows("dtssgd"), table_5, about, on_request=True),
    }


def about(runs: Sequence[Run]) -> str:
    """What the footnote says of the clients and of training."""
    settings, summary = runs[0].settings, runs[0].summary
    clients = f"{summary['clients']} clients"
    if settings["data.clusters.scheme"] == "dirichlet":
        betas = sorted({float(run.settings["data.clusters.beta"]) for run in runs})
        count = settings["data.clusters.clusters"]
        clients += f" in {count} clusters, β = {', '.join(f'{beta:g}' for beta in betas)}"
    said, methods = [clients], [METHODS[run.settings["method"]] for run in runs]
    if any(method.pretraining for method in methods):
        rounds, steps = settings["encoder.rounds"], settings["encoder.steps"]
        said.append(f"encoder: {rounds} rounds of {steps} steps")
    if any(not method.pretraining and method.rounds is None for method in methods):
        said.append(f"supervised: {settings['local-epochs']} local epochs")
    return "; ".join(said)


def of_columns(
    columns: Mapping[str, Cell], paper: Mapping[str, float] | None = None, text: Text = percent_text
) -> Table:
    """A line a row; the paper's figures, where given, stand beside the first column."""

    def table(groups: Mapping[str, Group]) -> Lines:
        lines = []
        for name, group in groups.items():
            cells = {title: cell(group) for title, cell in columns.items()}
            if paper is not None:
                first = next(iter(columns))
                cells = {first: cells[first], "the paper's": text(paper.get(name)), **cells}
            cells |= {"rounds": _rounds(group), **costs(group)}
            lines.append({"method": TITLES[name], **cells})
        return [list(lines[0]), *(list(line.values()) for line in lines)]

    return table


def about_labels(runs: Sequence[Run]) -> str:
    """The same of the table by β and labels, whose encoder nobody trains."""
    settings = runs[0].settings
    return f"{runs[0].summary['clients']} clients in {settings['data.clusters.clusters']} clusters"


def by_beta_and_labels(groups: Mapping[str, Group]) -> Lines:
    """A line for a β and a number of labels, a column for a method: mean of rounds."""
    parts = [name.split("/") for name in groups]
    there_are = {variant for _, _, variant in parts}
    variants = [name for name in TITLES if name in there_are]
    lines = []
    for beta, labels in dict.fromkeys((beta, labels) for beta, labels, _ in parts):
        there = {name: groups.get(f"{beta}/{labels}/{name}") for name in variants}
        found = [group for group in there.values() if group]
        accuracies = {
            TITLES[name]: percent(group, "accuracy_rounds") if group else UNKNOWN
            for name, group in there.items()
        }
        error = max(standard_error(group, "accuracy") for group in found)
        rands = {
            f"{title}, {TITLES[name]}": cell(group) if group else UNKNOWN
            for name, group in there.items()
            if name in ("sc", "a1", "a1-all-rounds", "analytic-clustered")
            for title, cell in (("Rand", _digits("rand_index_rounds")), ("settled", _settled))
        }
        runs = str(max(len(group.runs) for group in found))
        line = {"β": beta, "labels": labels, **accuracies, "standard error": percent_text(error)}
        lines.append({**line, **rands, "seeds": runs})
    return [list(lines[0]), *(list(line.values()) for line in lines)]


def standard_error(group: Group, figure: str) -> float:
    """Of the mean of a figure over the clients of all runs, by its sample standard deviation.

    figure: a column of ``clients.csv``. 0 for a single client.
    """
    values = [
        float(client[figure])
        for run in group.runs
        for client in read_clients(run.folder)
        if client[figure]
    ]
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _error(figure: str, text: Text) -> Cell:
    return lambda group: text(standard_error(group, figure))


def _settled(group: Group) -> str:
    """The round from which on the clusters are the true ones, seed by seed."""
    if group.spread("rand_index").mean is None:
        return UNKNOWN
    return ", ".join(str(run.summary["rand_index_settled"] or "never") for run in group.runs)


def _rounds(group: Group) -> str:
    """Those of the first phase, if the run has one, and of the second."""
    settings = group.runs[0].settings
    first = METHODS[settings["method"]].pretraining and not settings["encoder.path"]
    return (
        f"{settings['encoder.rounds']} + {settings['rounds']}" if first else str(settings["rounds"])
    )


def _two_digits(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _percent(figure: str) -> Cell:
    return partial(percent, figure=figure)


def _digits(figure: str) -> Cell:
    return partial(spread_text, figure=figure, text=_two_digits)


ENCODER = {
    "kept": _percent("accuracy_kept"),
    "last": _percent("accuracy"),
    "its standard error": _error("accuracy", percent_text),
    "validation error, last": _percent("validation_error"),
}
CLUSTERS = {
    "mean of rounds": _percent("accuracy_rounds"),
    "last": _percent("accuracy"),
    "its standard error": _error("accuracy", percent_text),
    "validation error, mean of rounds": _percent("validation_error_rounds"),
    "Rand, mean of rounds": _digits("rand_index_rounds"),
    "last Rand": _digits("rand_index"),
    "settled": _settled,
    "α": _digits("forgetting_factor_rounds"),
}
SUBJECTS = {
    "mean of rounds": _percent("accuracy_rounds"),
    "last": _percent("accuracy"),
    "its standard error": _error("accuracy", percent_text),
    "kept": _percent("accuracy_kept"),
    "validation error, last": _percent("validation_error"),
    "α": _digits("forgetting_factor_rounds"),
}
EV = {
    "last": _digits("rmse"),
    "its standard error": _error("rmse", _two_digits),
    "mean of rounds": _digits("rmse_rounds"),
    "kept": _digits("rmse_kept"),
    "validation, last": _digits("validation_rmse"),
    "Rand, mean of rounds": _digits("rand_index_rounds"),
    "last Rand": _digits("rand_index"),
}

PAGE = Page(
    "sequences.md", "benchmarks.sequence_results", "results-sequences", experiments(), QUICK
)

if __name__ == "__main__":
    command(PAGE, __doc__)
