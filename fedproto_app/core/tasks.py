"""The table of tasks: what `task = "…"` selects. Each task has one row.

A new task needs a row here, sources in ``data/``, and its parts in three packages, under the name
that the row gives as `folder`: ``tasks/FOLDER``, ``report/FOLDER`` and
``report/check/FOLDER.py``. A part is imported when it is asked for. So nobody who reads a table of
results waits for torch, and no client's process waits for code that draws pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedproto_app.core.errors import FedProtoError, did_you_mean


@dataclass(frozen=True)
class TaskRecord:
    """The facts of a task.

    folder: the name of its folder in every package. Tasks on the same data share one.
    holds: what its data are, in words. Tasks with the same word share their sources.
    targets: "classes" or "real numbers" if sources of its data may have either, else "".
    draws: whether its check can draw a picture that shows which client holds which data.
    first_method: a method that runs in seconds, to try first.
    simplest: the methods that any other must beat. They run without sharing.
    forecasts: whether its kept models forecast the next values of a series.
    """

    name: str
    folder: str
    holds: str
    targets: str = ""
    draws: bool = False
    first_method: str = "analytic"
    simplest: tuple[str, ...] = ("naive", "analytic")
    forecasts: bool = False


_FORECASTING = TaskRecord(
    name="forecasting",
    folder="forecasting",
    holds="series",
    first_method="kindred",
    simplest=("naive", "seasonal-naive", "mean", "analytic"),
    forecasts=True,
)
_CLASSIFICATION = TaskRecord(
    name="classification",
    folder="images",
    holds="images",
    draws=True,
)
_SEQUENCE_CLASSIFICATION = TaskRecord(
    name="sequence-classification",
    folder="sequences",
    holds="labelled sequences",
    targets="classes",
    draws=True,
)
_SEQUENCE_REGRESSION = replace(
    _SEQUENCE_CLASSIFICATION,
    name="sequence-regression",
    targets="real numbers",
    first_method="fedavg",
    simplest=("naive", "solo"),
)

TASKS: dict[str, TaskRecord] = {
    record.name: record
    for record in (_FORECASTING, _CLASSIFICATION, _SEQUENCE_CLASSIFICATION, _SEQUENCE_REGRESSION)
}
FIRST_TASK = "forecasting"  # also the task of runs whose artefacts name none


def task_record(task: str) -> TaskRecord:
    """Return the row of a task, or raise `FedProtoError` if this version lacks it."""
    if task not in TASKS:
        raise FedProtoError(f"task = {task!r}: unknown here; known: {', '.join(TASKS)}")
    return TASKS[task]


def require_known_task(task: str) -> str:
    """Return the name of a task in the table, or raise `ValueError` for any other."""
    if task not in TASKS:
        raise ValueError(
            f"task = {task!r}: unknown; {did_you_mean(task, TASKS)}known: "
            f"{', '.join(map(repr, TASKS))}"
        )
    return task
