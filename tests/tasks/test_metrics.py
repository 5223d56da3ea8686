"""A task's metrics are declared once, and everything that reports them follows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from torch import Tensor

from fedproto_app.core.metrics import Metric
from fedproto_app.core.tasks import TASKS
from fedproto_app.experiments.invariants import SmallRuns, kept_models_predict
from fedproto_app.report.forecasting import report
from fedproto_app.report.runs import group_runs, read_clients, read_run
from fedproto_app.report.table import clients_table, comparison_columns
from fedproto_app.report.task_report import report_for
from fedproto_app.tasks.forecasting.metrics import FORECASTING, of_kept
from fedproto_app.tasks.forecasting.task import TASK_CLASSES, CohortSamples, ForecastingTask
from fedproto_app.tasks.metrics import Field, Figure
from fedproto_app.tasks.table import task_class

SMAPE = Metric("smape")
DECLARED = Figure(
    of_kept(SMAPE), column=Field("smape", "sMAPE"), summary=(Field("smape", "sMAPE"),)
)
WITH_SMAPE = replace(FORECASTING, figures=(*FORECASTING.figures, DECLARED))


class Task(ForecastingTask):
    metrics = WITH_SMAPE

    def judge(
        self, forecasts: Tensor, samples: CohortSamples, first: int = 0
    ) -> dict[Metric, list[float]]:
        truth, test = samples.targets[:, first:], samples.is_test[:, first:]
        terms = 2 * (forecasts - truth).abs() / (forecasts.abs() + truth.abs())
        smape = (terms * test).sum(dim=(1, 2)) / test.sum(dim=(1, 2))
        return {**super().judge(forecasts, samples, first), SMAPE: smape.tolist()}


class Report(report.ForecastingReport):
    metrics = WITH_SMAPE


def test_one_more_metric_is_its_computation_and_one_declaration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TASK_CLASSES, "forecasting", Task)
    monkeypatch.setitem(report.REPORTS, "forecasting", Report)
    runs = SmallRuns("forecasting", "fedavg", tmp_path)
    run = runs.run("one-node", 1)
    clients, summary = read_clients(run), read_run(run).summary
    assert list(clients.numbers)[-2:] == ["width_95", "smape"]
    values = clients["smape"].tolist()
    assert all(0 < value < 2 for value in values)
    assert summary["smape"] == pytest.approx(fmean(values))
    groups, _ = group_runs([read_run(run)])
    (texts,) = (texts for title, texts, _ in comparison_columns(groups) if title == "sMAPE")
    assert texts == [f"{summary['smape']:.4f}"]
    assert "sMAPE" in clients_table("forecasting", clients).columns
    checked = kept_models_predict(runs)
    assert checked.held, checked


@pytest.mark.parametrize("task", TASKS)
def test_no_two_figures_have_one_field_and_every_choice_is_a_figure(task: str) -> None:
    metrics = report_for(task).metrics
    assert metrics is task_class(task).metrics
    for names in (
        [figure.column.name for figure in metrics.figures],
        [figure.round.name for figure in metrics.figures],
        [field.name for figure in metrics.figures for field in figure.summary],
    ):
        assert max(Counter(filter(None, names)).values()) == 1
    chosen = (metrics.validation, metrics.kept_validation, metrics.headline, metrics.latest)
    assert {*chosen, metrics.kept} <= {*metrics.figures}
    assert {*metrics.orders.values()} <= {*metrics.comparison}
