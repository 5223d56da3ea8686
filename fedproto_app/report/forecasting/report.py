"""The report of forecasting runs: errors on the standardised scale and in the data's units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import metric_values
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.maths.client_errors import worst_tenth
from fedproto_app.report.task_report import (
    BETTER_OFF,
    ClientErrors,
    Measure,
    Order,
    Row,
    Shown,
    error_text,
    mean_metric,
    percent_text,
    short_text,
)
from fedproto_app.tasks.forecasting.intervals import LEVELS
from fedproto_app.tasks.forecasting.intervals import NAMES as INTERVAL_METRICS

if TYPE_CHECKING:
    from fedproto_app.core.charts import Chart, Section
    from fedproto_app.report.task_report import Results
    from fedproto_app.server.federation import Federation
    from fedproto_app.server.round_log import RoundLog

CLIENT_COLUMNS = (
    "client", "node", "group", "samples", "missing_share", "kept_round",
    "mse", "mae", "rmse_units", "mae_units", "validation_mse", "last_mse", "last_mae",
    "mase", "wape",
    *(name.replace("-", "_") for name in INTERVAL_METRICS),
)  # fmt: skip
STEP_COLUMNS = ("step", "mse", "mse_median")
_KEPT_COLUMNS = ("mse", "mae", "rmse-units", "mae-units", "validation-mse")


def relative_errors(metrics: Mapping[Metric, float]) -> dict[str, float | None]:
    """Return the errors of a client's kept model without a unit, None where undefined.

    mase: the MAE over the mean absolute seasonal difference of the train part (Hyndman and Koehler
    2006); None if the train part repeats exactly, for instance if it is constant. wape: Σ|e| / Σ|y|
    over the test part; None if all its values are 0.
    """
    error = metrics.get(Metric("mae-units", Model.KEPT))
    scales = {"mase": "seasonal-difference", "wape": "mean-size"}
    sizes = {name: metrics.get(Metric(scale, Model.KEPT), 0.0) for name, scale in scales.items()}
    return {
        name: error / size if error is not None and size > 0 else None
        for name, size in sizes.items()
    }


class ForecastingReport:
    """Errors of the kept models (best validation error per client) and of the last ones."""

    metric = "mse"
    client_figures: Mapping[str, str] = {"kept model": "mse", "last model": "last_mse"}
    measure = Measure(
        summary="mse",
        client="mse",
        round="test_mse",
        larger_is_better=False,
        name="error",
        axis="test MSE (standardised)",
        kept_figure="mse",
        validation="validation_mse",
        round_validation="validation_mse",
    )
    progress: tuple[Shown, ...] = (
        Shown("validation_mse", "val MSE", error_text),
        Shown("test_mse", "test MSE", error_text),
    )
    clients: tuple[Shown, ...] = (
        Shown("mse", "MSE", error_text),
        Shown("mae", "MAE", error_text),
        Shown("rmse_units", "RMSE (units)", short_text),
    )
    every_client: tuple[Shown, ...] = (
        *clients,
        Shown("mase", "MASE", short_text),
        Shown("wape", "WAPE", short_text),
        Shown("coverage_80", "in 80% interval %", percent_text),
    )
    comparison: tuple[Shown, ...] = (
        Shown("mse", "MSE", error_text, spread=True),
        Shown("mse_median", "median", error_text, spread=True),
        Shown("mse_worst_tenth", "worst tenth", error_text),
        Shown("mase", "MASE (mean)", error_text, only_csv=True),
        Shown("mase_median", "MASE", error_text),
        Shown("wape", "WAPE (mean)", error_text, only_csv=True),
        Shown("wape_median", "WAPE", error_text, only_csv=True),
        Shown("mae", "MAE", error_text),
        Shown("last_mse", "last MSE", error_text, only_csv=True),
        Shown(BETTER_OFF, "better off %", percent_text),
    )
    caption = (
        "over clients: MSE and MAE the mean, median of the MSE, mean MSE of the worst tenth, MASE "
        "the median; better off: clients below the best run that shares nothing"
    )
    client_errors: ClientErrors | None = ClientErrors(
        test="mse",
        validation="validation_mse",
        name="MSE",
        inputs=("path", "calendar"),
        orders={
            "median": Order("mse_median"),
            "mean": Order("mse"),
            "mase": Order("mase_median"),
            "worst": Order("mse_worst_tenth"),
            "better": Order(BETTER_OFF, larger_is_better=True),
        },
    )

    def round_figures(self, log: RoundLog, results: Results, evaluated: bool) -> dict[str, Any]:
        """Return mean errors over all clients, of their latest and of their kept models."""
        metrics = {
            "validation_mse": Metric("validation-mse"),
            "test_mse": Metric("mse"),
            "test_mae": Metric("mae"),
            "kept_test_mse": Metric("mse", Model.KEPT),
            "kept_test_mae": Metric("mae", Model.KEPT),
        }
        return {
            figure: mean_metric(results, metric) if evaluated else None
            for figure, metric in metrics.items()
        }

    def tables(self, federation: Federation) -> dict[str, list[Row]]:
        """Return ``clients.csv``, a row per client, and ``steps.csv``.

        ``steps.csv`` has the kept models' test MSE by step ahead, if there are several steps.
        """
        rows: list[Row] = [CLIENT_COLUMNS]
        for key, result in sorted(federation.history.results.items()):
            facts, metrics = federation.members.facts[key], result.metrics
            rows.append(
                [
                    key.client,
                    key.node,
                    facts.group,
                    facts.samples,
                    f"{facts.missing_share:.6g}",
                    result.kept_round,
                    *(metrics.get(Metric(name, Model.KEPT), "") for name in _KEPT_COLUMNS),
                    metrics.get(Metric("mse"), ""),
                    metrics.get(Metric("mae"), ""),
                    *relative_errors(metrics).values(),
                    *(metrics.get(Metric(name, Model.KEPT), "") for name in INTERVAL_METRICS),
                ]
            )
        return {"clients.csv": rows, **_steps_table(federation.history.results)}

    def summary_figures(
        self, federation: Federation, rounds: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Return plain means, medians, and means of the worst tenth over the clients."""
        results = federation.history.results
        means = {
            "mse": Metric("mse", Model.KEPT),
            "mae": Metric("mae", Model.KEPT),
            "last_mse": Metric("mse"),
            "last_mae": Metric("mae"),
            "rmse_units": Metric("rmse-units", Model.KEPT),
            "mae_units": Metric("mae-units", Model.KEPT),
            **{name.replace("-", "_"): Metric(name, Model.KEPT) for name in INTERVAL_METRICS},
        }
        mse, mae = (metric_values(results, means[figure]) for figure in ("mse", "mae"))
        relative = [relative_errors(result.metrics) for _, result in sorted(results.items())]
        mase, wape = (
            [errors[name] for errors in relative if errors[name] is not None]
            for name in ("mase", "wape")
        )
        return {
            **{figure: mean_metric(results, metric) for figure, metric in means.items()},
            "mse_median": _statistic_of(np.median, mse),
            "mse_worst_tenth": _statistic_of(worst_tenth, mse),
            "mae_median": _statistic_of(np.median, mae),
            "mase": _statistic_of(np.mean, mase),
            "mase_median": _statistic_of(np.median, mase),
            "wape": _statistic_of(np.mean, wape),
            "wape_median": _statistic_of(np.median, wape),
        }

    def run_rows(self, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return errors on the standardised scale unless a row says otherwise."""
        model = "best validation" if summary["keep"] == "best-validation" else summary["keep"]
        return [
            (f"test MSE ({model})", error_text(summary["mse"])),
            (f"test MAE ({model})", error_text(summary["mae"])),
            ("median client's test MSE", error_text(summary.get("mse_median"))),
            ("worst tenth's mean test MSE", error_text(summary.get("mse_worst_tenth"))),
            (
                "MASE / WAPE of the median client",
                _error_texts(summary, "mase_median", "wape_median"),
            ),
            ("test MSE (last model)", error_text(summary["last_mse"])),
            ("test MAE (last model)", error_text(summary["last_mae"])),
            ("RMSE in the data's units", short_text(summary["rmse_units"])),
            ("MAE in the data's units", short_text(summary["mae_units"])),
            *_interval_rows(summary),
        ]

    def in_words(self, summary: Mapping[str, Any]) -> str:
        """Compare the median client's error with a naive forecast."""
        mase = summary.get("mase_median")
        if mase is None:
            return f"The clients' mean test error (MSE, standardised) is {summary['mse']:.3g}"
        return (
            f"The median client's forecast error is {mase:.2f} times the error of repeating the "
            "value one period before, measured on the training data"
        )

    def curves(self, rounds: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
        """Return the MSE on the standardised scale."""
        return {
            "training": [record["loss"].get("prediction") for record in rounds],
            "validation": [record["validation_mse"] for record in rounds],
            "test": [record["test_mse"] for record in rounds],
        }

    def sections(self, runs: Mapping[str, Path], first: str) -> list[Section]:
        """Return sections on error by step, forecasts of single clients, and similar clients."""
        from fedproto_app.report.forecasting import charts

        return charts.sections(runs, first)

    def pictures(self, run_dir: Path) -> dict[str, Sequence[Chart]]:
        """Return the charts of divergence.png, filter.png and forecast.png."""
        from fedproto_app.report.forecasting import charts

        return charts.pictures(run_dir)


def _steps_table(results: Results) -> dict[str, list[Row]]:
    from fedproto_app.tasks.forecasting.task import step_metric  # only a run needs torch

    rows: list[Row] = [STEP_COLUMNS]
    while values := metric_values(results, replace(step_metric(len(rows) - 1), model=Model.KEPT)):
        rows.append([len(rows), _statistic_of(np.mean, values), _statistic_of(np.median, values)])
    return {"steps.csv": rows} if len(rows) > 1 else {}


def _statistic_of(
    statistic: Callable[[NDArray[np.float64]], Any], values: Sequence[float | None]
) -> float | None:
    return float(statistic(np.array(values, dtype=np.float64))) if values else None


def _error_texts(summary: Mapping[str, Any], *figures: str) -> str:
    return " / ".join(error_text(summary.get(figure)) for figure in figures)


def _interval_rows(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how often the test part's values lie in the intervals, and the intervals' widths."""
    rows = []
    for level in LEVELS:
        covered = percent_text(summary.get(f"coverage_{level}"))
        width = short_text(summary.get(f"width_{level}"))
        rows.append((f"in the {level}% interval", f"{covered}%, width {width}"))
    return rows
