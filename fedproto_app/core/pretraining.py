"""The record of a first phase: what clients learn together before the rounds of a method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedproto_app.core.section import Section

if TYPE_CHECKING:
    from fedproto_app.settings.run import Settings


@dataclass(frozen=True)
class Pretraining:
    """A phase before the method's own rounds, and what the clients work with afterwards.

    Texts are "package.module:NAME", imported when they are needed.

    table: the table of `Settings` that both halves get.
    rounds: how many rounds of the run it takes, besides the method's; 0 where its result is given.
    check: raises `SettingsError` before a simulation starts, for what its server would not find.
    model: what makes the clients' models where the settings name no module:
        (settings, `DataShape`) → `Model`.
    strategy: the server's half of both phases: (settings, federation, the method's strategy).
    learner: the clients' half of the first phase: (training, table, task).
    samples: what the samples of a node's clients become once the phase is over:
        (shard, clients' names, an order's arrays, task, store) → `Shard`.
    """

    table: str
    rounds: Callable[[Settings], int]
    check: Callable[[Settings], None]
    model: str
    strategy: str
    learner: str
    samples: str

    def section(self, settings: Settings) -> Section:
        """Its table in these settings."""
        section = getattr(settings, self.table)
        assert isinstance(section, Section)
        return section
