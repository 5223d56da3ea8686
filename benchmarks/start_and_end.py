"""Seconds that a run takes before its first round, between rounds, and after its last.

    python -m benchmarks.start_and_end --data electricity_2014_hourly.csv.gz

Watches ``fedproto run`` from outside, line by line, as a waiting user does: once with each engine,
one after the other. Pictures count to the end; the table comes before them.

The last column is the share of all this time that the mean node works on an order, by its own
clock (`node_seconds` of rounds.jsonl). That is training, with reading and writing state and, where
clients are judged, evaluation: `--evaluate-every` of all rounds leaves hardly more than training.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from benchmarks.pages import ROOT, data_root
from benchmarks.parts import PROGRAM, changes_of
from benchmarks.tables import figure_table, print_with_machine
from fedproto_app.report.runs import read_rounds


@dataclass
class Watched:
    """Seconds from the command to the end of each round, to the table, and to the end."""

    rounds: list[float] = field(default_factory=list)
    table: float = 0.0
    end: float = 0.0
    at_nodes: float = 0.0  # seconds of the mean node

    @property
    def between(self) -> float:
        """Return the seconds per round after the first."""
        return (self.rounds[-1] - self.rounds[0]) / max(1, len(self.rounds) - 1)


def watch(engine: str, options: dict[str, object], folder: Path) -> Watched:
    """Watch a run with an engine, from the command to its end."""
    changes = changes_of({**options, "output.dir": folder, "output.name": engine})
    start, watched = time.perf_counter(), Watched()
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, "run", "--engine", engine, *changes],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def read(lines: IO[str]) -> None:
        for line in lines:
            elapsed = time.perf_counter() - start
            if line.startswith("round "):
                watched.rounds.append(elapsed)
            elif line.startswith("artefacts: "):
                watched.table = elapsed

    with ThreadPoolExecutor(2) as readers:
        list(readers.map(read, filter(None, (process.stdout, process.stderr))))
    if process.wait():
        sys.exit(f"the run with engine {engine} ended with code {process.returncode}")
    watched.end = time.perf_counter() - start
    watched.at_nodes = sum(line["node_seconds"] for line in read_rounds(folder / engine))
    watched.at_nodes /= len(list((folder / engine / "state").iterdir()))
    return watched


def main() -> None:
    """Run each engine, and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", nargs="+", default=["process", "flower"])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--evaluate-every", type=int, default=1, metavar="ROUNDS")
    parser.add_argument("--data", default="electricity_2014_hourly.csv.gz", metavar="FILE")
    arguments = parser.parse_args()
    data = data_root() / arguments.data
    options: dict[str, object] = {
        "rounds": arguments.rounds,
        "evaluate-every": arguments.evaluate_every,
    }
    if data.exists():
        options |= {"data.source": "wide-csv", "data.path": data.resolve(), "data.max-steps": 2160}
    name = arguments.data.split(".")[0] if data.exists() else "the embedded traffic"
    rows = []
    with tempfile.TemporaryDirectory(prefix="fedproto-watched-") as folder:
        for engine in arguments.engines:
            run = watch(engine, options, Path(folder))
            seconds = (run.rounds[0], run.between, run.table - run.rounds[-1], run.end)
            share = f"{run.at_nodes / run.end:.0%}"
            rows.append((engine, *(f"{value:.1f}" for value in seconds), share))
    headings = ("engine", "to the first round", "a round", "last round to table", "in all", "nodes")
    title = f"Seconds of FUELS on {name}, {arguments.rounds} rounds"
    print_with_machine(figure_table(headings, rows, title=title))


if __name__ == "__main__":
    main()
