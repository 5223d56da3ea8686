"""The table of tasks: what `task = "…"` selects, one row a task.

A new task is one folder here with its task, clients, check and report, its sources in ``data/``,
and one row. What a row names is imported when it is asked for, so reading a table of results does
not wait for torch, nor a client process for pictures; the settings know tasks by this table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedproto_app.core.errors import DataError, FedProtoError, did_you_mean
from fedproto_app.core.metrics import Metric, Model

if TYPE_CHECKING:
    import torch

    from fedproto_app.data.shape import DataShape
    from fedproto_app.data.shard import Shard
    from fedproto_app.report.task_report import TaskReport
    from fedproto_app.settings import DataSettings, Settings
    from fedproto_app.tasks.task import AnyTask


@dataclass(frozen=True)
class TaskRecord:
    """One task. Its parts are "package.module:name".

    holds: what its data are, in words; tasks with the same word share their sources.
    targets: "classes" or "real numbers", where sources of one kind hold either; else "".
    sources: a mapping whose keys are the names of its sources.
    pool: the class that a user's own source hands over; "" = series.
    small: a mapping with the settings of a run of seconds, 8 clients, for checks of methods.
    options: names of settings and tables of `[data]` that mean something for its data.
    draws: whether its check can draw who holds what.
    first_method: a method that needs seconds, to try first.
    forecasts: whether its kept models say the next values of a series.
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
    forecasts: bool = False

    def part(self, name: str) -> Any:
        """What one of the strings above names."""
        module, attribute = str(getattr(self, name)).split(":")
        return getattr(import_module(module), attribute)

    @property
    def source_names(self) -> tuple[str, ...]:
        """The embedded sources and those of files."""
        return tuple(self.part("sources"))


_HERE = "fedproto_app.tasks"
_FORECASTING = TaskRecord(
    name="forecasting",
    holds="series",
    sources="fedproto_app.data.sources:SOURCES",
    task=f"{_HERE}.forecasting.task:ForecastingTask",
    load=f"{_HERE}.forecasting.clients:load_shard",
    reasons_against=f"{_HERE}.forecasting.clients:reasons_against",
    report=f"{_HERE}.forecasting.report:ForecastingReport",
    check=f"{_HERE}.forecasting.check:check",
    small=f"{_HERE}.small_runs:SERIES",
    options=(
        *("period", "close-window", "periodic-window", "train-share", "validation-share"),
        *("max-clients", "max-steps", "columns", "time-column", "client-column", "time-unit"),
        *("header", "delimiter", "decimal"),
    ),
    first_method="kindred",
    forecasts=True,
)
_CLASSIFICATION = TaskRecord(
    name="classification",
    holds="images",
    sources="fedproto_app.data.images.sources:IMAGE_SOURCES",
    pool="fedproto_app.data.images.pool:ImagePool",
    task=f"{_HERE}.images.task:ClassificationTask",
    load=f"{_HERE}.images.clients:load_shard",
    reasons_against=f"{_HERE}.images.clients:reasons_against",
    report=f"{_HERE}.images.report:ClassificationReport",
    check=f"{_HERE}.images.check:check",
    small=f"{_HERE}.small_runs:IMAGES",
    check_settings=f"{_HERE}.images.clients:require_fitting_settings",
    options=("partition", "classes", "corrupt-images", "max-clients"),
    draws=True,
)
_SEQUENCE_CLASSIFICATION = TaskRecord(
    name="sequence-classification",
    holds="labelled sequences",
    targets="classes",
    sources="fedproto_app.data.sequences.sources:SEQUENCE_SOURCES",
    pool="fedproto_app.data.sequences.pool:SequencePool",
    task=f"{_HERE}.sequences.task:SequenceClassificationTask",
    load=f"{_HERE}.sequences.clients:load_shard",
    reasons_against=f"{_HERE}.sequences.clients:reasons_against",
    report=f"{_HERE}.sequences.report:SequenceClassificationReport",
    check=f"{_HERE}.sequences.check:check",
    small=f"{_HERE}.small_runs:LABELLED_SEQUENCES",
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
    task=f"{_HERE}.sequences.task:SequenceRegressionTask",
    report=f"{_HERE}.sequences.report:SequenceRegressionReport",
    small=f"{_HERE}.small_runs:MEASURED_SEQUENCES",
)

TASKS: dict[str, TaskRecord] = {
    record.name: record
    for record in (_FORECASTING, _CLASSIFICATION, _SEQUENCE_CLASSIFICATION, _SEQUENCE_REGRESSION)
}
FIRST_TASK = "forecasting"  # of runs whose artefacts do not say


