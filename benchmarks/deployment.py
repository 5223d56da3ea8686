"""What a round costs on real SuperNodes, against the simulation, and where the time goes.

    python -m benchmarks.deployment [--quick]

FUELS on 24 embedded clients in three nodes: through Flower's simulation, and through a SuperLink
and three SuperNodes on loopback with TLS and registered keys (benchmarks.local_federation), once
with Flower's interval of looking for work (1 s), once with ours (0.1 s). All on this one machine,
so that the three ClientApps of a round share its cores, as they would not on three.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.local_federation import LocalFederation, node_config
from benchmarks.pages import ROOT, Lines, print_table
from benchmarks.parts import output_in, parser_of, wait_until
from fedproto_app.ops.superlink import SuperLink
from fedproto_app.report.runs import read_rounds
from fedproto_app.settings import flower_config, settings_from

NODES = 3
FLOWERS_INTERVAL, OUR_INTERVAL = "1.0", "0.1"
INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
DEADLINE = 900.0


_temporary = partial(tempfile.TemporaryDirectory, prefix="bench-", ignore_cleanup_errors=True)


class Cost(NamedTuple):
    """A run's median seconds: until its first round ended, for a later round, and for a node's work
    in it."""

    first: float
    later: float
    work: float


def settings_of(folder: Path, rounds: int) -> dict[str, Any]:
    """Return the run's settings, nested."""
    config = {"rounds": rounds, "nodes.minimum": NODES, **output_in(folder)}
    return flower_config(settings_from(config))


def simulated(rounds: int) -> Cost:
    """Time the run in Flower's simulation."""
    with _temporary() as home, _temporary() as output, SuperLink(Path(home)) as superlink:
        start = time.monotonic()
        run = superlink.simulate(ROOT, settings_of(Path(output), rounds), NODES, cpus=1)
        first = _wait_for_a_round(Path(output)) - start
        while not superlink.status(run).finished:
            time.sleep(1.0)
        return _cost(Path(output), first)


def deployed(rounds: int, interval: str) -> Cost:
    """Time the run on SuperNodes whose SuperExecs look for work at this interval."""
    with (
        _temporary() as output,
        _temporary() as folder,
        LocalFederation(Path(folder) / "f", environment={INTERVAL: interval}) as federation,
    ):
        for index in range(NODES):
            config = node_config(str(index), index, NODES, Path(folder) / f"state-{index}")
            federation.add_node(str(index), config, environment={INTERVAL: interval})
        for node in federation.nodes:
            node.wait_until_joined(120.0)
        start = time.monotonic()
        run = federation.submit(settings_of(Path(output), rounds))
        first = _wait_for_a_round(Path(output)) - start
        federation.wait(run, DEADLINE)
        return _cost(Path(output), first)


def process_seconds() -> float:
    """Return the seconds that a new process per node takes to import what an order needs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "import fedproto_app.client_app, fedproto_app.node.orders"]
    seconds = []
    for _ in range(3):
        start = time.monotonic()
        processes = [subprocess.Popen(command, env=environment) for _ in range(NODES)]
        for process in processes:
            process.wait()
        seconds.append(time.monotonic() - start)
    return statistics.median(seconds)


def table(costs: dict[str, Cost], starts: float) -> Lines:
    """Return a row for each way to run: where a deployed round's seconds go."""
    headings = ["run", "first round ended after", "a later round", "a node's work"]
    headings += ["process start", "messages and waiting", "× simulation"]
    base, rows = costs["simulation"].later, []
    for name, cost in costs.items():
        start = 0.0 if name == "simulation" else starts
        overhead = cost.later - cost.work - start
        figures = (cost.first, cost.later, cost.work, start, overhead)
        rows.append((name, *(f"{figure:.1f}" for figure in figures), f"{cost.later / base:.1f}"))
    return [headings, *rows]


def _wait_for_a_round(output: Path) -> float:
    rounds = output / "run" / "rounds.jsonl"
    try:
        wait_until(lambda: rounds.exists() and rounds.stat().st_size, "a round", DEADLINE)
    except TimeoutError as error:
        raise SystemExit(str(error)) from None
    return time.monotonic()


def _cost(output: Path, first: float) -> Cost:
    later = read_rounds(output / "run")[1:]
    return Cost(
        first,
        statistics.median(line["seconds"]["total"] for line in later),
        statistics.median(line["node_seconds"] / line["answered"] for line in later),
    )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of eight")
    rounds = 3 if parser.parse_args().quick else 8
    console = Console()
    with console.status("process start"):
        starts = process_seconds()
    costs: dict[str, Cost] = {}
    with console.status("simulation"):
        costs["simulation"] = simulated(rounds)
    for interval in (FLOWERS_INTERVAL, OUR_INTERVAL):
        with console.status(f"SuperNodes, looking for work every {interval} s"):
            costs[f"SuperNodes, {interval} s"] = deployed(rounds, interval)
    print_table(table(costs, starts))


if __name__ == "__main__":
    main()
