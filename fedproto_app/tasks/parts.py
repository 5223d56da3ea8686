"""The parts of a task, each imported when it is asked for.

So reading a table of results does not wait for torch, nor a client's process for other tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from fedproto_app.data.shard import Shard
    from fedproto_app.settings import Settings
    from fedproto_app.tasks.task import AnyTask


class Admission(NamedTuple):
    """Which clients of a source can take part.

    reasons: why each client cannot, None if it can. notes: what was done to the data, a line each.
    """

    reasons: dict[str, str | None]
    notes: Sequence[str] = ()


class TaskParts(ABC):
    """What a task is made of. Every task's folder has a subclass.

    small: settings of a run of seconds with 8 clients, for checks of methods.
    """

    small: ClassVar[Mapping[str, object]]

    @abstractmethod
    def task_class(self) -> type[AnyTask]:
        """Return the class of the task."""

    @abstractmethod
    def load(self, settings: Settings, partition: int, partitions: int) -> Shard:
        """Return every `partitions`-th client of the source, from the `partition`-th on.

        Raises `DataError` if the source cannot be read.
        """

    @abstractmethod
    def read(self, settings: Settings) -> None:
        """Read the source, for all nodes of this process and of those forked from it."""

    @abstractmethod
    def admission(self, settings: Settings) -> Admission:
        """Return which clients of the source can take part.

        Raises `DataError` if the source cannot be read.
        """

    def has_pool(self, loaded: object) -> bool:
        """Return whether a user's source that returned this object holds data of the task."""
        return False
