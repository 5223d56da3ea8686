"""Listeners that record each round when it ends: in rounds.jsonl, and for Prometheus."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fedproto_app.core.whole_file import write_whole
from fedproto_app.report.artefacts import RunFolder, round_line
from fedproto_app.report.run_files import Record
from fedproto_app.server.listeners import Listener, RoundEnd

METRICS_FOLDER = "FEDPROTO_METRICS"
# The name and meaning of each metric: first totals over the rounds, then values of the last round.
_TOTALS = {
    "rounds": ("rounds_total", "rounds done"),
    "asked": ("asked_total", "orders to nodes"),
    "answered": ("answered_total", "usable replies"),
    "refused": ("refused_total", "nodes and clients whose replies were not used"),
    "late": ("late_total", "replies that did not arrive before the deadline"),
    "shortened": ("shortened_total", "clients' updates that aggregation.step-limit shortened"),
    "bytes_up": ("received_bytes_total", "bytes of replies"),
    "bytes_down": ("sent_bytes_total", "bytes of orders"),
    "seconds": ("round_seconds_total", "seconds of all rounds"),
}
_LATEST = {
    "clients": ("clients", "clients that trained in the last round"),
    "loss": ("loss", "mean training loss of the last round"),
    "epsilon": ("epsilon", "privacy spent so far by the client that spent most"),
    "time": ("last_round_timestamp_seconds", "when the last round ended"),
}


class MetricsFile(Listener):
    """Writes the run's numbers for Prometheus into a text file, which each round replaces.

    https://prometheus.io/docs/instrumenting/exposition_formats/ describes the format. The textfile
    collector of node_exporter reads a folder of such files. The environment variable
    FEDPROTO_METRICS names the folder. If it is not set, nothing is written.

    before: the lines of rounds.jsonl that a resumed run already has.
    """

    def __init__(self, run: str, method: str, before: Iterable[Record] = ()) -> None:
        self._labels = f'{{run="{_escaped(run)}",method="{_escaped(method)}"}}'
        folder = os.environ.get(METRICS_FOLDER, "")
        self._path = Path(folder) / f"{run}.prom" if folder else None
        self._totals = dict.fromkeys(_TOTALS, 0.0)
        for line in before if self._path else ():
            self._count(line)

    def round_ended(self, ended: RoundEnd) -> None:
        self.write(ended.line, time.time())

    def write(self, line: Record, timestamp: float) -> None:
        """Add a round's line and write the file. timestamp: seconds since 1970. Raises OSError."""
        if self._path is None:
            return
        self._count(line)
        latest = {
            **line,
            "epsilon": line.get("privacy", {}).get("epsilon"),
            "time": timestamp,
            "loss": line["loss"].get("total"),
        }
        text = [*self._lines(_TOTALS, "counter", self._totals)]
        text += self._lines(_LATEST, "gauge", latest)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, "".join(text).encode())

    def _count(self, line: Record) -> None:
        changes = {**line, "rounds": 1, "refused": len(line.get("refused", ()))}
        changes["seconds"] = line.get("seconds", {}).get("total", 0.0)
        for name in self._totals:
            self._totals[name] += changes.get(name) or 0

    def _lines(
        self, metrics: Mapping[str, tuple[str, str]], kind: str, values: Record
    ) -> Iterable[str]:
        for key, (name, meaning) in metrics.items():
            value = values.get(key)
            if isinstance(value, int | float) and math.isfinite(value):
                yield f"# HELP fedproto_{name} {meaning}\n# TYPE fedproto_{name} {kind}\n"
                yield f"fedproto_{name}{self._labels} {float(value)!r}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class RoundLine(Listener):
    """Fills the line about the round, which later listeners write and show."""

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
    """Passes each line of rounds.jsonl to a function that shows it."""

    def __init__(self, show: Callable[[Record], None]) -> None:
        self._show = show

    def round_ended(self, ended: RoundEnd) -> None:
        self._show({"round": ended.number, **ended.line})
