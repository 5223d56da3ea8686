"""The table of tasks: what `task = "…"` selects, one row a task.

A new task is one folder in ``tasks/``, its sources in ``data/``, its report in ``report/``, and one
row. What a row names is imported when it is asked for, so reading a table of results does not wait
for torch, nor a client process for pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from fedproto_app.core.errors import FedProtoError, did_you_mean


@dataclass(frozen=True)
class TaskRecord:
    """One task. Its parts are "package.module:name".

    holds: what its data are, in words; tasks with the same word share their sources.
    targets: "classes" or "real numbers", where sources of one kind hold either; else "".
    sources: a mapping whose keys are the names of its sources.
    pool: the class that a user's own source hands over; "" = series.
    small: a mapping with the settings of a run of seconds, 8 clients, for checks of methods.
    options: names of settings and tables of `[data]` that apply to its data.
    draws: whether its check can draw which client holds which data.
    first_method: a method that runs in seconds, to try first.
    simplest: the methods that any other must beat, run without sharing.
    forecasts: whether its kept models forecast the next values of a series.
    task: the subclass of `Task`. report: the class of its `TaskReport`, without parameters.
    load: (settings, partition, partitions) → `Shard`, every `partitions`-th client of the source
        from the `partition`-th on. reasons_against: settings → for every client of the source why
        it cannot take part, or None. Both raise `DataError` if the source cannot be read.
    check: (settings, every) → `Checked`, the part of ``fedproto data check`` for its data: prints
        what a run would make of them, all rows if `every`.
    check_settings: settings → None, raises `SettingsError` for those that contradict each other;
        "" = none do.
    """

    name: str
    holds: str
    sources: str
    task: str
    load: str
    reasons_against: str
    report: str
    check: str
    small: str
    options: tuple[str, ...] = ()
    targets: str = ""
    pool: str = ""
    check_settings: str = ""
    draws: bool = False
    first_method: str = "analytic"
    simplest: tuple[str, ...] = ("naive", "analytic")
    forecasts: bool = False

    def part(self, name: str) -> Any:
        """Return the object that the field of this name refers to."""
        module, attribute = str(getattr(self, name)).split(":")
        return getattr(import_module(module), attribute)

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the embedded sources and of the file formats."""
        return tuple(self.part("sources"))


_TASKS = "fedproto_app.tasks"
_FORECASTING = TaskRecord(
    name="forecasting",
    holds="series",
    sources="fedproto_app.data.sources:SOURCES",
    task=f"{_TASKS}.forecasting.task:ForecastingTask",
    load=f"{_TASKS}.forecasting.clients:load_shard",
    reasons_against=f"{_TASKS}.forecasting.clients:reasons_against",
    report="fedproto_app.report.forecasting.report:ForecastingReport",
    check="fedproto_app.report.check.forecasting:check",
    small=f"{_TASKS}.small_runs:SERIES",
    options=(
        *("period", "close-window", "periodic-window", "train-share", "validation-share"),
        *("max-clients", "max-steps", "columns", "time-column", "client-column", "time-unit"),
        *("time-zone", "missing", "header", "delimiter", "decimal"),
    ),
    first_method="kindred",
    simplest=("naive", "seasonal-naive", "analytic"),
    forecasts=True,
)
_CLASSIFICATION = TaskRecord(
    name="classification",
    holds="images",
    sources="fedproto_app.data.images.sources:IMAGE_SOURCES",
    pool="fedproto_app.data.images.pool:ImagePool",
    task=f"{_TASKS}.images.task:ClassificationTask",
    load=f"{_TASKS}.images.clients:load_shard",
    reasons_against=f"{_TASKS}.images.clients:reasons_against",
    report="fedproto_app.report.images.report:ClassificationReport",
    check="fedproto_app.report.check.images:check",
    small=f"{_TASKS}.small_runs:IMAGES",
    check_settings=f"{_TASKS}.images.clients:require_fitting_settings",
    options=("partition", "classes", "corrupt-images", "max-clients"),
    draws=True,
)
_SEQUENCE_CLASSIFICATION = TaskRecord(
    name="sequence-classification",
    holds="labelled sequences",
    targets="classes",
    sources="fedproto_app.data.sequences.sources:SEQUENCE_SOURCES",
    pool="fedproto_app.data.sequences.pool:SequencePool",
    task=f"{_TASKS}.sequences.task:SequenceClassificationTask",
    load=f"{_TASKS}.sequences.clients:load_shard",
    reasons_against=f"{_TASKS}.sequences.clients:reasons_against",
    report="fedproto_app.report.sequences.report:SequenceClassificationReport",
    check="fedproto_app.report.check.sequences:check",
    small=f"{_TASKS}.small_runs:LABELLED_SEQUENCES",
    options=(
        *("sequences", "clusters", "classes", "train-share", "validation-share"),
        *("max-clients", "max-steps"),
    ),
    draws=True,
)
_SEQUENCE_REGRESSION = replace(
    _SEQUENCE_CLASSIFICATION,
    name="sequence-regression",
    targets="real numbers",
    first_method="fed-react",
    simplest=("naive", "solo"),
    task=f"{_TASKS}.sequences.task:SequenceRegressionTask",
    report="fedproto_app.report.sequences.report:SequenceRegressionReport",
    small=f"{_TASKS}.small_runs:MEASURED_SEQUENCES",
)

TASKS: dict[str, TaskRecord] = {
    record.name: record
    for record in (_FORECASTING, _CLASSIFICATION, _SEQUENCE_CLASSIFICATION, _SEQUENCE_REGRESSION)
}
FIRST_TASK = "forecasting"  # of runs whose artefacts do not say


def task_record(task: str) -> TaskRecord:
    """Return the row of a task; raise `FedProtoError` if this version lacks it."""
    if task not in TASKS:
        raise FedProtoError(f"task = {task!r}: unknown here; known: {', '.join(TASKS)}")
    return TASKS[task]


def require_known_task(task: str) -> str:
    """Return the name of a task in the table; raise `ValueError` for any other."""
    if task not in TASKS:
        raise ValueError(
            f"task = {task!r}: unknown; {did_you_mean(task, TASKS)}known: "
            f"{', '.join(map(repr, TASKS))}"
        )
    return task


def small_run(task: str) -> dict[str, Any]:
    """Return the settings of a run of a few seconds that checks a method on the task."""
    return {"task": task, **task_record(task).part("small")}
