"""The report of classification runs: accuracies, by stage and class, and forgetting.

A client has up to two models at the end of a round: its *own*, as its local training left it
("local"), and the one that it takes from there after averaging ("global"). A method without
averaging has the own model alone. Accuracies are fractions, 0 … 1, in the artefacts and percent on
screen. The names are the paper's (GLDP, section 5.1): A_glo, A_loc, A_sel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.report.task_report import (
    UNKNOWN,
    Measure,
    Row,
    Shown,
    mean_metric,
    percent_text,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedproto_app.report.task_report import Results
    from fedproto_app.server.federation import Federation, RoundLog

MODELS = ("global", "local")
THIRDS = ("many", "medium", "few")
INFERENCES = {"local-prototypes": "lp", "global-prototypes": "gp", "head": "head"}  # GLDP
CLIENT_COLUMNS = (
    "client", "node", "group", "samples", "kept_round",
    "accuracy_global", "accuracy_local", "accuracy_kept", "validation_error",
    "kept_validation_error", "accuracy_by_local_prototypes", "accuracy_by_global_prototypes",
    "accuracy_by_head",
)  # fmt: skip
CLASS_COLUMNS = (
    "class", "train_samples", "third", "test_samples", "accuracy_global", "accuracy_local",
)  # fmt: skip
_SELECTED_ROUNDS = 10  # the last ones, over which figure 4 of the paper tells A_sel


class ClassificationReport:
    """Accuracies of averaged models, of clients' own models and of the clients of a round."""

    measure = Measure(
        summary="accuracy_local",
        client="accuracy_local",
        round="accuracy_local",
        larger_is_better=True,
        name="accuracy of own models",
        axis="test accuracy (%)",
        scale=0.01,
        limits=(0, 100),
    )
    progress: tuple[Shown, ...] = (
        Shown("validation_error", "val error %", percent_text),
        Shown("accuracy_local", "A_loc %", percent_text),
        Shown("accuracy_global", "A_glo %", percent_text),
    )
    clients: tuple[Shown, ...] = (
        Shown("accuracy_local", "A_loc %", percent_text),
        Shown("accuracy_global", "A_glo %", percent_text),
        Shown("accuracy_kept", "kept %", percent_text),
    )
    comparison: tuple[Shown, ...] = (
        Shown("accuracy_local", "A_loc %", percent_text, spread=True),
        Shown("accuracy_global", "A_glo %", percent_text, spread=True),
        Shown("accuracy_selected", "A_sel %", percent_text, spread=True),
        Shown("many_local", "many %", percent_text),
        Shown("medium_local", "medium %", percent_text),
        Shown("few_local", "few %", percent_text),
        Shown("forgetting_local", "forgetting %", percent_text),
    )
    caption = (
        "A_loc: clients' own models; A_glo: after averaging; A_sel: own models of a round's "
        "clients, last 10 evaluated rounds; many, medium, few, forgetting: own models"
    )

    def round_figures(self, log: RoundLog, results: Results, evaluated: bool) -> dict[str, Any]:
        """Plain means over the clients of their latest evaluations."""
        known = results if evaluated else {}
        return {
            "validation_error": mean_metric(known, "validation-error"),
            "validation_error_local": mean_metric(known, "local-validation-error"),
            **_accuracies(known),
            "accuracy_selected": mean_metric(
                known, f"{_prefixes(known)['local']}accuracy", log.losses
            ),
            "by_inference": _by_inference(known),
            **{f"stages_{model}": _stages(known, prefix) for model, prefix in _each_model(known)},
        }

    def tables(self, federation: Federation) -> dict[str, list[Row]]:
        """``clients.csv``: a row per client. ``classes.csv``: a row per class, in label order."""
        return {"clients.csv": _client_rows(federation), "classes.csv": _class_rows(federation)}

    def summary_figures(
        self, federation: Federation, rounds: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The final round's figures, and what only all rounds together tell."""
        results = federation.results
        selected = [line["accuracy_selected"] for line in rounds]
        selected = [value for value in selected if value is not None]
        figures = {
            **_accuracies(results),
            "accuracy_selected": (
                float(np.mean(selected[-_SELECTED_ROUNDS:])) if selected else None
            ),
            "accuracy_selected_final": selected[-1] if selected else None,
            "validation_error": mean_metric(results, "validation-error"),
            "validation_error_local": mean_metric(results, "local-validation-error"),
            "by_inference": _by_inference(results),
        }
        names = dict(zip(THIRDS, thirds(_train_counts(federation)), strict=True))
        for model, prefix in _each_model(results):
            right, total = _class_scores(federation, prefix)
            for third, classes in names.items():
                figures[f"{third}_{model}"] = _ratio(right[classes].sum(), total[classes].sum())
        for model in MODELS:
            figures[f"forgetting_{model}"] = forgetting(
                [line[f"stages_{model}"] for line in rounds]
            )
        return figures | {
            f"stages_{m}": _stages(results, prefix) for m, prefix in _each_model(results)
        }

    def run_rows(self, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
        """In percent; "own / averaged" where a row tells of both models."""
        kept = "best validation" if summary["keep"] == "best-validation" else summary["keep"]
        both = [("own model", "local"), ("averaged model", "global")]
        rows = [
            ("test accuracy, own model (A_loc)", _percent(summary["accuracy_local"])),
            ("test accuracy, averaged model (A_glo)", _percent(summary["accuracy_global"])),
            ("test accuracy, clients of a round (A_sel)", _percent(summary["accuracy_selected"])),
            (f"test accuracy, kept model ({kept})", _percent(summary["accuracy_kept"])),
        ]
        for inference, accuracy in summary["by_inference"].items():
            values = (accuracy[model] for _, model in both)
            rows.append((f"by {inference}, own / averaged", _percent(*values)))
        for title, model in both:
            if summary[f"accuracy_{model}"] is not None:
                values = (summary[f"{third}_{model}"] for third in THIRDS)
                rows.append((f"many / medium / few-shot, {title}", _percent(*values)))
        for title, model in both:
            if len(stages := summary[f"stages_{model}"] or []) > 1:
                rows.append((f"stages 1 … {len(stages)}, {title}", _percent(*stages)))
                rows.append((f"forgetting, {title}", _percent(summary[f"forgetting_{model}"])))
        return rows

    def pictures(self, run_dir: Path) -> dict[str, Figure]:
        """clients-accuracy.png, rounds.png, stages.png, classes.png, partition.png."""
        from fedproto_app.tasks.images.pictures import classification_pictures

        return classification_pictures(run_dir)


def thirds(train_counts: NDArray[np.int64] | None) -> list[NDArray[np.intp]]:
    """The classes of many, of medium and of few training samples, each by falling count.

    train_counts: [C] over all clients and stages; of equal counts the smaller label comes first.
    The first thirds are larger by one where C is not divisible by three. None: three empty ones.
    """
    if train_counts is None:
        return [np.array([], dtype=np.intp)] * 3
    return np.array_split(np.argsort(-train_counts, kind="stable"), 3)


def forgetting(rounds: Sequence[Sequence[float | None] | None]) -> float | None:
    """Mean over the stages but the last of the best earlier accuracy minus the final one.

    rounds: [M] accuracies by stage of each round, None for a stage that has not come and for a
    round without evaluation. A stage that is at its best in the end is forgotten by 0; one without
    an earlier accuracy does not count. None if no stage counts.
    """
    known = [stages for stages in rounds if stages]
    if not known:
        return None
    *earlier, final = known
    lost = []
    for stage, accuracy in enumerate(final[:-1]):
        past = [
            best for stages in earlier for best in stages[stage : stage + 1] if best is not None
        ]
        if past and accuracy is not None:
            lost.append(max(max(past) - accuracy, 0.0))
    return float(np.mean(lost)) if lost else None


def _prefixes(results: Results) -> dict[str, str | None]:
    """Before the metrics' names for each model, None for one that the method does not have."""
    known = {name for result in results.values() for name in result.metrics}
    if "local-accuracy" not in known:
        return {"global": None, "local": ""}
    # Clients of APFL tell of the averaged model besides their mixture, all of them.
    evaluated = [result.metrics for result in results.values() if "accuracy" in result.metrics]
    besides = bool(evaluated) and all("global-accuracy" in metrics for metrics in evaluated)
    return {"global": "global-" if besides else "", "local": "local-"}


def _each_model(results: Results) -> list[tuple[str, str | None]]:
    prefixes = _prefixes(results)
    return [(model, prefixes[model]) for model in MODELS]


def _mean(results: Results, prefix: str | None, name: str) -> float | None:
    return None if prefix is None else mean_metric(results, prefix + name)


def _accuracies(results: Results) -> dict[str, float | None]:
    """A_glo and A_loc, and the accuracy of the kept models."""
    return {
        **{
            f"accuracy_{m}": _mean(results, prefix, "accuracy")
            for m, prefix in _each_model(results)
        },
        "accuracy_kept": mean_metric(results, "kept-accuracy"),
    }


def _by_inference(results: Results) -> dict[str, dict[str, float | None]]:
    """A_glo and A_loc under each rule of inference, where the method has several."""
    found = {
        inference: {
            model: _mean(results, prefix, f"{short}-accuracy")
            for model, prefix in _each_model(results)
        }
        for inference, short in INFERENCES.items()
    }
    return {name: means for name, means in found.items() if set(means.values()) != {None}}


def _stages(results: Results, prefix: str | None) -> list[float | None] | None:
    """[M] accuracy on each stage's test data, the mean over the clients that have some.

    None for a stage that has not come yet; None altogether without the model or its counts.
    """
    if prefix is None:
        return None
    stages: list[float | None] = []
    for stage in count(1):
        right, total = f"{prefix}correct/stage-{stage}", f"{prefix}count/stage-{stage}"
        if not any(total in result.metrics for result in results.values()):
            return stages or None
        scores = [results[key].metrics for key in sorted(results)]
        shares = [score.get(right, 0) / score[total] for score in scores if score.get(total, 0) > 0]
        stages.append(float(np.mean(shares)) if shares else None)
    return None  # never: no result has endless metrics


def _class_scores(
    federation: Federation, prefix: str | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[C] right answers and [C] test samples of all clients, by class; 0 without the model."""
    results, classes = federation.results, range(len(federation.shape.classes))
    if prefix is None:
        return np.zeros(len(classes)), np.zeros(len(classes))
    scores = [results[key].metrics for key in sorted(results)]
    right, total = (
        np.array([sum(s.get(f"{prefix}{kind}/class-{c}", 0.0) for s in scores) for c in classes])
        for kind in ("correct", "count")
    )
    return right, total


def _train_counts(federation: Federation) -> NDArray[np.int64] | None:
    """[C] train samples of all clients and stages; None unless some client's are known."""
    known = [facts.class_counts for facts in federation.roster.facts.values() if facts.class_counts]
    if not known:
        return None
    counts: NDArray[np.int64] = np.array([stage for stages in known for stage in stages])
    total: NDArray[np.int64] = counts.sum(axis=0)
    return total


def _client_rows(federation: Federation) -> list[Row]:
    results, roster = federation.results, federation.roster
    prefixes = _prefixes(results)
    rows: list[Row] = [CLIENT_COLUMNS]
    for key, result in sorted(results.items()):
        facts, metrics = roster.facts[key], result.metrics
        accuracies = [
            None if prefixes[model] is None else metrics.get(f"{prefixes[model]}accuracy")
            for model in MODELS
        ]
        rows.append(
            [
                *(key.client, key.node, facts.group, facts.samples, result.kept_round),
                *accuracies,
                metrics.get("kept-accuracy"),
                *(metrics.get(f"{kept}validation-error") for kept in ("", "kept-")),
                *(metrics.get(f"{short}-accuracy") for short in INFERENCES.values()),
            ]
        )
    return rows


def _class_rows(federation: Federation) -> list[Row]:
    classes, train = federation.shape.classes, _train_counts(federation)
    third = {c: name for name, some in zip(THIRDS, thirds(train), strict=True) for c in some}
    prefixes = _prefixes(federation.results)
    scores = {model: _class_scores(federation, prefixes[model]) for model in MODELS}
    _, tested = _class_scores(federation, "")
    rows: list[Row] = [CLASS_COLUMNS]
    for number, name in enumerate(classes):
        rows.append(
            [
                name,
                None if train is None else int(train[number]),
                third.get(number),
                int(tested[number]),
                *(_ratio(right[number], total[number]) for right, total in scores.values()),
            ]
        )
    return rows


def _ratio(right: float, total: float) -> float | None:
    return float(right / total) if total > 0 else None


def _percent(*values: float | None) -> str:
    texts = [percent_text(value) for value in values]
    return UNKNOWN if set(texts) == {UNKNOWN} else f"{' / '.join(texts)} %"
