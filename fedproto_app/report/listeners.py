"""What writes down each round as it ends: rounds.jsonl, TensorBoard, Prometheus, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedproto_app.core.methods import method_named
from fedproto_app.core.wire import numpy_arrays
from fedproto_app.report.artefacts import ROUNDS, RunFolder
from fedproto_app.report.export.events import FOLDER, EventLog
from fedproto_app.report.metrics_file import MetricsFile
from fedproto_app.report.runs import read_rounds, read_run
from fedproto_app.server.checkpoint import Checkpoint
from fedproto_app.server.federation import Federation
from fedproto_app.server.listeners import Listener, RoundEnd, reason_to_stop
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.strategy import MethodStrategy


class RoundsFile(Listener):
    """Adds a line to rounds.jsonl."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def round_ended(self, ended: RoundEnd) -> None:
        self._folder.append_round(ended.number, ended.line)


class Shown(Listener):
    """Hands each line of rounds.jsonl to a function that shows it."""

    def __init__(self, show: Callable[[Mapping[str, Any]], None]) -> None:
        self._show = show

    def round_ended(self, ended: RoundEnd) -> None:
        self._show({"round": ended.number, **ended.line})


class TensorBoard(Listener):
    """Writes events while the run goes on, and its summary when it has ended.

    first_round: of a resumed run, 0 of a new one.
    """

    def __init__(self, folder: RunFolder, first_round: int = 0) -> None:
        self._run = folder.path
        self._log = EventLog(folder.path / FOLDER, first_round)

    def round_ended(self, ended: RoundEnd) -> None:
        self._log.round({"round": ended.number, **ended.line})

    def run_ended(self) -> None:
        self._log.end(read_run(self._run))

    def close(self) -> None:
        self._log.close()


class Prometheus(Listener):
    """Writes the file of the run's numbers."""

    def __init__(self, folder: RunFolder, method: str) -> None:
        before = read_rounds(folder.path) if (folder.path / ROUNDS).exists() else []
        self._file = MetricsFile(folder.name, method, before)

    def round_ended(self, ended: RoundEnd) -> None:
        self._file.write(ended.line, time.time())


class Persistence:
    """When a run writes its checkpoints: after every round, where nodes keep their own state."""

    def is_due(self, *, last: bool) -> bool:
        """Whether a round ends with a checkpoint. last: no other comes after it."""
        return True

    def prepare(self) -> None:
        """Called before a checkpoint is written, which must not be ahead of the nodes."""


class Checkpoints(Listener):
    """Writes the run's checkpoints.

    listeners: those whose memory a checkpoint holds, which hear of a round before this one does.
    """

    def __init__(
        self,
        folder: RunFolder,
        strategy: MethodStrategy,
        federation: Federation,
        listeners: Sequence[Listener],
        persistence: Persistence,
    ) -> None:
        self._folder, self._strategy, self._federation = folder, strategy, federation
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
        self._folder.write_checkpoint(
            Checkpoint(
                ended.number,
                federation.token,
                nodes=federation.members.roster.partitions(),
                model=numpy_arrays(ended.model),
                strategy=self._strategy.state(),
                federation=federation.memory(),
                listeners=memory,
                seconds=self._folder.seconds(),
            )
        )


def folder_listeners(settings: Settings, folder: RunFolder, done: int = 0) -> list[Listener]:
    """What writes down the rounds of a run in its folder, of which so many are done."""
    listeners: list[Listener] = [
        RoundsFile(folder),
        Prometheus(folder, method_named(settings.method).name),
    ]
    if settings.output.tensorboard:
        first_round = done + 1 if settings.output.resume else 0
        listeners.append(TensorBoard(folder, first_round))
    return listeners
