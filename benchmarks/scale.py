"""What a run of many clients costs: seconds and processor seconds a round, memory, and files.

    python -m benchmarks.scale [--clients 1000 10000] [--rounds 4] [--quick]
    python -m benchmarks.scale --method kindred
    python -m benchmarks.scale --priors m4 METR-LA

FUELS on 8 days of the synthetic traffic, or Kindred's one round with plain features on 500 hours,
by ``fedproto run`` on two nodes: one command a row, watched from outside. Processor seconds count
all its processes, so they say what a round costs on a machine that does other work meanwhile, as
its seconds do not.

``--priors``: how far Kindred's priors by clusters are from those by all pairs, on real data.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from benchmarks.history_results import KINDRED, Client, joined, learner_of, temperatures_of
from benchmarks.pages import ROOT, Lines, print_table
from benchmarks.parts import PROGRAM, changes_of, processor_seconds
from benchmarks.sharing_results import SETS, series_of, settings_in
from fedproto_app.core.messages import Guidance
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.maths.divergence import pairwise_divergence
from fedproto_app.strategies.kindred.clusters import Clusters
from fedproto_app.strategies.kindred.learner import GRAM, MOMENT, PROTOTYPE
from fedproto_app.strategies.kindred.strategy import kinship, median_of_unlike

SETTINGS: dict[str, dict[str, object]] = {
    "fuels": {"data.synthetic.days": 8},
    "kindred": {"data.synthetic.days": 21, "data.max-steps": 500, "kindred.features": 0},
}
ROUND = re.compile(r"round \d+/\d+ ")  # has ended
INTERVAL = 0.5  # seconds between two looks at the processes


class Moment(NamedTuple):
    """Seconds since the command, and processor seconds of all its processes so far."""

    wall: float
    processor: float

    def since(self, before: Moment) -> Moment:
        return Moment(self.wall - before.wall, self.processor - before.processor)


@dataclass
class Cost:
    """A run: when its rounds ended, peak memory of its processes, and the files that it left."""

    rounds: list[Moment] = field(default_factory=list)
    peak: int = 0  # bytes
    left_bytes: int = 0
    sent_bytes: int = 0  # both ways
    files: int = 0
    end: Moment = field(default_factory=lambda: Moment(0.0, 0.0))

    @property
    def later(self) -> Moment:
        """Return the mean of the rounds after the first, with the checkpoints between them."""
        if len(self.rounds) == 1:
            return self.rounds[0]
        total, count = self.rounds[-1].since(self.rounds[0]), len(self.rounds) - 1
        return Moment(total.wall / count, total.processor / count)


class Processes:
    """A process and its descendants, observed while they run."""

    def __init__(self, process: int) -> None:
        self._process, self._used = process, dict[int, float]()
        self.peak = 0

    @property
    def processor_seconds(self) -> float:
        """Return the processor seconds so far, with ended processes."""
        return sum(self._used.values())

    def look(self) -> None:
        """Record their processor seconds and memory. Shared memory counts once."""
        memory = 0
        for process in _family(self._process):
            try:
                self._used[process] = processor_seconds(process) or self._used.get(process, 0.0)
                memory += _proportional_bytes(process)
            except OSError:  # it has ended
                continue
        self.peak = max(self.peak, memory)


def watch(method: str, clients: int, rounds: int, folder: Path) -> Cost:
    """Run once in this folder, and observe the run from the command to its end."""
    chosen = {"method": method, "data.source": "synthetic-traffic", **SETTINGS[method]}
    chosen |= {"data.synthetic.clients": clients, "rounds": rounds}
    chosen |= {"output.dir": folder, "output.name": f"of-{clients}"}
    command = [sys.executable, "-u", "-c", PROGRAM, "run", "--nodes", "2", "--workers", "2"]
    start, cost = time.perf_counter(), Cost()
    run = subprocess.Popen(
        [*command, *changes_of(chosen)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    family, ended = Processes(run.pid), threading.Event()

    def keep_looking() -> None:
        while not ended.wait(INTERVAL):
            family.look()

    looking = threading.Thread(target=keep_looking)
    looking.start()
    assert run.stderr is not None
    for line in run.stderr:
        if ROUND.match(line):  # not a line about a round's clients
            family.look()
            cost.rounds.append(Moment(time.perf_counter() - start, family.processor_seconds))
    code = run.wait()
    ended.set()
    looking.join()
    if code or not cost.rounds:
        sys.exit(f"the run of {clients} clients ended with code {code}")
    cost.end = Moment(time.perf_counter() - start, family.processor_seconds)
    cost.peak = family.peak
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    cost.left_bytes, cost.files = sum(sizes), len(sizes)
    summary = json.loads((folder / f"of-{clients}" / "summary.json").read_text())
    cost.sent_bytes = summary["bytes_up"] + summary["bytes_down"]
    return cost


def _family(process: int) -> list[int]:
    """Return the process and its descendants."""
    family = [process]
    try:
        for tasks in Path(f"/proc/{process}/task").iterdir():
            for child in (tasks / "children").read_text().split():
                family += _family(int(child))
    except OSError:  # it has ended
        pass
    return family


def _proportional_bytes(process: int) -> int:
    """Return the process's memory. A shared page counts in part to each of its processes."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def prior_errors(name: str) -> list[str]:
    """Return a data set's clients and clusters, and the median client's error of its prior by
    clusters: of its length, and of its distance from the mean over all others."""
    chosen = SETS[name]
    settings = settings_in(chosen, chosen.steps[-1], 0)
    learner, sent = learner_of(settings, KINDRED), []
    for series in series_of(chosen, settings):
        client = Client(series, settings, 0)
        cohort = client.cohort(learner)
        context = learner.context(Guidance(), cohort)
        sent.append(learner.contribution(cohort, context).arrays)
    arrays = {key: torch.from_numpy(array) for key, array in joined(sent).items()}
    prototypes = arrays[PROTOTYPE][:, None]
    own = torch.cat([arrays[key].flatten(start_dim=1) for key in (GRAM, MOMENT)], dim=1).double()
    divergence, temperature = pairwise_divergence(prototypes), temperatures_of(learner)[0]
    exact = kinship(divergence, temperature) @ own
    scale = temperature * median_of_unlike(divergence)
    clusters = Clusters(prototypes, scale, numpy_stream(0, "clusters of clients"))
    every = torch.arange(len(own))
    priors = clusters.priors(clusters.sums(own, slice(None)), own, every)
    error = (priors - exact).norm(dim=1)
    to_common = (exact - (own.sum(dim=0) - own) / (len(own) - 1)).norm(dim=1)
    figures = [float((error / length).median()) for length in (exact.norm(dim=1), to_common)]
    counts = [f"{len(own):,}", f"{len(set(clusters.labels.tolist()))}"]
    return [name, *counts, f"{figures[0]:.2%}", f"{figures[1]:.3f}"]


