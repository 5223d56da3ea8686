"""Report on runs on labelled sequences: accuracies, or errors in the data's units.

The Rand index says how well the clusters match the true groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fedproto_app.core.metrics import Metric
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
from fedproto_app.tasks.metrics import UNKNOWN, Figure, short_text
from fedproto_app.tasks.sequences.metrics import CLASSES, NUMBERS

if TYPE_CHECKING:
    from fedproto_app.report.task_report import Results
    from fedproto_app.server.federation import Federation
    from fedproto_app.server.round_log import RoundLog


class SequenceReport(TaskReport):
    """The common part of the reports on classification and on regression."""

    def round_figures(self, log: RoundLog, results: Results, evaluated: bool) -> Record:
        """Return the plain means of the latest evaluations over all clients."""
        means = round_means(results if evaluated else {}, self.metrics.figures)
        return {**means, "rand_index": log.figures.get("rand_index")}

    def tables(self, federation: Federation) -> dict[str, list[Row]]:
        """Return ``clients.csv``, a row per client."""
        return {"clients.csv": client_rows(federation, self.metrics.figures)}

    def summary_figures(self, federation: Federation, rounds: Sequence[Record]) -> Record:
        """Return the last evaluation's figures, and means over the evaluated rounds."""
        in_use = (self.metrics.latest.round.name, self.metrics.validation.round.name)
        rand = [(line["round"], line["rand_index"]) for line in rounds]
        first = federation.settings.pretraining_rounds + 1
        return {
            **summary_statistics(federation, self.metrics.figures),
            **{f"{name}_rounds": mean_of(line[name] for line in rounds) for name in in_use},
            "rand_index": _last(value for _, value in rand),
            "rand_index_rounds": mean_of(value for _, value in rand),
            "rand_index_settled": settled_round(
                [(number - first + 1, value) for number, value in rand]
            ),
            "forgetting_factor_rounds": mean_of(_method_figures(rounds, "forgetting_factor")),
            "clusters": _last(_method_figures(rounds, "clusters")),
        }

    def run_rows(self, summary: Record) -> list[tuple[str, str]]:
        """Return a row for each figure that the method has."""
        metrics, test = self.metrics, f"test {self._title(self.metrics.latest)}"
        name, validation = metrics.latest.round.name, metrics.validation.round.name
        shown_before = (metrics.latest, metrics.validation)
        further = [
            (f"test {self._title(figure)}, last round", field.name)
            for figure in metrics.figures
            if figure.metric == Metric(figure.metric.name) and figure not in shown_before
            for field in figure.summary
        ]
        rows = [
            (f"{test}, last round", name),
            (f"{test}, mean of all rounds", f"{name}_rounds"),
            (f"{test}, client's own head", f"{name}_local"),
            (f"{test}, averaged model", f"{name}_global"),
            *further,
        ]
        return [
            (f"{test}, kept model ({kept_model(summary)})", self._texts(summary, f"{name}_kept")),
            *(
                (label, self._texts(summary, field))
                for label, field in rows
                if summary[field] is not None
            ),
            (
                f"{validation.replace('_', ' ')}, last / mean of all rounds",
                self._texts(summary, validation, f"{validation}_rounds"),
            ),
            *_cluster_rows(summary),
        ]

    def in_words(self, summary: Record) -> str:
        """Return the result of the models that clients end with."""
        figure = self.metrics.kept
        if summary[figure.summary[0].name] is None:
            return WITHHELD
        value = self._texts(summary, figure.summary[0].name)
        return f"The clients' mean test {self._title(figure)} is {value}"

    def curves(self, rounds: Sequence[Record]) -> dict[str, list[float | None]]:
        """Return accuracies as fractions, or errors in the data's units."""
        name = self.metrics.latest.round.name
        errors = [record[self.metrics.validation.round.name] for record in rounds]
        if self.metrics.is_accuracy:
            errors = [None if error is None else 1 - error for error in errors]
        return {
            "test, models in use": [record[name] for record in rounds],
            "validation, models in use": errors,
            "test, clients' own heads": [record[f"{name}_local"] for record in rounds],
            "test, averaged model": [record[f"{name}_global"] for record in rounds],
            "test, kept models": [record[f"{name}_kept"] for record in rounds],
        }

    def _title(self, figure: Figure) -> str:
        name = figure.metric.name
        return name if self.metrics.is_accuracy else name.upper()

    def _texts(self, summary: Record, *fields: str) -> str:
        texts = [self.metrics.headline.summary[0].text(summary[field]) for field in fields]
        unit = " %" if self.metrics.is_accuracy else ""
        return UNKNOWN if set(texts) == {UNKNOWN} else f"{' / '.join(texts)}{unit}"


class SequenceClassificationReport(SequenceReport):
    """The report of accuracies: fractions (0 … 1) in the artefacts, and percent on screen."""

    metrics = CLASSES


class SequenceRegressionReport(SequenceReport):
    """The report of errors in the data's units."""

    metrics = NUMBERS


def settled_round(rand_indices: Sequence[tuple[int, float | None]]) -> int | None:
    """Return the round since which the Rand index has been 1, or None if it ends below 1.

    rand_indices: the rounds in order, each with its Rand index. Rounds without one are ignored.
    """
    first = None
    for number, value in rand_indices:
        if value is not None and value < 1:
            first = None
        elif value is not None and first is None:
            first = number
    return first


def _cluster_rows(summary: Record) -> list[tuple[str, str]]:
    """Return rows with the figures about clusters, or [] for a method without clusters."""
    rows = []
    if summary["clusters"] is not None:
        rows.append(("clusters, last round", short_text(summary["clusters"])))
    if summary["rand_index"] is not None:
        last, mean = short_text(summary["rand_index"]), short_text(summary["rand_index_rounds"])
        rows.append(("Rand index, last / mean of all rounds", f"{last} / {mean}"))
        since = str(summary["rand_index_settled"] or "never")
        rows.append(("clusters true since round (encoder's rounds not counted)", since))
    if summary["forgetting_factor_rounds"] is not None:
        mean = short_text(summary["forgetting_factor_rounds"])
        rows.append(("forgetting factor α, mean of all rounds", mean))
    return rows


def _method_figures(rounds: Sequence[Record], figure: str) -> list[float | None]:
    """Return one of the method's own figures for each round, None where it is missing."""
    return [line["figures"].get(figure) for line in rounds]


def _last(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return numbers[-1] if numbers else None


REPORTS: dict[str, type[TaskReport]] = {
    "sequence-classification": SequenceClassificationReport,
    "sequence-regression": SequenceRegressionReport,
}
