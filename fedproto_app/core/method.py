"""The records of a method and of phases before it, which `method = "…"` selects on each side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

from fedproto_app.core.section import Section

SectionT = TypeVar("SectionT", bound=Section)


class _Partition(Protocol):
    @property
    def scheme(self) -> str: ...
    @property
    def stages(self) -> int: ...


class _Data(Protocol):
    @property
    def partition(self) -> _Partition: ...


class _Encoder(Protocol):
    @property
    def path(self) -> str: ...
    @property
    def file(self) -> Path: ...
    @property
    def rounds(self) -> int: ...


class _Graph(Protocol):
    @property
    def source(self) -> str: ...


class _Aggregation(Protocol):
    @property
    def rule(self) -> str: ...
    @property
    def secure(self) -> bool: ...


class _Privacy(Protocol):
    @property
    def mechanism(self) -> str: ...
    @property
    def is_on(self) -> bool: ...


class RunSettings(Protocol):
    """The part of a run's `settings.Settings` that a method's record reads.

    The module `settings` imports this one, because it needs the records to read a configuration.
    """

    @property
    def task(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def rounds(self) -> int: ...
    @property
    def evaluate_every(self) -> int: ...
    @property
    def patience(self) -> int: ...
    @property
    def keep(self) -> str: ...
    @property
    def data(self) -> _Data: ...
    @property
    def encoder(self) -> _Encoder: ...
    @property
    def graph(self) -> _Graph: ...
    @property
    def aggregation(self) -> _Aggregation: ...
    @property
    def privacy(self) -> _Privacy: ...

    def method_table(self, kind: type[SectionT]) -> SectionT:
        """Return the method's settings, which are of this class."""


SEQUENCE_TASKS = ("sequence-classification", "sequence-regression")

# A class, or "package.module:Class", which is imported when it is needed. Or one of them per task.
Part = str | type[Any]
ByTask = Part | Mapping[str, Part]
PartT = TypeVar("PartT", bound=Part)


def for_task(part: PartT | Mapping[str, PartT], task: str) -> PartT:
    """Return the part of a method for a task. It may be the same for all tasks."""
    return part[task] if isinstance(part, Mapping) else part


@dataclass(frozen=True)
class Pretraining:
    """A phase before the method's own rounds, and what the clients work with afterwards.

    A run may have several such phases. All of them then have the same `strategy` and `samples`.

    Fields that are texts name "package.module:NAME", which is imported when it is needed.

    table: the table of `Settings` that both halves get.
    rounds: how many rounds the phase adds to the method's, 0 if the settings name its result.
    check: raises `SettingsError` before a simulation starts if its server lacks a file.
    model: makes the clients' models if the settings name no module:
        (settings, `DataShape`) → `Model`.
    strategy: the server's half of all phases: (settings, federation, the method's strategy).
    learner: the clients' half of this phase: (training, table, task).
    samples: turns the samples of a node's clients into samples for the method's own rounds:
        (shard, clients' names, an order's arrays, task, store) → `Shard`.
    """

    table: str
    rounds: Callable[[RunSettings], int]
    check: Callable[[RunSettings], None]
    model: str
    strategy: str
    learner: str
    samples: str

    def section(self, settings: RunSettings) -> Section:
        """Return the phase's table in these settings."""
        section = getattr(settings, self.table)
        assert isinstance(section, Section)
        return section


@dataclass(frozen=True)
class Method:
    """A method of federated learning.

    name: the method's name in settings, tables, run folders and summaries.
    title: its title for readers of tables and reports, one for all tasks or one for each. If it is
        "", the name is the title.
    strategy, learner: the server's and the clients' half.
    settings: the class of its table of settings. Both halves get the table.
    tasks: the tasks that it works with, () for all.
    table: the name of its table in the settings, "" for the method's name.
    model: "package.module:function", which makes the method's own models. For series it is
        (settings, `WindowLayout`) → `Model`, else (settings, `DataShape`) → `Model`. If it is "",
        the settings choose the model.
    rounds: gives the number of rounds if the method decides this and not the settings.
    pretraining: the phase that the method brings before its own rounds, if any.
    learns_without_labels: whether a run can use sequences without a label.
    learns_from_validation: whether the arrays that clients send also depend on their validation
        samples. These then count among the samples that clients declare.
    scaling: how labelled sequences are scaled if ``data.sequences.scaling`` is auto.
    check: raises `SettingsError` or ValueError for settings that the method cannot work with.
    needs_simulation: why sites with data of their own cannot run it, in words, "" if they can.
    cannot_predict: returns why kept models do not predict by themselves, in words, or "".
    joined_clients: for series whose clients see other clients' values: "package.module:function",
        which makes a node's clients: (settings, the node's series, all of the source) → `Shard`.
        If it is "", every client sees only its own values.
    by_time: whether the server must know the times of each client's samples.
    small: further settings for runs of a few seconds that test the method.
    check_clients: raises `SettingsError` if too few clients can take part.
    """

    name: str
    strategy: ByTask = field(hash=False)
    learner: ByTask = field(hash=False)
    settings: type[Section] = Section
    title: str | Mapping[str, str] = field(default="", hash=False)
    tasks: tuple[str, ...] = ()
    table: str = ""
    model: str | Mapping[str, str] = field(default="", hash=False)
    rounds: Callable[[RunSettings], int] | None = None
    pretraining: Pretraining | None = None
    learns_without_labels: Callable[[RunSettings], bool] = lambda settings: False
    learns_from_validation: Callable[[RunSettings], bool] = lambda settings: False
    scaling: Literal["sequence", "client", "none"] = "sequence"
    needs_simulation: str = ""
    cannot_predict: Callable[[RunSettings], str] = lambda settings: ""
    joined_clients: str = ""
    by_time: bool = False
    small: Mapping[str, object] = field(default_factory=dict, hash=False)
    check: Callable[[RunSettings], None] | None = None
    check_clients: Callable[[RunSettings, int], None] | None = None

    @property
    def table_name(self) -> str:
        """The name of the method's table in the settings."""
        return self.table or self.name

    def title_for(self, task: str) -> str:
        """Return the method's title in reports on this task."""
        return for_task(self.title, task) or self.name

    def works_with(self, task: str) -> bool:
        """Whether the method can learn this task."""
        return not self.tasks or task in self.tasks