def task_record(task: str) -> TaskRecord:
    """The row of a task; `FedProtoError` if this version lacks it."""
    if task not in TASKS:
        raise FedProtoError(f"task = {task!r}: unknown here; known: {', '.join(TASKS)}")
    return TASKS[task]


def require_known_task(task: str) -> str:
    """The name, if it is one of the table's; else `ValueError`."""
    if task not in TASKS:
        raise ValueError(
            f"task = {task!r}: unknown; {did_you_mean(task, TASKS)}known: "
            f"{', '.join(map(repr, TASKS))}"
        )
    return task


def task_class(task: str) -> type[AnyTask]:
    """The class of a task."""
    chosen: type[AnyTask] = task_record(task).part("task")
    return chosen


def make_task(settings: Settings, shape: DataShape, device: torch.device | None = None) -> AnyTask:
    """The task that the settings choose, on data of this shape."""
    return task_class(settings.task)(settings, shape, device)


def expected_metrics(settings: Settings) -> tuple[Metric, ...]:
    """What an evaluated client must report: of its latest model and of its kept one."""
    required = task_class(settings.task).required_metrics(settings)
    return (*required, *(replace(metric, model=Model.KEPT) for metric in required))


def report_for(task: str) -> TaskReport:
    """The report of a task; `FedProtoError` if the run is of a task that this version lacks."""
    report: TaskReport = task_record(task).part("report")()
    return report


def load_shard(settings: Settings, partition: int, partitions: int) -> Shard:
    """Every `partitions`-th client of the source, from the `partition`-th on (0 and 1: all).

    Raises `DataError` if the source fits another task or cannot be read; clients that cannot take
    part are listed.
    """
    require_fitting_source(settings)
    shard: Shard = task_record(settings.task).part("load")(settings, partition, partitions)
    return shard


def reasons_against(settings: Settings) -> dict[str, str | None]:
    """For every client of the run's data why it cannot take part, None for one that can.

    Told before a window is cut or an image decoded. Raises `DataError` if the source fits another
    task, cannot be read, or has too little for what the settings deal out.
    """
    require_fitting_source(settings)
    reasons: dict[str, str | None] = task_record(settings.task).part("reasons_against")(settings)
    return reasons


def check_settings(settings: Settings) -> None:
    """`SettingsError` for settings that contradict each other under their task."""
    record = task_record(settings.task)
    if record.check_settings:
        record.part("check_settings")(settings)


def small_run(task: str) -> dict[str, Any]:
    """The settings of a run of seconds, which check a method on the task."""
    return {"task": task, **task_record(task).part("small")}


def require_fitting_source(settings: Settings) -> None:
    """Refuse a source of another task; a user's own function shows only when it is called."""
    source, wanted = settings.data.source, task_record(settings.task)
    for record in TASKS.values():
        if source in record.source_names and record.holds != wanted.holds:
            fitting = " or ".join(repr(one.name) for one in _holding(record.holds))
            raise DataError(
                f"data.source = {source!r} holds {record.holds}; set task = {fitting}, or "
                f"data.source to {wanted.holds}: {', '.join(wanted.source_names)} or "
                "package.module:factory"
            )


def require_fitting_targets(settings: Settings, targets: str) -> None:
    """Refuse data with classes where numbers are to be predicted, and the other way round.

    targets: what the data have, "classes" or "real numbers". A task of other data is left alone.
    """
    wanted = task_record(settings.task)
    if wanted.targets and wanted.targets != targets:
        raise DataError(
            f"task = {settings.task!r}: the targets of data.source = {settings.data.source!r} are "
            f"{targets}; set task = {fitting_task(wanted.holds, targets)!r}"
        )


def fitting_task(holds: str, targets: str) -> str:
    """The task for data of this kind with these targets."""
    return next(one.name for one in _holding(holds) if one.targets == targets)


def record_of_source(settings: DataSettings) -> TaskRecord:
    """The first task for what the source holds; a user's own function is called to see it.

    Raises `DataError` for an unknown source.
    """
    from fedproto_app.data.source_checks import require_known, users_function

    source, records = settings.source, TASKS.values()
    if ":" in source:
        given = users_function(source)(settings)
        pools = [one for one in records if one.pool and isinstance(given, one.part("pool"))]
        return pools[0] if pools else next(one for one in records if not one.pool)
    require_known(settings, dict.fromkeys(name for one in records for name in one.source_names))
    return next(one for one in records if source in one.source_names)


def _holding(holds: str) -> Iterable[TaskRecord]:
    return (record for record in TASKS.values() if record.holds == holds)
