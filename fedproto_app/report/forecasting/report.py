"""Report on forecasting runs: errors on the standardised scale and in the data's units."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING

import numpy as np

from fedproto_app.core.clients import metric_values
from fedproto_app.core.metrics import Model
from fedproto_app.report.run_files import Record
from fedproto_app.report.task_report import (
    WITHHELD,
    Row,
    TaskReport,
    client_rows,
    kept_model,
    mean_of,
    round_means,
    statistic_of,
    summary_statistics,
)
from fedproto_app.settings.fit import withholds_samples
from fedproto_app.tasks.forecasting.metrics import (
    BLOCK_FACTS,
    BLOCK_METRICS,
    FORECASTING,
    LEVELS,
    of_kept,
    step_metric,
)
from fedproto_app.tasks.metrics import error_text, percent_text, short_text

if TYPE_CHECKING:
    from fedproto_app.report.task_report import Results
    from fedproto_app.server.federation import Federation
    from fedproto_app.server.round_log import RoundLog

STEP_COLUMNS = ("step", "mse", "mse_median")
BLOCK_COLUMNS = ("client", "node", "step_seconds", "block_steps", "first_block")


class ForecastingReport(TaskReport):
    """The report of errors: of the kept models (best validation error per client) and the last."""

    metrics = FORECASTING

    def round_figures(self, log: RoundLog, results: Results, evaluated: bool) -> Record:
        """Return mean errors over all clients: of the latest models, then of the kept models."""
        figures = sorted(self.metrics.figures, key=lambda f: f.metric.model is Model.KEPT)
        return round_means(results if evaluated else {}, figures)

    def tables(self, federation: Federation) -> dict[str, list[Row]]:
        """Return ``clients.csv``, a row per client, ``steps.csv`` and ``blocks.csv``.

        ``steps.csv`` has the kept models' test MSE by step ahead. It is written if forecasts have
        several steps. ``blocks.csv`` has their test MAE by block. It is written if the errors of
        single clients are reported.
        """
        results, facts = federation.history.results, federation.members.facts
        hidden = withholds_samples(federation.settings)
        shares = ("" if hidden else f"{facts[key].missing_share:.6g}" for key in sorted(results))
        rows: list[Row] = [
            [*row[:4], share, *row[4:]]
            for share, row in zip(
                ("missing_share", *shares),
                client_rows(federation, self.metrics.figures),
                strict=True,
            )
        ]
        blocks = _blocks_table(results) if federation.settings.privacy.reported == "exact" else {}
        return {"clients.csv": rows, **_steps_table(results), **blocks}

    def summary_figures(self, federation: Federation, rounds: Sequence[Record]) -> Record:
        """Return plain means and medians over the clients, and means over the worst tenth."""
        return summary_statistics(federation, self.metrics.figures)

    def run_rows(self, summary: Record) -> list[tuple[str, str]]:
        """Return rows of errors on the standardised scale, unless a row says otherwise."""
        relative = (error_text(summary.get(f"{name}_median")) for name in ("mase", "wape"))
        return [
            (f"test MSE ({kept_model(summary)})", error_text(summary["mse"])),
            (f"test MAE ({kept_model(summary)})", error_text(summary["mae"])),
            ("median client's test MSE", error_text(summary.get("mse_median"))),
            ("worst tenth's mean test MSE", error_text(summary.get("mse_worst_tenth"))),
            ("MASE / WAPE of the median client", " / ".join(relative)),
            ("test MSE (last model)", error_text(summary["last_mse"])),
            ("test MAE (last model)", error_text(summary["last_mae"])),
            ("RMSE in the data's units", short_text(summary["rmse_units"])),
            ("MAE in the data's units", short_text(summary["mae_units"])),
            *(_interval_row(summary, level) for level in LEVELS),
        ]

    def in_words(self, summary: Record) -> str:
        """Compare the median client's error with a naive forecast."""
        mase = summary.get("mase_median")
        if summary["mse"] is None:
            return WITHHELD
        if mase is None:
            return f"The clients' mean test error (MSE, standardised) is {summary['mse']:.3g}"
        return (
            f"The median client's forecast error is {mase:.2f} times the error of repeating the "
            "value one period before, measured on the training data"
        )

    def curves(self, rounds: Sequence[Record]) -> dict[str, list[float | None]]:
        """Return the MSE on the standardised scale."""
        validation, test = self.metrics.validation.round.name, self.metrics.latest.round.name
        return {
            "training": [record["loss"].get("prediction") for record in rounds],
            "validation": [record[validation] for record in rounds],
            "test": [record[test] for record in rounds],
        }


def _steps_table(results: Results) -> dict[str, list[Row]]:
    rows: list[Row] = [STEP_COLUMNS]
    while values := metric_values(results, of_kept(step_metric(len(rows) - 1))):
        present = [value for value in values if not isnan(value)]  # see `ForecastingTask.judge`
        rows.append([len(rows), mean_of(present), statistic_of(np.median, present)])
    return {"steps.csv": rows} if len(rows) > 1 else {}


def _blocks_table(results: Results) -> dict[str, list[Row]]:
    """Return a row per client: the blocks of its test part, and each block's part of the MAE."""
    rows: list[list[object]] = []
    longest = 0
    for key, result in sorted(results.items()):
        if BLOCK_FACTS[0] in result.metrics:
            seconds, steps, first, *parts = (result.metrics[metric] for metric in BLOCK_METRICS)
            facts = [f"{seconds:.15g}", int(steps), int(first)]
            rows.append([key.client, key.node, *facts, *(f"{part:.6g}" for part in parts)])
            longest = max(longest, *(n for n, part in enumerate(parts, start=1) if part), 1)
    columns = (*BLOCK_COLUMNS, *(f"mae_{number}" for number in range(1, longest + 1)))
    return {"blocks.csv": [columns, *(row[: len(columns)] for row in rows)]} if rows else {}


def _interval_row(summary: Record, level: int) -> tuple[str, str]:
    """Return a row with the share of test values in the intervals, and the intervals' width."""
    covered = percent_text(summary.get(f"coverage_{level}"))
    width = short_text(summary.get(f"width_{level}"))
    return f"in the {level}% interval", f"{covered}%, width {width}"


REPORTS = {"forecasting": ForecastingReport}
