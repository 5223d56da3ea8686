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
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine_line
from benchmarks.pages import ROOT, data_root
from benchmarks.parts import PROGRAM
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


def watch(engine: str, options: list[str], folder: Path) -> Watched:
    """Watch a run with an engine, from the command to its end."""
    changes = [f"--set=output.dir={folder}", f"--set=output.name={engine}"]
    start, watched = time.perf_counter(), Watched()
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, "run", "--engine", engine, *options, *changes],
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

    assert process.stdout is not None
    assert process.stderr is not None
    readers = [threading.Thread(target=read, args=(p,)) for p in (process.stdout, process.stderr)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
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
    options = [
        f"--set=rounds={arguments.rounds}",
        f"--set=evaluate-every={arguments.evaluate_every}",
    ]
    if data.exists():
        options += ["--set=data.source=wide-csv", f"--set=data.path={data.resolve()}"]
        options += ["--set=data.max-steps=2160"]
    name = arguments.data.split(".")[0] if data.exists() else "the embedded traffic"
    table = Table(title=f"Seconds of FUELS on {name}, {arguments.rounds} rounds")
    headings = ("engine", "to the first round", "a round", "last round to table", "in all", "nodes")
    for title in headings:
        table.add_column(title, justify="left" if title == "engine" else "right")
    with tempfile.TemporaryDirectory(prefix="fedproto-watched-") as folder:
        for engine in arguments.engines:
            timings = watch(engine, options, Path(folder))
            seconds = (
                timings.rounds[0],
                timings.between,
                timings.table - timings.rounds[-1],
                timings.end,
            )
            share = f"{timings.at_nodes / timings.end:.0%}"
            table.add_row(engine, *(f"{value:.1f}" for value in seconds), share)
    console = Console(width=120)
    console.print(table)
    console.print(machine_line(), style="dim")


if __name__ == "__main__":
    main()
