"""Look up the parts of the task that the settings choose: its class, clients and metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedproto_app.core.errors import DataError
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.core.tasks import FIRST_TASK, TASKS, TaskRecord, task_record

if TYPE_CHECKING:
    import torch

    from fedproto_app.data.shape import DataShape
    from fedproto_app.data.shard import Shard
    from fedproto_app.settings import DataSettings, Settings
    from fedproto_app.tasks.task import AnyTask


class Admission(NamedTuple):
    """Which clients of a source can take part.

    reasons: why each client cannot take part, None if it can. notes: what was done to the data, a
    line each.
    """

    reasons: dict[str, str | None]
    notes: Sequence[str] = ()


class Clients(Protocol):
    """The module `clients` in a task's folder.

    POOLS: the types that a user's source for this task returns, if no other task has them.
    """

    POOLS: tuple[type, ...]

    def load_shard(self, settings: Settings, partition: int, partitions: int) -> Shard:
        """Return every `partitions`-th client of the source, from the `partition`-th on."""

    def read(self, settings: Settings) -> None:
        """Read the source for all nodes of this process and of processes forked from it."""

    def admission(self, settings: Settings) -> Admission:
        """Return which clients of the source can take part, without cutting or decoding them."""


def small_run(task: str) -> dict[str, object]:
    """Return the settings of a run with 8 clients that checks a method in a few seconds."""
    return {"task": task, **_folder(task).SMALL_RUNS[task]}


def task_class(task: str) -> type[AnyTask]:
    """Return the class of a task."""
    chosen: type[AnyTask] = _folder(task, ".task").TASK_CLASSES[task]
    return chosen


def clients_of(task: str) -> Clients:
    """Return the module that loads a task's clients."""
    module: Clients = _folder(task, ".clients")
    return module


def _folder(task: str, module: str = "") -> Any:
    """Return a module of the task's folder, which is imported only when it is asked for.

    So a table of results can be read without waiting for torch, and a client's process does not
    load other tasks. Raise `FedProtoError` for an unknown task.
    """
    return import_module(f"fedproto_app.tasks.{task_record(task).folder}{module}")


def make_task(settings: Settings, shape: DataShape, device: torch.device | None = None) -> AnyTask:
    """Return the task that the settings choose, for data of this shape."""
    return task_class(settings.task)(settings, shape, device)


def expected_metrics(settings: Settings) -> tuple[Metric, ...]:
    """Return the metrics that an evaluated client must report, for its latest and kept models."""
    required = task_class(settings.task).required_metrics(settings)
    of_kept_models = (replace(metric, model=Model.KEPT) for metric in required)
    return tuple(dict.fromkeys((*required, *of_kept_models)))


def load_shard(settings: Settings, partition: int, partitions: int) -> Shard:
    """Load every `partitions`-th client of the source, from the `partition`-th on.

    With partition 0 of 1, these are all clients. Raise `DataError` if the source fits another task
    or cannot be read. Clients that cannot take part are listed.
    """
    require_fitting_source(settings)
    shard = clients_of(settings.task).load_shard(settings, partition, partitions)
    _require_names([*shard.clients, *shard.refused])
    return shard


def admission(settings: Settings) -> Admission:
    """Return which clients of the run's data can take part, and what was done to the data.

    No window is cut and no image is decoded. Raises `DataError` if the source fits another task,
    cannot be read, or has too few samples to deal out.
    """
    require_fitting_source(settings)
    result = clients_of(settings.task).admission(settings)
    _require_names(result.reasons)
    return result


def _require_names(clients: Iterable[str]) -> None:
    """Raise `DataError` for a client whose name cannot be stored, sent or printed."""
    from fedproto_app.core.messages import name_fault  # imports NumPy, which settings do without

    for name in clients:
        if fault := name_fault(name):
            raise DataError(f"client {name[:80]!a}: its name {fault}; rename it in the data")


def require_fitting_source(settings: Settings) -> None:
    """Raise `DataError` for a source of another task. Users' functions are not checked here."""
    from fedproto_app.data.format import all_sources, sources_of

    chosen = task_record(settings.task)
    source = all_sources().get(settings.data.source)
    if source is not None and source.holds != chosen.holds:
        fitting_tasks = " or ".join(repr(fitting.name) for fitting in _holding(source.holds))
        raise DataError(
            f"data.source = {source.name!r} holds {source.holds}; set task = {fitting_tasks}, or "
            f"data.source to {chosen.holds}: {', '.join(sources_of(chosen.holds))} or "
            "package.module:factory"
        )


def require_fitting_targets(settings: Settings, targets: str) -> None:
    """Raise `DataError` if the data's targets do not fit the task.

    targets: the data's, "classes" or "real numbers". Tasks that take both are not checked.
    """
    record = task_record(settings.task)
    if record.targets and record.targets != targets:
        raise DataError(
            f"task = {settings.task!r}: the targets of data.source = {settings.data.source!r} are "
            f"{targets}; set task = {fitting_task(record.holds, targets)!r}"
        )


def fitting_task(holds: str, targets: str) -> str:
    """Return the name of the task for data of this kind with these targets."""
    return next(record.name for record in _holding(holds) if record.targets == targets)


def record_of_source(settings: DataSettings) -> TaskRecord:
    """Return the first task for the source's kind of data. A source that is a function is called.

    Raises `DataError` for an unknown source.
    """
    from fedproto_app.data.format import sources_of
    from fedproto_app.data.source_checks import require_known, users_function

    source, records = settings.source, TASKS.values()
    if ":" in source:
        loaded = users_function(source)(settings)
        fitting = (r for r in records if isinstance(loaded, clients_of(r.name).POOLS))
        return next(fitting, task_record(FIRST_TASK))
    kinds = dict.fromkeys(record.holds for record in records)
    require_known(settings, [name for kind in kinds for name in sources_of(kind)])
    return next(record for record in records if source in sources_of(record.holds))


def _holding(holds: str) -> Iterable[TaskRecord]:
    return (record for record in TASKS.values() if record.holds == holds)
