"""The record of a method: what `method = "…"` selects on each side."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedproto_app.settings.run import Settings
    from fedproto_app.settings.section import Section

SEQUENCE_TASKS = ("sequence-classification", "sequence-regression")

ByTask = str | Mapping[str, str]  # one for all tasks, or one for each


def for_task(part: ByTask, task: str) -> str:
    """What a part of a method is for a task."""
    return part if isinstance(part, str) else part[task]


@dataclass(frozen=True)
class Method:
    """A method of federated learning.

    name: in tables, run folders and summaries; of the app's own methods also in the settings.
    strategy, learner: the server's and the clients' half, "package.module:Class"; where they
        depend on the task, one for each.
    settings: the class of the table ``[own]``, for methods from outside the app.
    section: the method's own numbers, of all settings of a run; both halves get them.
    tasks: those that it works with; empty: all.
    model: what makes its own models, for each task if there are several: of series (settings,
        `WindowLayout`) → `Model`, else (settings, `DataShape`) → `Model`. "": the settings choose
        the model.
    rounds: as many as it has, where that is not for the settings to say.
    encoder_first: whether it learns an encoder of sequences without labels first, in rounds of
        their own.
    guesses: whether it guesses the classes of sequences without a label.
    check: raises `SettingsError` or ValueError for settings with which the method cannot work.
    needs_simulation: why sites with data of their own cannot run it, in words, "" if they can.
    cannot_forecast: why its kept models do not forecast by themselves, in words, "" if they do.
    joined_clients: of series, what makes a node's clients where these see other clients' values,
        "package.module:function": (settings, the node's series, all of the source) → `Shard`.
        "": every client sees its own values alone.
    by_time: whether the server must know when each client's samples are.
    small: what a run of seconds of it needs set besides, for checks of methods.
    check_clients: raises `SettingsError` for fewer clients that can take part than it needs.
    """

    name: str
    strategy: ByTask = field(hash=False)
    learner: ByTask = field(hash=False)
    settings: type[Section] | None = None
    section: Callable[[Settings], Any] = attrgetter("own")
    tasks: tuple[str, ...] = ()
    model: ByTask = field(default="", hash=False)
    rounds: Callable[[Settings], int] | None = None
    encoder_first: bool = False
    guesses: Callable[[Settings], bool] | None = None
    needs_simulation: Callable[[Settings], str] | None = None
    cannot_forecast: str = ""
    joined_clients: str = ""
    by_time: bool = False
    small: Mapping[str, Any] = field(default_factory=dict, hash=False)
    check: Callable[[Settings], None] | None = None
    check_clients: Callable[[Settings, int], None] | None = None

    def works_with(self, task: str) -> bool:
        """Whether it can learn this task."""
        return not self.tasks or task in self.tasks

    def learns_without_labels(self, settings: Settings) -> bool:
        """Whether sequences without a label are of use to a run."""
        guesses = self.guesses is not None and self.guesses(settings)
        return guesses or self.encoder_rounds(settings) > 0

    def encoder_rounds(self, settings: Settings) -> int:
        """Rounds of the run before those of the method itself."""
        encoder = settings.encoder
        return encoder.rounds if self.encoder_first and not encoder.path else 0
