"""Writes a run's checkpoints during the run.

Separate from `checkpoint.py`, which the command line uses before Flower is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedproto_app.core.wire import numpy_arrays
from fedproto_app.server.checkpoint import Checkpoint, State
from fedproto_app.server.federation import Federation
from fedproto_app.server.listeners import Listener, RoundEnd, reason_to_stop


class Persistence:
    """When a run writes its checkpoints: after every round, where nodes keep their own state."""

    def is_due(self, *, last: bool) -> bool:
        """Whether to write a checkpoint after a round. last: it is the last round."""
        return True

    def prepare(self) -> None:
        """Called before a checkpoint is written, which must not be ahead of the nodes."""


class Checkpoints(Listener):
    """Writes the run's checkpoints.

    write: writes a checkpoint into the run's folder. state: returns the strategy's state.
    listeners: the listeners whose memory a checkpoint holds; they are called before this one.
    """

    def __init__(
        self,
        write: Callable[[Checkpoint], None],
        state: Callable[[], State],
        federation: Federation,
        listeners: Sequence[Listener],
        persistence: Persistence,
    ) -> None:
        self._write, self._state, self._federation = write, state, federation
        self._listeners, self._persistence = listeners, persistence

    def round_ended(self, ended: RoundEnd) -> None:
        federation = self._federation
        last = ended.number == federation.settings.all_rounds
        last = last or bool(reason_to_stop(self._listeners, ended.number + 1))
        if not self._persistence.is_due(last=last):
            return
        self._persistence.prepare()
        memory: dict[str, Any] = {}
        for listener in self._listeners:
            memory |= listener.memory()
        self._write(
            Checkpoint(
                ended.number,
                federation.token,
                nodes=federation.members.roster.partitions(),
                model=numpy_arrays(ended.model),
                strategy=self._state(),
                federation=federation.memory(),
                listeners=memory,
            )
        )
