"""What a run of many clients costs: seconds and processor seconds a round, memory, and files.

    python -m benchmarks.scale [--clients 1000 10000] [--rounds 4]
    python -m benchmarks.scale --method kindred

FUELS on 8 days of the synthetic traffic, or Kindred's one round with plain features on 500 hours,
by ``fedproto run`` on two nodes: one command a row, watched from outside. Processor seconds count
all its processes, so they say what a round costs on a machine that does other work meanwhile, as
its seconds do not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from benchmarks.pages import ROOT, print_table
from benchmarks.parts import PROGRAM, changes_of, output_in, parser_of, processor_seconds
from fedproto_app.ops.guardian import marked_processes

SETTINGS: dict[str, dict[str, object]] = {
    "fuels": {"data.synthetic.days": 8},
    "kindred": {"data.synthetic.days": 21, "data.max-steps": 500, "kindred.features": 0},
}
ROUND = re.compile(r"round \d+/\d+ ")  # has ended
INTERVAL = 0.5  # seconds between two looks at the processes
HEADINGS = [
    *("clients", "first round, s", "a later round, s", "CPU-s", "ms of CPU a client"),
    *("whole, s", "CPU-s", "peak GB", "MB sent", "GB of files", "files"),
]


class Moment(NamedTuple):
    """Seconds since the command, and processor seconds of all its processes so far."""

    wall: float
    processor: float


class Watch:
    """Looks at the processes of a command while they run. home: marks them, as FLWR_HOME."""

    def __init__(self, home: Path) -> None:
        self._home, self._start = home, time.perf_counter()
        self._used: dict[int, float] = {}  # processor seconds, also of ended processes
        self.peak = 0  # bytes, where shared memory counts once

    def look(self) -> Moment:
        memory = 0
        for process in marked_processes(self._home):
            try:
                self._used[process] = processor_seconds(process) or self._used.get(process, 0.0)
                rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
                memory += 1024 * int(re.search(r"^Pss: +(\d+)", rollup, re.MULTILINE)[1])  # type: ignore[index]
            except OSError:  # it has ended
                continue
        self.peak = max(self.peak, memory)
        return Moment(time.perf_counter() - self._start, sum(self._used.values()))


def row_of(method: str, clients: int, rounds: int, folder: Path) -> list[str]:
    """Run once in this folder, and return what it cost. A later round is the mean without the
    first, with the checkpoints between them."""
    settings = {"method": method, "data.source": "synthetic-traffic", **SETTINGS[method]}
    settings |= {"data.synthetic.clients": clients, "nodes.maximum-clients": clients}
    settings |= {"rounds": rounds, **output_in(folder)}
    settings["output.pictures"] = True  # as a user runs it
    command = [sys.executable, "-u", "-c", PROGRAM, "run", "--nodes", "2", "--workers", "2"]
    watch, ends, ended = Watch(folder), list[Moment](), threading.Event()
    run = subprocess.Popen(
        [*command, *changes_of(settings)],
        cwd=ROOT,
        env={**os.environ, "FLWR_HOME": str(folder)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )

    def keep_looking() -> None:
        while not ended.wait(INTERVAL):
            watch.look()

    looking = threading.Thread(target=keep_looking)
    looking.start()
    assert run.stderr is not None
    ends += [watch.look() for line in run.stderr if ROUND.match(line)]
    code = run.wait()
    ended.set()
    looking.join()
    if code or not ends:
        sys.exit(f"the run of {clients} clients ended with code {code}")
    end = watch.look()
    first, *later = ends
    count = max(len(later), 1)
    wall, processor = (
        ((b - a) / count for a, b in zip(first, later[-1], strict=True)) if later else first
    )
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    summary = json.loads((folder / "run" / "summary.json").read_text())
    return [
        f"{clients:,}",
        f"{first.wall:.1f}",
        f"{wall:.1f}",
        f"{processor:.1f}",
        f"{processor / clients * 1000:.1f}",
        f"{end.wall:.1f}",
        f"{end.processor:.1f}",
        f"{watch.peak / 1e9:.2f}",
        f"{(summary['bytes_up'] + summary['bytes_down']) / 1e6:.1f}",
        f"{sum(sizes) / 1e9:.2f}",
        f"{len(sizes):,}",
    ]


def main() -> None:
    """Run each number of clients, and print a row for it."""
    parser = parser_of(__doc__)
    parser.add_argument("--clients", nargs="+", type=int, default=[100, 1000], metavar="N")
    parser.add_argument("--method", choices=SETTINGS, default="fuels")
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="of each run (4)")
    parser.add_argument("--folder", type=Path, help="folder of the runs (temporary)")
    arguments = parser.parse_args()
    if min(arguments.clients) < 2 or arguments.rounds < 2:
        parser.error("--clients: at least 2 each, --rounds: at least 2")
    rounds = 1 if arguments.method == "kindred" else arguments.rounds
    lines = [HEADINGS]
    for clients in arguments.clients:
        with tempfile.TemporaryDirectory(prefix="fedproto-scale-", dir=arguments.folder) as folder:
            lines.append(row_of(arguments.method, clients, rounds, Path(folder)))
        Console().print(f"{clients:,} clients: done after {lines[-1][5]} s", style="dim")
    print_table(lines, texts=0)


if __name__ == "__main__":
    main()
