"""Report on classification runs: accuracies, also by stage and by class, and forgetting.

At the end of a round, a client has up to two models: its *own* model after local training
("local"), and the model after averaging ("global"). A method that does not average has only own
models. Rare classes are as rare among the test images as among the train images, so the accuracy
says little about them. The balanced accuracy weights all classes equally.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import metric_values
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.report.run_files import Record
from fedproto_app.report.task_report import (
    WITHHELD,
    Row,
    TaskReport,
    client_rows,
    kept_model,
    mean_of,
    round_means,
    summary_statistics,
)
from fedproto_app.tasks.images.metrics import (
    ACCURACY,
    AVERAGED,
    CLASSIFICATION,
    CORRECT,
    COUNT,
    ERROR,
    INFERENCES,
    LOCAL_MODELS,
    THIRDS,
    class_metric,
    stage_metric,
)
from fedproto_app.tasks.metrics import UNKNOWN, Figure, percent_text

if TYPE_CHECKING:
    from fedproto_app.core.clients import ClientKey
    from fedproto_app.report.task_report import Results
    from fedproto_app.server.federation import Federation
    from fedproto_app.server.round_log import RoundLog

MODELS = ("global", "local")
CLASS_COLUMNS = (
    "class", "train_samples", "third", "test_samples", "accuracy_global", "accuracy_local",
)  # fmt: skip
_NOBODYS = Metric("")  # a metric that no client has
_SELECTED_ROUNDS = 10  # the last rounds that figure 4 of the paper averages for A_sel


class ClassificationReport(TaskReport):
    """The report of accuracies: of averaged models, own models, and models of a round's clients."""

    metrics = CLASSIFICATION

    def round_figures(self, log: RoundLog, results: Results, evaluated: bool) -> Record:
        """Return the plain means of the latest evaluations over all clients."""
        results = results if evaluated else {}
        test, validation = self._figures(results)
        return {
            **round_means(results, validation),
            **round_means(results, test),
            "accuracy_selected": _mean(results, _models(results)["local"], log.losses),
            "by_inference": _by_inference(results),
            **_stages_by_model(results),
        }

    def tables(self, federation: Federation) -> dict[str, list[Row]]:
        """Return ``clients.csv``, a row per client, and ``classes.csv``, a row per class."""
        figures = _of_models(federation.history.results, self.metrics.figures)
        return {
            "clients.csv": client_rows(federation, figures),
            "classes.csv": _class_rows(federation),
        }

    def summary_figures(self, federation: Federation, rounds: Sequence[Record]) -> Record:
        """Return the final round's figures, and figures over all rounds."""
        results = federation.history.results
        test, validation = self._figures(results)
        selected = [line["accuracy_selected"] for line in rounds]
        selected = [value for value in selected if value is not None]
        figures = {
            **summary_statistics(federation, test),
            "accuracy_selected": mean_of(selected[-_SELECTED_ROUNDS:]),
            "accuracy_selected_final": selected[-1] if selected else None,
            **summary_statistics(federation, validation),
            "by_inference": _by_inference(results),
        }
        names = dict(zip(THIRDS, thirds(_train_counts(federation)), strict=True))
        for model, accuracy in _models(results).items():
            right, total = _class_scores(federation, accuracy)
            figures[f"balanced_{model}"] = balanced_accuracy(right, total)
            for third, classes in names.items():
                figures[f"{third}_{model}"] = _ratio(right[classes].sum(), total[classes].sum())
        for model in MODELS:
            figures[f"forgetting_{model}"] = forgetting(
                [line[f"stages_{model}"] for line in rounds]
            )
        return figures | _stages_by_model(results)

    def run_rows(self, summary: Record) -> list[tuple[str, str]]:
        """Return rows of figures in percent, as "own / averaged" where a row has both models."""
        models = [("own model", "local"), ("averaged model", "global")]
        kept_title = f"test accuracy, kept model ({kept_model(summary)})"
        rows = [
            ("test accuracy, own model (A_loc)", _percent(summary["accuracy_local"])),
            ("test accuracy, averaged model (A_glo)", _percent(summary["accuracy_global"])),
            ("test accuracy, clients of a round (A_sel)", _percent(summary["accuracy_selected"])),
            (kept_title, _percent(summary["accuracy_kept"])),
        ]
        for inference, accuracy in summary["by_inference"].items():
            values = (accuracy[model] for _, model in models)
            rows.append((f"by {inference}, own / averaged", _percent(*values)))
        for title, model in models:
            if summary[f"accuracy_{model}"] is not None:
                balanced = summary.get(f"balanced_{model}")  # the first runs lack this figure
                rows.append((f"balanced accuracy, {title}", _percent(balanced)))
                values = (summary[f"{third}_{model}"] for third in THIRDS)
                rows.append((f"many / medium / few-shot, {title}", _percent(*values)))
        for title, model in models:
            if len(stages := summary[f"stages_{model}"] or []) > 1:
                rows.append((f"stages 1 … {len(stages)}, {title}", _percent(*stages)))
                rows.append((f"forgetting, {title}", _percent(summary[f"forgetting_{model}"])))
        return rows

    def in_words(self, summary: Record) -> str:
        """State the accuracy of the clients' own models or, if unknown, of the averaged model."""
        accuracy = summary["accuracy_local"]
        value, subject = (
            (summary["accuracy_global"], "The averaged model names")
            if accuracy is None
            else (accuracy, "The clients' own models name")
        )
        if value is None:
            return WITHHELD
        right = percent_text(value)
        return f"{subject} the right class of {right}% of the test images (mean over the clients)"

    def curves(self, rounds: Sequence[Record]) -> dict[str, list[float | None]]:
        """Return accuracies as fractions."""
        errors = [record["validation_error"] for record in rounds]
        return {
            "own model (A_loc)": [record["accuracy_local"] for record in rounds],
            "averaged model (A_glo)": [record["accuracy_global"] for record in rounds],
            "own model, clients of the round (A_sel)": [r["accuracy_selected"] for r in rounds],
            "validation images": [None if error is None else 1 - error for error in errors],
        }

    def _figures(self, results: Results) -> tuple[list[Figure], list[Figure]]:
        """Return the figures on test data, and on validation data."""
        figures = _of_models(results, self.metrics.figures)
        validation = [figure for figure in figures if figure.metric.name == ERROR.name]
        return [figure for figure in figures if figure not in validation], validation


