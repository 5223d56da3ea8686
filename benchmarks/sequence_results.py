"""The tables of docs/results/sequences.md: Fed-REACT and others on labelled sequences.

    python -m benchmarks.sequence_results                        # all but beta and dtssgd
    python -m benchmarks.sequence_results pendigits-clusters --seeds 0 1 2
    python -m benchmarks.sequence_results ev --only lstm-fedavg,c-9
    python -m benchmarks.sequence_results --page-only            # from existing runs

Each row is a `fedproto run`; finished runs in the output folder are not repeated, so the command
can be interrupted; delete a run's folder to repeat it. A table summarises all finished runs of its
experiment, from any call, and keeps the page's lines whose runs are missing. A run whose settings
differ from its row's present settings is refused. In a table of clusters one run a seed (row
encoder-…) learns the encoder that the others take; it is made first, whatever --only says. Test
sequences are never used to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import stdev

from benchmarks.pages import Lines
from benchmarks.result_page import (
    Changes,
    Experiment,
    Page,
    Table,
    command,
    number,
    percent,
    spread_text,
)
from benchmarks.sequence_rows import (
    BETA_ROWS,
    EV_CLUSTERS,
    LABELS_BETAS,
    LSTM,
    TITLES,
    WINDOWS,
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
from fedproto_app.core.methods import METHODS
from fedproto_app.report.runs import Group, Run
from fedproto_app.tasks.metrics import UNKNOWN, percent_text

AIRWRITING, PENDIGITS = "airwriting_leap_1183_10subjects.npz", "pendigits.npz"
VOWELS = "JapaneseVowels"  # a folder
SEEDS = (0, 1, 2)
# The tables by β and labels have a column for each of these methods, and two Rand indices.
_OF_CLUSTERS = ("sc", "analytic-clustered")
_OF_LABELS = (
    *("sc", "a1", "one-head", "own-heads"),
    *("analytic-alone", "analytic-all", "analytic", "analytic-clustered"),
)
Cell = Callable[[Group], str]
Text = Callable[[float | None], str]

# The paper's figures by row: accuracies, and RMSE for the vehicles.
_TABLE_2 = ("sc", "ec", "a1", "a2", "a3", "ifca", "flsc")
PAPER: dict[str, dict[str, float]] = {
    "encoder": {  # table 1, 10 clients
        **dict(zip(LSTM, (0.732, 0.804, 0.863, 0.828), strict=True)),
        "encoder-svm": 0.992,
    },
    "clusters": dict(zip(_TABLE_2, (0.763, 0.859, 0.909, 0.928, 0.943, 0.774, 0.83), strict=True)),
    "encoder50": {  # table 1, 50 clients
        **dict(zip(LSTM, (0.945, 0.896, 0.859, 0.946), strict=True)),
        "encoder-svm": 0.948,
    },
    "scale100": dict(zip(_TABLE_2, (0.716, 0.737, 0.75, 0.751, 0.739, 0.74, 0.729), strict=True)),
    "beta": {  # table 3
        f"{beta}-{name}": figure
        for beta, figures in {
            0.1: (0.887, 0.887, 0.888, 0.900, 0.889, 0.693),
            0.25: (0.868, 0.868, 0.872, 0.871, 0.872, 0.761),
            0.5: (0.809, 0.809, 0.816, 0.815, 0.711, 0.735),
            2.0: (0.712, 0.721, 0.742, 0.738, 0.730, 0.721),
        }.items()
        for name, figure in zip(BETA_ROWS, figures, strict=True)
    },
    "ev": {  # table 4
        **dict(zip(LSTM, (43.2, 42.3, 42.0, 42.7), strict=True)),
        **{
            f"c-{c}": rmse
            for c, rmse in zip(EV_CLUSTERS, (24.4, 23.7, 13, 8.8, 5.8, 1.3), strict=True)
        },
    },
    "dtssgd": {  # table 5
        "w1": 0.988,
        **{
            f"w{window}-{factor}": figure
            for factor, figures in {
                0.7: (0.984, 0.988, 0.986),
                0.8: (0.990, 0.982, 0.985),
                0.9: (0.980, 0.990, 0.990),
            }.items()
            for window, figure in zip(WINDOWS, figures, strict=True)
        },
    },
}

# For --quick: small enough to see that everything works, too small for any figure to count.
QUICK: Changes = {
    "rounds": 2,
    "local-epochs": 1,
    "encoder.rounds": 1,
    "encoder.steps": 1,
    "data.clusters.samples": 40,
    "data.sequences.window": 20,
}


def experiments() -> dict[str, Experiment]:
    """Return all tables by their name on the command line and in the page's markers."""
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
            SEEDS, closed_rows("airwriting-closed"), of_columns(CLOSED), about
        ),
        "pendigits-closed": pendigits(
            SEEDS, closed_rows("pendigits-closed"), of_columns(CLOSED), about
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
        "unlabelled": pendigits(SEEDS, unlabelled_rows("unlabelled"), of_columns(CLOSED), about),
        "vowels": Experiment(
            "fed-react-vowels.toml",
            VOWELS,
            SEEDS,
            vowel_rows("vowels"),
            of_columns(ROUNDS),
            about,
        ),
        "airwriting-subjects": airwriting(
            SEEDS, subject_rows("airwriting-subjects"), of_columns(ROUNDS), about
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
    """Describe the clients and the training for the note below a table."""
    settings, summary = runs[0].settings, runs[0].summary
    clients = f"{summary['clients']} clients"
    if settings["data.clusters.scheme"] == "dirichlet":
        betas = sorted({float(run.settings["data.clusters.beta"]) for run in runs})
        count = settings["data.clusters.clusters"]
        clients += f" in {count} clusters, β = {', '.join(f'{beta:g}' for beta in betas)}"
    parts, methods = [clients], [METHODS[run.settings["method"]] for run in runs]
    if any(method.pretraining for method in methods):
        rounds, steps = settings["encoder.rounds"], settings["encoder.steps"]
        parts.append(f"encoder: {rounds} rounds of {steps} steps")
    if any(not method.pretraining and method.rounds is None for method in methods):
        parts.append(f"supervised: {settings['local-epochs']} local epochs")
    return "; ".join(parts)


def of_columns(
    columns: Mapping[str, Cell], paper: Mapping[str, float] | None = None, text: Text = percent_text
) -> Table:
    """Return a table with a row for each method; the paper's figures follow the first column."""

    def table(groups: Mapping[str, Group]) -> Lines:
        lines = []
        for name, group in groups.items():
            cells = {title: cell(group) for title, cell in columns.items()}
            if paper is not None:
                first = next(iter(columns))
                cells = {first: cells[first], "the paper's": text(paper.get(name)), **cells}
            cells["seeds"] = str(len(group.runs))
            lines.append({"method": TITLES[name], **cells})
        return [list(lines[0]), *(list(line.values()) for line in lines)]

    return table


def about_labels(runs: Sequence[Run]) -> str:
    """Describe the clients for the note below a table by β and labels."""
    settings = runs[0].settings
    return f"{runs[0].summary['clients']} clients in {settings['data.clusters.clusters']} clusters"


def by_beta_and_labels(groups: Mapping[str, Group]) -> Lines:
    """Return a row for each β and number of labels, a column for each method: mean of rounds."""
    pairs = dict.fromkeys(tuple(name.split("/")[:2]) for name in groups)
    head = [*("β", "labels", *map(TITLES.__getitem__, _OF_LABELS), "standard error")]
    head += [f"Rand index, {TITLES[name]}" for name in _OF_CLUSTERS]
    lines = [[*head, "seeds"]]
    for beta, labels in pairs:
        by_method = {name: groups.get(f"{beta}/{labels}/{name}") for name in _OF_LABELS}
        present = [group for group in by_method.values() if group]
        accuracies = [
            percent(group, "accuracy_rounds") if group else UNKNOWN for group in by_method.values()
        ]
        error = max((standard_error(group, "accuracy") for group in present), default=0.0)
        rand = _digits("rand_index_rounds")
        indices = [rand(group) if (group := by_method[name]) else UNKNOWN for name in _OF_CLUSTERS]
        seeds = str(max((len(group.runs) for group in present), default=0))
        lines.append([beta, labels, *accuracies, percent_text(error), *indices, seeds])
    return lines


def standard_error(group: Group, figure: str) -> float:
    """Return the standard error of a figure's mean over the clients of all runs.

    figure: a column of ``clients.csv``. 0 for a single client.
    """
    values = [value for run in group.runs for value in run.clients.known(figure)]
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _error(figure: str, text: Text) -> Cell:
    return lambda group: text(standard_error(group, figure))


def _two_digits(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}"


def _percent(figure: str) -> Cell:
    return partial(percent, figure=figure)


def _digits(figure: str) -> Cell:
    return partial(spread_text, figure=figure, text=_two_digits)


Columns = Mapping[str, Cell]
_LAST: Columns = {
    "last": _percent("accuracy"),
    "standard error": _error("accuracy", percent_text),
}
CLOSED: Columns = {
    **_LAST,
    "values sent": partial(number, figure="parameters_up_per_client_round"),
}
ENCODER: Columns = {"kept": _percent("accuracy_kept"), **CLOSED}
ROUNDS: Columns = {"mean of rounds": _percent("accuracy_rounds"), **CLOSED}
CLUSTERS: Columns = {
    "mean of rounds": _percent("accuracy_rounds"),
    "standard error": _LAST["standard error"],
    "Rand index": _digits("rand_index_rounds"),
}
EV: Columns = {
    "last": _digits("rmse"),
    "standard error": _error("rmse", _two_digits),
    "kept": _digits("rmse_kept"),
    "Rand index": _digits("rand_index_rounds"),
}

PAGE = Page(
    "sequences.md", "benchmarks.sequence_results", "results-sequences", experiments(), QUICK
)

if __name__ == "__main__":
    command(PAGE, __doc__)
