"""The report of forecasting runs: errors on the standardised scale and in the data's units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedproto_app.metrics import Metric, Model
from fedproto_app.report.task_report import (
    Measure,
    Row,
    Shown,
    error_text,
    mean_metric,
    short_text,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fedproto_app.report.task_report import Results
    from fedproto_app.server.federation import Federation, RoundLog

CLIENT_COLUMNS = (
    "client", "node", "group", "samples", "missing_share", "kept_round",
    "mse", "mae", "rmse_units", "mae_units", "validation_mse", "last_mse", "last_mae",
)  # fmt: skip
_KEPT_COLUMNS = ("mse", "mae", "rmse-units", "mae-units", "validation-mse")


class ForecastingReport:
    """Errors of the kept models (best validation error per client) and of the last ones."""

    measure = Measure("mse", "mse", "test_mse", False, "error", "test MSE (standardised)")
    progress: tuple[Shown, ...] = (
        Shown("validation_mse", "val MSE", error_text),
        Shown("test_mse", "test MSE", error_text),
    )
    clients: tuple[Shown, ...] = (
        Shown("mse", "MSE", error_text),
        Shown("mae", "MAE", error_text),
        Shown("rmse_units", "RMSE (units)", short_text),
    )
    comparison: tuple[Shown, ...] = (
        Shown("mse", "MSE", error_text, spread=True),
        Shown("mae", "MAE", error_text, spread=True),
        Shown("last_mse", "last MSE", error_text),
    )
    caption = "last: the models of the last round"

    def round_figures(self, log: RoundLog, results: Results, evaluated: bool) -> dict[str, Any]:
        """Means over all clients of their latest models' errors and of the kept models'."""
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
        """``clients.csv``: a row per client with every final metric."""
        rows: list[Row] = [CLIENT_COLUMNS]
        for key, result in sorted(federation.results.items()):
            facts, metrics = federation.roster.facts[key], result.metrics
            rows.append(
                [
                    key.client,
                    key.node,
                    facts.group,
                    facts.samples,
                    f"{facts.missing_share:.6g}",
                    result.kept_round,
                    *(metrics[Metric(name, Model.KEPT)] for name in _KEPT_COLUMNS),
                    metrics[Metric("mse")],
                    metrics[Metric("mae")],
                ]
            )
        return {"clients.csv": rows}

    def summary_figures(
        self, federation: Federation, rounds: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Plain means over the clients."""
        metrics = {
            "mse": Metric("mse", Model.KEPT),
            "mae": Metric("mae", Model.KEPT),
            "last_mse": Metric("mse"),
            "last_mae": Metric("mae"),
            "rmse_units": Metric("rmse-units", Model.KEPT),
            "mae_units": Metric("mae-units", Model.KEPT),
        }
        return {figure: mean_metric(federation.results, one) for figure, one in metrics.items()}

    def run_rows(self, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Errors on the standardised scale unless a row says otherwise."""
        kept = "best validation" if summary["keep"] == "best-validation" else summary["keep"]
        return [
            (f"test MSE ({kept})", error_text(summary["mse"])),
            (f"test MAE ({kept})", error_text(summary["mae"])),
            ("test MSE (last model)", error_text(summary["last_mse"])),
            ("test MAE (last model)", error_text(summary["last_mae"])),
            ("RMSE in the data's units", short_text(summary["rmse_units"])),
            ("MAE in the data's units", short_text(summary["mae_units"])),
        ]

    def pictures(self, run_dir: Path) -> dict[str, Figure]:
        """clients-mse.png, rounds.png, divergence.png, and those of the clients' models."""
        from fedproto_app.tasks.forecasting.pictures import forecasting_pictures

        return forecasting_pictures(run_dir)