def thirds(train_counts: NDArray[np.int64] | None) -> list[NDArray[np.intp]]:
    """Return three lists: the classes with many, with medium and with few training samples.

    Each list is sorted by falling count. With equal counts, the smaller label comes first. If C is
    not divisible by three, the first lists are longer by one. train_counts: [C] over all clients
    and stages. If it is None, the counts are unknown and the lists are empty.
    """
    if train_counts is None:
        return [np.array([], dtype=np.intp)] * 3
    return np.array_split(np.argsort(-train_counts, kind="stable"), 3)


def balanced_accuracy(right: NDArray[np.float64], total: NDArray[np.float64]) -> float | None:
    """Return the mean of the classes' accuracies, or None if there are no test images.

    right, total: for each class, the right answers and all test images, [C]. Classes without test
    images are left out.
    """
    tested = total > 0
    return float((right[tested] / total[tested]).mean()) if tested.any() else None


def forgetting(rounds: Sequence[Sequence[float | None] | None]) -> float | None:
    """Return the mean forgetting over all stages but the last, or None if all are unknown.

    A stage's forgetting is its best accuracy in an earlier round minus its final accuracy, but at
    least 0. A stage without an earlier accuracy is left out. rounds: for each round the [M]
    accuracies by stage. A stage that has not started is None, as is a round without evaluation.
    """
    evaluated = [stages for stages in rounds if stages]
    if not evaluated:
        return None
    *earlier, final = evaluated
    lost = []
    for stage, accuracy in enumerate(final[:-1]):
        past = [
            best for stages in earlier for best in stages[stage : stage + 1] if best is not None
        ]
        if past and accuracy is not None:
            lost.append(max(max(past) - accuracy, 0.0))
    return float(np.mean(lost)) if lost else None


