"""A run's numbers for Prometheus: a text file that is written whole after each round.

Its format is Prometheus's own (https://prometheus.io/docs/instrumenting/exposition_formats/); the
textfile collector of node_exporter reads a folder of such files. FEDPROTO_METRICS names the folder;
each run has a file of its name there.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedproto_app.core.whole_file import write_whole

FOLDER = "FEDPROTO_METRICS"
# Name, kind and meaning; the value is a total over the rounds or that of the last one.
_COUNTED = {
    "rounds": ("rounds_total", "rounds that are done"),
    "asked": ("asked_total", "orders to nodes"),
    "answered": ("answered_total", "usable replies"),
    "refused": ("refused_total", "nodes and clients whose replies were not used"),
    "late": ("late_total", "replies that the deadline did not see"),
    "bytes_up": ("received_bytes_total", "bytes of replies"),
    "bytes_down": ("sent_bytes_total", "bytes of orders"),
    "seconds": ("round_seconds_total", "seconds of all rounds"),
}
_LATEST = {
    "clients": ("clients", "clients that trained in the last round"),
    "loss": ("loss", "mean training loss of the last round"),
    "epsilon": ("epsilon", "privacy spent so far, the most of any client"),
    "time": ("last_round_timestamp_seconds", "when the last round ended"),
}


class MetricsFile:
    """The file of one run; without a folder it writes nothing.

    before: the lines of rounds.jsonl that a resumed run has.
    """

    def __init__(self, run: str, method: str, before: Iterable[Mapping[str, Any]] = ()) -> None:
        self._labels = f'{{run="{_escaped(run)}",method="{_escaped(method)}"}}'
        named = os.environ.get(FOLDER, "")
        self._path = Path(named) / f"{run}.prom" if named else None
        self._totals = dict.fromkeys(_COUNTED, 0.0)
        for line in before if self._path else ():
            self._count(line)

    def write(self, line: Mapping[str, Any], now: float) -> None:
        """Take a round's line in. now: seconds since 1970. Raises OSError."""
        if self._path is None:
            return
        self._count(line)
        latest = {**line, "epsilon": _epsilon(line), "time": now, "loss": line["loss"].get("total")}
        text = [*self._lines(_COUNTED, "counter", self._totals)]
        text += self._lines(_LATEST, "gauge", latest)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, "".join(text).encode())

    def _count(self, line: Mapping[str, Any]) -> None:
        changes = {**line, "rounds": 1, "refused": len(line.get("refused", ()))}
        changes["seconds"] = line.get("seconds", {}).get("total", 0.0)
        for name in self._totals:
            self._totals[name] += changes.get(name) or 0

    def _lines(
        self, named: Mapping[str, tuple[str, str]], kind: str, values: Mapping[str, Any]
    ) -> Iterable[str]:
        for key, (name, meaning) in named.items():
            value = values.get(key)
            if isinstance(value, int | float) and math.isfinite(value):
                yield f"# HELP fedproto_{name} {meaning}\n# TYPE fedproto_{name} {kind}\n"
                yield f"fedproto_{name}{self._labels} {float(value)!r}\n"


def _epsilon(line: Mapping[str, Any]) -> Any:
    """What the round says of privacy, if it counts it."""
    privacy = line.get("privacy")
    return privacy.get("epsilon") if isinstance(privacy, Mapping) else None


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
