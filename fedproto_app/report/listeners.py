"""Listeners that record each round as it ends: rounds.jsonl, TensorBoard, Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from fedproto_app.core.methods import method_named
from fedproto_app.report.artefacts import ROUNDS, SUMMARY, RunFolder, round_line
from fedproto_app.report.export.events import FOLDER, EventLog
from fedproto_app.report.metrics_file import MetricsFile
from fedproto_app.report.runs import read_rounds, read_run
from fedproto_app.server.listeners import Listener, RoundEnd
from fedproto_app.settings import Settings


class RoundLine(Listener):
    """Describes the round in the line that later listeners write and show."""

    def __init__(self, task: str) -> None:
        self._task = task

    def round_ended(self, ended: RoundEnd) -> None:
        log, results = ended.history.log, ended.history.results
        line = round_line(log, results, ended.seconds, ended.evaluated, self._task)
        ended.line.update(line)


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
    """Writes events during the run, and the run's summary when it has ended.

    first_round: the first round of a resumed run, 0 for a new run.
    """

    def __init__(self, folder: RunFolder, first_round: int = 0) -> None:
        self._run = folder.path
        self._log = EventLog(folder.path / FOLDER, first_round)

    def round_ended(self, ended: RoundEnd) -> None:
        self._log.round({"round": ended.number, **ended.line})

    def close(self) -> None:
        if (self._run / SUMMARY).exists():  # the last artefact: the run has ended
            self._log.end(read_run(self._run))
        self._log.close()


class Prometheus(Listener):
    """Writes the run's numbers as a text file for Prometheus."""

    def __init__(self, folder: RunFolder, method: str) -> None:
        before = read_rounds(folder.path) if (folder.path / ROUNDS).exists() else []
        self._file = MetricsFile(folder.name, method, before)

    def round_ended(self, ended: RoundEnd) -> None:
        self._file.write(ended.line, time.time())


def folder_listeners(settings: Settings, folder: RunFolder, done: int = 0) -> list[Listener]:
    """Return the listeners that record a run in its folder. done: rounds done before a resume."""
    listeners: list[Listener] = [
        RoundsFile(folder),
        Prometheus(folder, method_named(settings.method).name),
    ]
    if settings.output.tensorboard:
        first_round = done + 1 if settings.output.resume else 0
        listeners.append(TensorBoard(folder, first_round))
    return listeners
