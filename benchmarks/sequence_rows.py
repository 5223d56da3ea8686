"""The rows of docs/results/sequences.md: their settings and names."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.result_page import Changes, Row

Variants = dict[str, Changes]

_SUPERVISED_ROUNDS = 10
LSTM: Variants = {
    f"lstm-{method}": {"method": method, "rounds": _SUPERVISED_ROUNDS}
    for method in ("fedavg", "fedprox", "ditto", "apfl")
}
SUPERVISED: Variants = {
    **LSTM,
    "cnn-fedavg": {**LSTM["lstm-fedavg"], "model.sequence-encoder": "causal-cnn"},
    # As long between two rounds as in the paper.
    "lstm-fedavg-100": {**LSTM["lstm-fedavg"], "local-epochs": 100},
}
_APPROACHES: Variants = {
    "sc": {"fed-react.clustering": "snapshot", "fed-react.smoothing": "none"},
    "ec": {"fed-react.smoothing": "none"},
    "a1": {"fed-react.smoothing": "mean"},
    "a2": {"fed-react.smoothing": "forgetting"},
    "a3": {"fed-react.smoothing": "kalman"},
}
PLAIN: Variants = {
    name: {**changes, "fed-react.similarity": "cosine"} for name, changes in _APPROACHES.items()
}
CENTRED: Variants = {
    f"{name}-centred": {**_APPROACHES[name], "fed-react.similarity": "centred-cosine"}
    for name in ("sc", "a1")
}
NORMS: Variants = {
    f"{name}-norms": {**_APPROACHES[name], "fed-react.similarity": "class-norms"}
    for name in ("sc", "a1")
}
# A1 with the paper's cosine and another share of the past.
FORGETTING: Variants = {
    "a1-toolbox": {**PLAIN["a1"], "fed-react.forgetting": "toolbox"},
    "a1-all-rounds": {**PLAIN["a1"], "fed-react.forgetting": "all-rounds"},
    "a1-forgetting-0.9": {**PLAIN["a1"], "fed-react.forgetting": 0.9},
}
HISTORY: Variants = {
    "a1-history": {**PLAIN["a1"], "fed-react.history": "all"},
    "a1-all-rounds-history": {**FORGETTING["a1-all-rounds"], "fed-react.history": "all"},
}
PENALTIES: Variants = {
    f"a1-penalty-{penalty:g}": {**PLAIN["a1"], "fed-react.penalty": penalty}
    for penalty in (0.1, 10.0)
}
# q and r of the paper's grid with the lowest validation error on the first seed's air writing.
SET_VARIANCES: Variants = {
    "a3-set": {
        **PLAIN["a3"],
        "fed-react.process-variance": 0.01,
        "fed-react.measurement-variance": 1.0,
        "fed-react.em-iterations": 0,
    }
}
# Closed forms on 200 random kernels: nothing trained, one message. And an answer that looks at
# nothing.
CLOSED: Variants = {
    "naive": {"method": "naive"},
    **{
        name: {"method": "analytic", "analytic.features": 200, "analytic.sharing": sharing}
        for name, sharing in (
            ("analytic-alone", "none"),
            ("analytic-all", "federated"),
            ("analytic", "shrunk"),
            ("analytic-clustered", "clustered"),
        )
    },
}
SIMPLEST = ("naive", "analytic-alone", "analytic")
# The same where each client guesses the classes of its sequences without a label.
GUESSES: Variants = {
    f"{name}-guessed-{guesses}": {**CLOSED[name], "keep": "last", "analytic.guess-rounds": guesses}
    for name, rounds in (("analytic-alone", [2]), ("analytic-all", [2]), ("analytic", [1, 2, 4]))
    for guesses in rounds
}
CHOOSING: Variants = {name: {"method": name} for name in ("ifca", "flsc")}
BETAS = (0.1, 0.25, 0.5, 2.0)
BETA_ROWS: Variants = {
    name: {**PLAIN, **CHOOSING}[name] for name in ("sc", "ec", "a1", "a2", "ifca", "flsc")
}
# A tenth of the steps for ten times the clients.
HUNDRED: Changes = {"data.clusters.clients": 100, "encoder.steps": 5}
WINDOWS, FACTORS = (3, 5, 7), (0.7, 0.8, 0.9)
EV_CLUSTERS = (1, 3, 9, 25, 40, 50)
LABELS_BETAS = (0.1, 0.5, 1.5)
FEW_LABELS = (8, 32)
# Labels that a client has in all: each round would fit the same heads, so one is enough.
_IN_ALL: Variants = {
    f"{labels} in all": {"data.clusters.labels": labels, "fed-react.samples": 0, "rounds": 1}
    for labels in FEW_LABELS
}
# Labels that a client has for a round: other ones in each, of all its train sequences.
_A_ROUND: Variants = {f"{labels} a round": {"fed-react.samples": labels} for labels in (8, 32, 64)}

TITLES = {
    "lstm-fedavg": "LSTM, FedAvg",
    "lstm-fedprox": "LSTM, FedProx",
    "lstm-ditto": "LSTM, Ditto",
    "lstm-apfl": "LSTM, APFL",
    "cnn-fedavg": "causal CNN with labels, FedAvg",
    "lstm-fedavg-100": "LSTM, FedAvg, 100 local epochs",
    "encoder-svm": "encoder + SVM",
    "eq-1": "encoder learned as printed (Fed-REACT, eq. 1) + SVM",
    "untrained": "untrained encoder + SVM",
    "encoder-svm-500": "encoder + SVM, 500 steps a round",
    "encoder-linear": "encoder + linear layer",
    "sc": "SC",
    "ec": "EC",
    "a1": "A1",
    "a2": "A2",
    "a3": "A3",
    "ifca": "IFCA",
    "flsc": "FLSC",
    "a3-set": "A3, q and r set",
    **{name: f"A1, penalty {name.removeprefix('a1-penalty-')}" for name in PENALTIES},
    **{name: f"{name.removesuffix('-centred').upper()}, centred" for name in CENTRED},
    **{name: f"{name.removesuffix('-norms').upper()}, class norms" for name in NORMS},
    "a1-toolbox": "A1, α as AFFECT's toolbox",
    "a1-all-rounds": "A1, all rounds alike",
    "a1-forgetting-0.9": "A1, α = 0.9",
    "a1-history": "A1, a head for changed clusters too",
    "a1-all-rounds-history": "A1, all rounds alike, a head for changed clusters too",
    "one-head": "A1, C = 1",
    "own-heads": "A1, C = N",
    **{f"c-{clusters}": f"A1, C = {clusters}" for clusters in EV_CLUSTERS},
    **{
        f"c-{clusters}-{kind}": f"A1, C = {clusters}, {kind}"
        for clusters in EV_CLUSTERS
        for kind in ("centred-cosine", "predictions")
    },
    "naive": "most frequent class",
    "own-mean": "mean of the client's own",
    "analytic-alone": "closed form, alone",
    "analytic-all": "closed form, one for all",
    "analytic": "closed form, own",
    "analytic-clustered": "closed form, own, in clusters",
    "w1": "w = 1",
    **{f"w{w}-{factor}": f"w = {w}, γ = {factor}" for factor in FACTORS for w in WINDOWS},
}
TITLES |= {
    f"{beta}-{name}": f"β = {beta}, {TITLES[name]}"
    for beta in BETAS
    for name in (*SIMPLEST, "encoder-svm", *BETA_ROWS)
}
TITLES |= {
    f"{beta}-{name}": f"β = {beta}, {TITLES[name]}" for beta in LABELS_BETAS for name in CLOSED
}
TITLES |= {
    name: f"{TITLES[name.partition('-guessed-')[0]]}, guessed {name.rpartition('-')[2]} ×"
    for name in GUESSES
}
TITLES |= {
    f"{labels}-{name}": f"{labels} labels, {TITLES[name]}"
    for labels in FEW_LABELS
    for name in ("encoder-svm", "sc", "one-head", *CLOSED, *GUESSES)
}


def rows(
    folder: str, variants: Variants, common: Changes, encoder: Row | None = None
) -> dict[str, Row]:
    return {
        name: Row(f"{folder}/{name}", {**common, **changes}, encoder)
        for name, changes in variants.items()
    }


def rows_on_encoder(
    folder: str, variants: Variants, common: Changes, clients: int, learner: str = "encoder-svm"
) -> dict[str, Row]:
    """Return the row that trains the encoder and the rows that use it."""
    first = rows(folder, {learner: encoder_and_heads(clients)}, common)
    return {**first, **rows(folder, variants, common, first[learner])}


def encoder_and_heads(clients: int) -> Changes:
    """Learn the encoder; then each client fits its own head to all its data."""
    return {
        "rounds": 1,
        "fed-react.clusters": clients,
        "fed-react.samples": 0,
        "fed-react.smoothing": "none",
    }


def one_and_own(clients: int) -> Variants:
    """Return the extremes of personalisation: one shared head, and a head for each client."""
    counts = {"one-head": 1, "own-heads": clients}
    return {name: {**PLAIN["a1"], "fed-react.clusters": count} for name, count in counts.items()}


def encoder_rows(folder: str) -> dict[str, Row]:
    heads = encoder_and_heads(10)
    variants = {
        **{name: CLOSED[name] for name in SIMPLEST},
        **SUPERVISED,
        "encoder-svm": heads,
        "encoder-svm-500": {**heads, "encoder.steps": 500},
        "eq-1": {**heads, "encoder.negative-terms": "sum"},
        "untrained": {**heads, "encoder.rounds": 0},
    }
    return rows(folder, variants, {"data.clusters.beta": 0.1})


def encoder_rows_50(folder: str) -> dict[str, Row]:
    """Return rows with a fifth of the steps for five times the clients."""
    heads = encoder_and_heads(50)
    variants = {
        **{name: CLOSED[name] for name in SIMPLEST},
        **LSTM,
        "encoder-svm": heads,
        "untrained": {**heads, "encoder.rounds": 0},
    }
    common: Changes = {
        "data.clusters.beta": 0.1,
        "data.clusters.clients": 50,
        "encoder.steps": 10,
    }
    return rows(folder, variants, common)


def cluster_rows(folder: str) -> dict[str, Row]:
    ours = {**FORGETTING, **HISTORY, **SET_VARIANCES, **CENTRED, **NORMS, **PENALTIES}
    variants = {**PLAIN, **CHOOSING, **ours, **one_and_own(10)}
    return rows_on_encoder(folder, variants, {}, 10)


def subject_rows(folder: str) -> dict[str, Row]:
    by_source: Changes = {"data.clusters.scheme": "given"}
    variants: Variants = {
        **{name: {**PLAIN, **NORMS}[name] for name in ("sc", "a1", "a1-norms")},
        **one_and_own(10),
    }
    supervised = rows(folder, {"lstm-fedavg": LSTM["lstm-fedavg"], **CLOSED}, by_source)
    return {**supervised, **rows_on_encoder(folder, variants, by_source, 10)}


def ev_rows(folder: str) -> dict[str, Row]:
    variants: Variants = {f"c-{count}": {"fed-react.clusters": count} for count in EV_CLUSTERS}
    variants |= {
        f"c-{count}-{kind}": {"fed-react.clusters": count, "fed-react.similarity": kind}
        for kind in ("centred-cosine", "predictions")
        for count in EV_CLUSTERS[1:-1]
    }
    return {
        **rows(folder, {"own-mean": {"method": "naive"}, **LSTM}, {}),
        **rows_on_encoder(folder, variants, {}, 50, "encoder-linear"),
    }


def scale_rows(folder: str) -> dict[str, Row]:
    variants = {
        **PLAIN,
        **CHOOSING,
        "a1-all-rounds": FORGETTING["a1-all-rounds"],
        **NORMS,
        **one_and_own(100),
    }
    return {
        **rows(folder, {name: CLOSED[name] for name in SIMPLEST}, HUNDRED),
        **rows_on_encoder(folder, variants, {**HUNDRED, "rounds": 200}, 100),
    }


def dtssgd_rows(folder: str) -> dict[str, Row]:
    variants: Variants = {
        f"w{window}-{factor}": {
            "optimizer.smoothing-window": window,
            "optimizer.smoothing-factor": factor,
        }
        for factor in FACTORS
        for window in WINDOWS
    }
    common = {**encoder_and_heads(10), "data.clusters.beta": 0.1}
    return rows(folder, {"w1": {}, **variants}, common)


def beta_rows(folder: str) -> dict[str, Row]:
    result = dict[str, Row]()
    for beta in BETAS:
        inside, common = f"{folder}-{beta}", {**HUNDRED, "data.clusters.beta": beta}
        closed = rows(inside, {name: CLOSED[name] for name in SIMPLEST}, common)
        inside_rows = {**closed, **rows_on_encoder(inside, BETA_ROWS, common, 100)}
        result |= {f"{beta}-{name}": row for name, row in inside_rows.items()}
    return result


def label_rows(folder: str, betas: Sequence[float], common_settings: Changes) -> dict[str, Row]:
    """Return rows by β, labels and method, with slashes between them.

    The encoder keeps its random initial values, so that clients learn from labels alone. With one
    round there is no past, and all approaches are SC.
    """
    ends = one_and_own(10)
    approaches = {
        **PLAIN,
        **CHOOSING,
        "a1-history": HISTORY["a1-history"],
        "a1-all-rounds": FORGETTING["a1-all-rounds"],
        "a1-all-rounds-history": HISTORY["a1-all-rounds-history"],
        **ends,
    }
    of_labels = {
        **{
            name: (changes, {"sc": PLAIN["sc"], **ends, **CLOSED})
            for name, changes in _IN_ALL.items()
        },
        **{name: (changes, approaches) for name, changes in _A_ROUND.items()},
    }
    result: dict[str, Row] = {}
    for beta in betas:
        for labels, (changes, variants) in of_labels.items():
            common = {"encoder.rounds": 0, "data.clusters.beta": beta, **common_settings, **changes}
            inside = rows(f"{folder}-{beta}-{labels.replace(' ', '-')}", variants, common)
            result |= {f"{beta}/{labels}/{name}": row for name, row in inside.items()}
    return result


def unlabelled_rows(folder: str) -> dict[str, Row]:
    """Return rows by labels and method: few labels, and all other train sequences without labels.

    Every round would fit the same heads, so one is enough.
    """
    heads: Variants = {"sc": PLAIN["sc"], "one-head": one_and_own(10)["one-head"]}
    closed = {name: CLOSED[name] for name in ("analytic-alone", "analytic-all", "analytic")}
    result: dict[str, Row] = {}
    for labels in FEW_LABELS:
        within = f"{folder}-{labels}"
        common = {
            **_IN_ALL[f"{labels} in all"],
            "data.clusters.beta": 0.5,
            "data.clusters.unlabelled": True,
        }
        inside = {
            **rows_on_encoder(within, heads, common, 10),
            **rows(within, {**closed, **GUESSES}, common),
        }
        result |= {f"{labels}-{name}": row for name, row in inside.items()}
    return result


def closed_rows(folder: str) -> dict[str, Row]:
    """Return closed forms by β, with all labels."""
    return {
        f"{beta}-{name}": row
        for beta in LABELS_BETAS
        for name, row in rows(f"{folder}-{beta}", CLOSED, {"data.clusters.beta": beta}).items()
    }


def vowel_rows(folder: str) -> dict[str, Row]:
    variants: Variants = {
        **{name: {**PLAIN, **NORMS}[name] for name in ("sc", "ec", "a1", "a1-norms")},
        "a1-all-rounds": FORGETTING["a1-all-rounds"],
        **one_and_own(10),
    }
    supervised: Variants = {name: SUPERVISED[name] for name in ("lstm-fedavg", "cnn-fedavg")}
    return {
        **rows(folder, {**supervised, **CLOSED}, {}),
        **rows_on_encoder(folder, variants, {}, 10),
    }
