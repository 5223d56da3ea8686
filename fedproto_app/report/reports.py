"""The table of tasks' reports: what `task = "…"` selects here."""

from __future__ import annotations

from fedproto_app.errors import FedProtoError
from fedproto_app.report.task_report import TaskReport
from fedproto_app.tasks.forecasting.report import ForecastingReport
from fedproto_app.tasks.images.report import ClassificationReport
from fedproto_app.tasks.sequences.report import (
    SequenceClassificationReport,
    SequenceRegressionReport,
)

REPORTS: dict[str, TaskReport] = {
    "forecasting": ForecastingReport(),
    "classification": ClassificationReport(),
    "sequence-classification": SequenceClassificationReport(),
    "sequence-regression": SequenceRegressionReport(),
}
FIRST_TASK = "forecasting"  # of runs whose artefacts do not say


def report_for(task: str) -> TaskReport:
    """The report of a task; `FedProtoError` if the run is of a task that this version lacks."""
    if task not in REPORTS:
        raise FedProtoError(f"task = {task!r}: unknown here; known: {', '.join(REPORTS)}")
    return REPORTS[task]
