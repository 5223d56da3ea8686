"""The parts of the task that the settings choose: its class, its clients, its metrics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from fedproto_app.core.errors import DataError
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.core.tasks import TASKS, TaskRecord, task_record

if TYPE_CHECKING:
    import torch

    from fedproto_app.data.shape import DataShape
    from fedproto_app.data.shard import Shard
    from fedproto_app.settings import DataSettings, Settings
    from fedproto_app.tasks.task import AnyTask


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
