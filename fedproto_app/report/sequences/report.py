"""The reports of runs on labelled sequences: accuracies, or errors in the data's units.

A client is evaluated with the model that it uses now. If the method shares heads inside clusters,
it is also evaluated with its own head ("local"); if it uses a mixture or a personal model, also
with the averaged model ("global"). Clusters are compared with the true groups by the Rand index.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.report.task_report import (
    UNKNOWN,
    ClientErrors,
    Measure,
    Row,
    Shown,
    mean_metric,
    percent_text,
    short_text,
)

if TYPE_CHECKING:
    from fedproto_app.core.charts import Chart, Section
    from fedproto_app.report.task_report import Results
    from fedproto_app.server.federation import Federation
    from fedproto_app.server.round_log import RoundLog

_FACTS = ("client", "node", "group", "samples", "kept_round")
# Settings of [data] that change how models see the sequences, but not which sequences there are.
_INPUTS = ("sequences.scaling", "sequences.steps", "sequences.target-scale")


class SequenceReport:
    """The common part of classification and regression; subclasses name the metrics.

    metric: the test metric that ranks methods. title: its name in texts. unit: follows its values.
    validation: the metric that chooses models. extra_metrics: other metrics of the models in use.
    """

    metric: str
    title: str
    unit: str = ""
    validation: str
    extra_metrics: tuple[str, ...] = ()
    measure: Measure
    progress: tuple[Shown, ...]
    clients: tuple[Shown, ...]
    every_client: tuple[Shown, ...]
    comparison: tuple[Shown, ...]
    client_errors: ClientErrors | None = None
    caption = (
        "kept: the models that clients end with; last: those of the last round; rounds: mean over "
        "the evaluated rounds; Rand: index of the clusters against the true ones, mean over rounds"
    )

    def round_figures(self, log: RoundLog, results: Results, evaluated: bool) -> dict[str, Any]:
        """Return plain means over the clients of their latest evaluations."""
        evaluated_results = results if evaluated else {}
        return {
            **{
                figure: mean_metric(evaluated_results, metric)
                for figure, metric in self._metrics().items()
            },
            "rand_index": log.figures.get("rand_index"),
        }

    def tables(self, federation: Federation) -> dict[str, list[Row]]:
        """Return ``clients.csv``, a row per client."""
        validation = figure_of(self.validation)
        columns = {name: metric for name, metric in self._metrics().items() if not metric.shared}
        columns[f"kept_{validation}"] = Metric(self.validation, Model.KEPT)
        rows: list[Row] = [(*_FACTS, *columns)]
        for key, result in sorted(federation.history.results.items()):
            facts = federation.members.facts[key]
            metrics = [result.metrics.get(metric) for metric in columns.values()]
            rows.append(
                [key.client, key.node, facts.group, facts.samples, result.kept_round, *metrics]
            )
        return {"clients.csv": rows}

    def summary_figures(
        self, federation: Federation, rounds: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return the last evaluation's figures, and means over the evaluated rounds."""
        validation = figure_of(self.validation)
        rand = [(line["round"], line["rand_index"]) for line in rounds]
        first = federation.settings.pretraining_rounds + 1
        return {
            **{
                figure: mean_metric(federation.history.results, metric)
                for figure, metric in self._metrics().items()
            },
            f"{self.metric}_rounds": _mean(line[self.metric] for line in rounds),
            f"{validation}_rounds": _mean(line[validation] for line in rounds),
            "rand_index": _last(value for _, value in rand),
            "rand_index_rounds": _mean(value for _, value in rand),
            "rand_index_settled": settled([(number - first + 1, value) for number, value in rand]),
            "forgetting_factor_rounds": _mean(_method_figures(rounds, "forgetting_factor")),
            "clusters": _last(_method_figures(rounds, "clusters")),
        }

    def run_rows(self, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return a row for each figure that the method has."""
        kept_model = "best validation" if summary["keep"] == "best-validation" else summary["keep"]
        name, title, validation = self.metric, self.title, figure_of(self.validation)
        rows = [(f"test {title}, kept model ({kept_model})", self._texts(summary, f"{name}_kept"))]
        rows += [
            (label, self._texts(summary, figure))
            for label, figure in (
                (f"test {title}, last round", name),
                (f"test {title}, mean of all rounds", f"{name}_rounds"),
                (f"test {title}, client's own head", f"{name}_local"),
                (f"test {title}, averaged model", f"{name}_global"),
                *(
                    (f"test {other_metric.upper()}, last round", other_metric)
                    for other_metric in self.extra_metrics
                ),
            )
            if summary[figure] is not None
        ]
        validation_texts = self._texts(summary, validation, f"{validation}_rounds")
        rows.append(
            (f"{self.validation.replace('-', ' ')}, last / mean of all rounds", validation_texts)
        )
        return rows + _cluster_rows(summary)

    def in_words(self, summary: Mapping[str, Any]) -> str:
        """Return the result of the models that clients end with."""
        value = self._texts(summary, f"{self.metric}_kept")
        return f"The clients' mean test {self.title} is {value}"

    def curves(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
        """Return accuracies as fractions, or errors in the data's units."""
        metric = self.metric
        return {
            "test, models in use": [record[metric] for record in rounds],
            "validation, models in use": [self._validation(record) for record in rounds],
            "test, clients' own heads": [record[f"{metric}_local"] for record in rounds],
            "test, averaged model": [record[f"{metric}_global"] for record in rounds],
            "test, kept models": [record[f"{metric}_kept"] for record in rounds],
        }

    def _validation(self, record: Mapping[str, Any]) -> float | None:
        """Return the validation figure in the metric's terms: an accuracy, or an RMSE."""
        value: float | None = record[figure_of(self.validation)]
        return 1 - value if value is not None and self.measure.larger_is_better else value

    def sections(self, runs: Mapping[str, Path], first: str) -> list[Section]:
        """Return sections on clusters over the rounds, similar clients, and clients' classes."""
        from fedproto_app.report.sequences import charts

        return charts.sections(runs, first)

    def pictures(self, run_dir: Path) -> dict[str, Sequence[Chart]]:
        """Return the charts of clusters and of embeddings.png."""
        from fedproto_app.report.sequences import charts

        return charts.pictures(run_dir)

    @property
    def client_figures(self) -> Mapping[str, str]:
        """The metric of the kept models, the models in use, and the clients' own heads."""
        models = {
            "kept model": "_kept",
            "model of the last round": "",
            "client's own head": "_local",
        }
        return {label: self.metric + model for label, model in models.items()}

    def _metrics(self) -> dict[str, Metric]:
        """Return the clients' metrics by the name of the figure that is their mean."""
        return {
            self.metric: Metric(self.metric),
            f"{self.metric}_local": Metric(self.metric, Model.LOCAL),
            f"{self.metric}_global": Metric(self.metric, shared=True),
            f"{self.metric}_kept": Metric(self.metric, Model.KEPT),
            **{name: Metric(name) for name in self.extra_metrics},
            figure_of(self.validation): Metric(self.validation),
        }

    def _texts(self, summary: Mapping[str, Any], *figures: str) -> str:
        text = self.comparison[0].text
        texts = [text(summary[figure]) for figure in figures]
        return UNKNOWN if set(texts) == {UNKNOWN} else f"{' / '.join(texts)}{self.unit}"


class SequenceClassificationReport(SequenceReport):
    """Accuracies: fractions, 0 … 1, in the artefacts and percent on screen."""

    metric, title, unit, validation = "accuracy", "accuracy", " %", "validation-error"
    measure = Measure(
        summary="accuracy_kept",
        client="accuracy_kept",
        round="accuracy",
        larger_is_better=True,
        name="accuracy",
        axis="test accuracy",
        kept_figure="accuracy_kept",
        validation="kept_validation_error",
        round_validation="validation_error",
        percent=True,
    )
    client_errors = ClientErrors(
        test="accuracy_kept",
        validation="kept_validation_error",
        name="share of wrong answers",
        inputs=_INPUTS,
        right=True,
    )
    progress: tuple[Shown, ...] = (
        Shown("validation_error", "val error %", percent_text),
        Shown("accuracy", "accuracy %", percent_text),
        Shown("rand_index", "Rand", short_text),
    )
    clients: tuple[Shown, ...] = (
        Shown("accuracy_kept", "kept %", percent_text),
        Shown("accuracy", "last %", percent_text),
        Shown("accuracy_local", "own head %", percent_text),
    )
    every_client = clients
    comparison: tuple[Shown, ...] = (
        Shown("accuracy_kept", "kept %", percent_text, spread=True),
        Shown("accuracy", "last %", percent_text, spread=True),
        Shown("accuracy_rounds", "rounds %", percent_text, spread=True),
        Shown("rand_index_rounds", "Rand", short_text),
    )


class SequenceRegressionReport(SequenceReport):
    """Errors in the data's units."""

    metric, title, validation, extra_metrics = "rmse", "RMSE", "validation-rmse", ("mae",)
    measure = Measure(
        summary="rmse_kept",
        client="rmse_kept",
        round="rmse",
        larger_is_better=False,
        name="error",
        axis="test RMSE (the data's units)",
        kept_figure="rmse_kept",
        validation="kept_validation_rmse",
        round_validation="validation_rmse",
    )
    client_errors = ClientErrors("rmse_kept", "kept_validation_rmse", "RMSE", _INPUTS)
    progress: tuple[Shown, ...] = (
        Shown("validation_rmse", "val RMSE", short_text),
        Shown("rmse", "RMSE", short_text),
        Shown("rand_index", "Rand", short_text),
    )
    clients: tuple[Shown, ...] = (
        Shown("rmse_kept", "kept RMSE", short_text),
        Shown("rmse", "last RMSE", short_text),
        Shown("rmse_local", "own head RMSE", short_text),
    )
    every_client = clients
    comparison: tuple[Shown, ...] = (
        Shown("rmse_kept", "kept RMSE", short_text, spread=True),
        Shown("rmse", "last RMSE", short_text, spread=True),
        Shown("rmse_rounds", "rounds RMSE", short_text, spread=True),
        Shown("rand_index_rounds", "Rand", short_text),
    )


def settled(rand_indices: Sequence[tuple[int, float | None]]) -> int | None:
    """Return the first round from which the Rand index stays 1, None if it ends below 1.

    rand_indices: rounds in order with their Rand index; rounds without an index do not count.
    """
    first = None
    for number, value in rand_indices:
        if value is not None and value < 1:
            first = None
        elif value is not None and first is None:
            first = number
    return first


def _cluster_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures about clusters, [] for a method without clusters."""
    rows = []
    if summary["clusters"] is not None:
        rows.append(("clusters, last round", short_text(summary["clusters"])))
    if summary["rand_index"] is not None:
        last, mean = short_text(summary["rand_index"]), short_text(summary["rand_index_rounds"])
        since = summary["rand_index_settled"]
        rows.append(("Rand index, last / mean of all rounds", f"{last} / {mean}"))
        rows.append(("the true clusters from round (after the encoder's)", str(since or "never")))
    if summary["forgetting_factor_rounds"] is not None:
        mean = short_text(summary["forgetting_factor_rounds"])
        rows.append(("forgetting factor α, mean of all rounds", mean))
    return rows


def figure_of(metric: str) -> str:
    """Return a metric's name in the artefacts."""
    return metric.replace("-", "_")


def _method_figures(rounds: Sequence[Mapping[str, Any]], figure: str) -> list[float | None]:
    """Return a figure that the method reports for each round."""
    return [line["figures"].get(figure) for line in rounds]


def _mean(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return float(np.mean(numbers)) if numbers else None


def _last(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return numbers[-1] if numbers else None