def table(costs: dict[int, Cost]) -> Lines:
    """Return a row for each number of clients. A later round: the mean without the first."""
    headings = ["clients", "first round, s", "a later round, s", "CPU-s", "ms of CPU a client"]
    headings += ["whole, s", "CPU-s", "peak GB", "MB sent", "GB of files", "files"]
    rows = [
        (
            f"{clients:,}",
            f"{cost.rounds[0].wall:.1f}",
            f"{cost.later.wall:.1f}",
            f"{cost.later.processor:.1f}",
            f"{cost.later.processor / clients * 1000:.1f}",
            f"{cost.end.wall:.1f}",
            f"{cost.end.processor:.1f}",
            f"{cost.peak / 1e9:.2f}",
            f"{cost.sent_bytes / 1e6:.1f}",
            f"{cost.left_bytes / 1e9:.2f}",
            f"{cost.files:,}",
        )
        for clients, cost in costs.items()
    ]
    return [headings, *rows]


def main() -> None:
    """Run each number of clients, and print a row for it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", nargs="+", type=int, default=[100, 1000], metavar="N")
    parser.add_argument("--method", choices=SETTINGS, default="fuels")
    parser.add_argument("--priors", nargs="+", choices=SETS, metavar="DATA", help="instead of runs")
    parser.add_argument("--rounds", type=int, default=4, metavar="N", help="of each run (4)")
    parser.add_argument("--folder", type=Path, help="folder of the runs (temporary)")
    parser.add_argument("--quick", action="store_true", help="50 and 200 clients, 3 rounds")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.clients, arguments.rounds = [50, 200], 3
    if min(arguments.clients) < 2 or arguments.rounds < 2:
        parser.error("--clients: at least 2 each, --rounds: at least 2")
    if arguments.priors:
        headings = ["data", "clients", "clusters", "error", "÷ distance kin–common"]
        print_table([headings, *(prior_errors(name) for name in arguments.priors)])
        return
    if arguments.method == "kindred":
        arguments.rounds = 1
    console, costs = Console(width=130), dict[int, Cost]()
    for clients in arguments.clients:
        with tempfile.TemporaryDirectory(prefix="fedproto-scale-", dir=arguments.folder) as folder:
            costs[clients] = watch(arguments.method, clients, arguments.rounds, Path(folder))
        seconds = costs[clients].end.wall
        console.print(f"{clients:,} clients: done after {seconds:.0f} s", style="dim")
    print_table(table(costs), texts=0)


if __name__ == "__main__":
    main()
