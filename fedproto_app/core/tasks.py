"""The table of tasks: what `task = "…"` selects, one row a task.

A new task is a row here, its sources in ``data/``, and a folder of one name in the rooms above,
which look there for its parts: ``tasks/FOLDER``, ``report/FOLDER`` and ``report/check/FOLDER.py``.
A part is imported when it is asked for, so reading a table of results does not wait for torch, nor
a client's process for pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedproto_app.core.errors import FedProtoError, did_you_mean


@dataclass(frozen=True)
class TaskRecord:
    """The facts of a task.

    folder: the name of its folder in every room. Tasks on the same data share them.
    holds: what its data are, in words. Tasks with the same word share their sources.
    targets: "classes" or "real numbers", or "" where sources of one kind do not hold either.
    draws: whether its check can draw which client holds which data.
    first_method: a method that runs in seconds, to try first.
    simplest: the methods that any other must beat, run without sharing.
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
    first_method="fed-react",
    simplest=("naive", "solo"),
)

TASKS: dict[str, TaskRecord] = {
    record.name: record
    for record in (_FORECASTING, _CLASSIFICATION, _SEQUENCE_CLASSIFICATION, _SEQUENCE_REGRESSION)
}
FIRST_TASK = "forecasting"  # of runs whose artefacts do not say


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