def _models(results: Results) -> dict[str, Metric | None]:
    """Return the metric of each of `MODELS`, or None for a model that the method does not have.

    A method is taken to have a model if at least half of the clients report it. No single client
    can thus decide this.
    """
    local, shared = replace(ACCURACY, model=Model.LOCAL), replace(ACCURACY, shared=True)
    metrics_by_client = [result.metrics for result in results.values()]

    def half_have(metric: Metric) -> bool:
        having = sum(metric in metrics for metrics in metrics_by_client)
        return 0 < len(metrics_by_client) <= 2 * having

    # Clients with a personal model report the averaged model as a shared metric.
    if not half_have(local):
        return {"global": shared if half_have(shared) else None, "local": ACCURACY}
    return {"global": shared if half_have(shared) else ACCURACY, "local": local}


def _of_models(results: Results, figures: Iterable[Figure]) -> list[Figure]:
    """Return the figures, with the metrics that clients really report for the two models."""
    models = _models(results)
    reported = {AVERAGED: models["global"], LOCAL_MODELS: models["local"]}
    return [
        replace(figure, metric=reported.get(figure, figure.metric) or _NOBODYS)
        for figure in figures
    ]


def _mean(
    results: Results, metric: Metric | None, keys: Iterable[ClientKey] | None = None
) -> float | None:
    """Return the plain mean over the clients that have the metric, or None if there are none.

    keys: only these clients, or None for all.
    """
    return mean_of(metric_values(results, metric, keys) if metric else ())


def _by_inference(results: Results) -> dict[str, dict[str, float | None]]:
    """Return A_glo and A_loc for each inference rule, if the method has several rules."""
    models = _models(results)
    by_rule = {
        rule: {
            m: _mean(results, metric and replace(metric, rule=rule)) for m, metric in models.items()
        }
        for rule in INFERENCES
    }
    return {rule: means for rule, means in by_rule.items() if set(means.values()) != {None}}


def _stages_by_model(results: Results) -> dict[str, list[float | None] | None]:
    return {f"stages_{m}": _stages(results, metric) for m, metric in _models(results).items()}


def _stages(results: Results, accuracy: Metric | None) -> list[float | None] | None:
    """Return the mean accuracy on each stage's test data, [M], over the clients that have some.

    The accuracy of a stage is None if the stage has not started. The result is None if the method
    lacks the model, or if its counts are unknown.
    """
    if accuracy is None:
        return None
    scores = [results[key].metrics for key in sorted(results)]
    stages: list[float | None] = []
    for stage in count():
        right, total = (
            replace(accuracy, name=stage_metric(quantity, stage).name)
            for quantity in (CORRECT, COUNT)
        )
        if not any(total in score for score in scores):
            break
        shares = [score.get(right, 0) / score[total] for score in scores if score.get(total, 0) > 0]
        stages.append(float(np.mean(shares)) if shares else None)
    return stages or None


def _class_scores(
    federation: Federation, accuracy: Metric | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the right answers and the test samples of all clients by class, [C], or 0 if the
    method lacks the model."""
    results, classes = federation.history.results, range(len(federation.shape.classes))
    if accuracy is None:
        return np.zeros(len(classes)), np.zeros(len(classes))
    scores = [results[key].metrics for key in sorted(results)]
    by_class = (
        [replace(accuracy, name=class_metric(quantity, label).name) for label in classes]
        for quantity in (CORRECT, COUNT)
    )
    right, total = (
        np.array([sum(score.get(metric, 0.0) for score in scores) for metric in metrics])
        for metrics in by_class
    )
    return right, total


def _train_counts(federation: Federation) -> NDArray[np.int64] | None:
    """Return the train samples of all clients and stages by class, [C], or None if not reported."""
    class_counts = [
        facts.class_counts for facts in federation.members.facts.values() if facts.class_counts
    ]
    if not class_counts:
        return None
    counts: NDArray[np.int64] = np.array([stage for stages in class_counts for stage in stages])
    total: NDArray[np.int64] = counts.sum(axis=0)
    return total


def _class_rows(federation: Federation) -> list[Row]:
    classes, train = federation.shape.classes, _train_counts(federation)
    third = {c: name for name, members in zip(THIRDS, thirds(train), strict=True) for c in members}
    models = _models(federation.history.results)
    scores = {model: _class_scores(federation, models[model]) for model in MODELS}
    _, tested = _class_scores(federation, ACCURACY)
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


REPORTS = {"classification": ClassificationReport}
