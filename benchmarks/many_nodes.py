"""A run on a hundred real SuperNodes of one client each, where some nodes are killed.

    python -m benchmarks.many_nodes [--nodes 100] [--killed 5] [--at-once 2] [--rounds 2] [--page]

FUELS on synthetic traffic in a `LocalFederation`: all nodes have keys of their own and speak TLS.
In the second round's training some nodes are killed and stay away. Real sites compute at the same
time. Here their ClientApps take turns, `--at-once` at a time, so the seconds of a round are this
machine's cores', and the server does not probe nodes that wait for their turn. A node needs 200 MB,
so the memory that is free limits their number.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple, Self

from rich.console import Console

from benchmarks.local_federation import (
    LocalFederation,
    MarkedProcess,
    NodeProcess,
    node_config,
    with_fault,
)
from benchmarks.machine import machine_line
from benchmarks.pages import ROOT, table_texts, write_section
from benchmarks.parts import output_in, processor_seconds
from fedproto_app.core.errors import FederationError
from fedproto_app.report.runs import read_rounds
from fedproto_app.settings import flower_config, settings_from

PAGE = ROOT / "docs" / "reliability.md"
LEAST_FREE = 1 << 30  # bytes of memory below which the trial gives up
DEADLINE = 3600.0


class Outcome(NamedTuple):
    """What happened. joined: seconds until all nodes were connected. memory: gigabytes that all
    processes took together. superlink, serverapp: processor seconds of these."""

    joined: float
    rounds: list[dict[str, Any]]
    memory: float
    superlink: float
    serverapp: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for option, default, text in (
        ("--nodes", 100, "SuperNodes of one client each"),
        ("--killed", 5, "of these, killed in round 2"),
        ("--at-once", os.cpu_count() or 1, "ClientApps that work at a time"),
        ("--rounds", 2, "rounds of the run"),
    ):
        parser.add_argument(
            option, type=int, default=default, metavar="N", help=f"{text} (default: {default})"
        )
    parser.add_argument("--page", action="store_true", help="write the table to the page")
    arguments = parser.parse_args()
    if not 0 <= arguments.killed < arguments.nodes or arguments.at_once < 1 or arguments.rounds < 2:
        parser.error("--killed: less than --nodes; --at-once: at least 1; --rounds: at least 2")
    console = Console()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all processes end
    with tempfile.TemporaryDirectory(prefix="many-nodes-") as folder:
        outcome = trial(
            Path(folder),
            nodes=arguments.nodes,
            killed=arguments.killed,
            at_once=arguments.at_once,
            rounds=arguments.rounds,
            console=console,
        )
    lines = [["round", "orders", "replies", "clients", "seconds", "why replies are missing"]]
    for row in outcome.rounds:
        reasons = Counter(str(refusal["reason"]) for refusal in row["refused"])
        lines.append(
            [
                *(str(row[key]) for key in ("round", "asked", "answered", "clients")),
                f"{row['seconds']['total']:.0f}",
                "; ".join(f"{reason} ({count})" for reason, count in reasons.items()),
            ]
        )
    table = table_texts(lines)
    note = (
        f"`python -m benchmarks.many_nodes --nodes {arguments.nodes} --killed {arguments.killed} "
        f"--at-once {arguments.at_once} --rounds {arguments.rounds} --page`: FUELS, one client per "
        f"node, {arguments.killed} nodes killed in round 2. ClientApps take turns, "
        f"{arguments.at_once} at a time, so the seconds are this machine's, and nodes that wait "
        f"for their turn are not probed. All connected after {outcome.joined:.0f} s, with "
        f"{outcome.memory:.1f} GB of memory in all. Processor time of the SuperLink "
        f"{outcome.superlink:.0f} s, of the ServerApp {outcome.serverapp:.0f} s, {machine_line()}."
    )
    console.print("\n".join([*table, "", note]), soft_wrap=True, markup=False)
    if arguments.page:
        write_section(PAGE, "many-nodes", "benchmarks.many_nodes", [*table, "", note])


def trial(
    folder: Path, *, nodes: int, killed: int, at_once: int, rounds: int, console: Console
) -> Outcome:
    """Start the nodes, run, and kill some of them."""
    of_server = with_fault(folder, "late-probes")
    of_node = with_fault(folder, "take-turns", TURNS=str(at_once))
    # Flower's interval, because many nodes ask on few cores.
    of_node["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "1.0"
    changes = {
        "method": "fuels",
        "rounds": rounds,
        "data.synthetic.clients": nodes,
        "data.synthetic.days": 8,
        "nodes.minimum": nodes,
        "nodes.start-deadline": DEADLINE,
        "nodes.round-deadline": DEADLINE,
        **output_in(folder / "runs"),
    }
    begin = time.monotonic()
    with (
        LocalFederation(folder / "federation", of_server) as federation,
        Watch(federation.superlink) as watch,
    ):
        started: list[NodeProcess] = []
        for number in range(nodes):
            name = f"site-{number:03d}"
            config = node_config(name, number, nodes, folder / "state" / str(number))
            started.append(federation.add_node(name, config, environment=of_node))
            console.print(f"{number + 1} of {nodes} nodes started", end="\r")
        for node in started:
            node.wait_until_joined(DEADLINE)
        joined = time.monotonic() - begin
        console.print(f"all nodes connected after {joined:.0f} s, {watch.memory:.1f} GB of memory")
        run = federation.submit(flower_config(settings_from(changes)))
        started[-1].wait_for_log(r"event=order round=2 \S+ phase=train", DEADLINE)
        for node in started[nodes - killed :]:
            node.kill()
        console.print(f"{killed} nodes killed in round 2")
        federation.complete(run, DEADLINE)
        return Outcome(
            joined,
            read_rounds(folder / "runs" / "run"),
            watch.memory,
            watch.processor("fedproto_app.ops.fleet"),
            watch.processor("flwr-serverapp"),
        )


class Watch:
    """Looks at the machine and the server every two seconds, for the length of a ``with`` block.

    memory: the most gigabytes that were taken since its begin. When the machine's memory is nearly
    used up, this process gets a SIGTERM.
    """

    def __init__(self, server: MarkedProcess) -> None:
        self.memory = 0.0
        self._server, self._free = server, _free_memory()
        self._seconds: dict[int, tuple[str, float]] = {}  # by process: command line, processor time
        self._over = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def processor(self, program: str) -> float:
        """Return the processor seconds of the server's processes of this name."""
        return sum(time for line, time in self._seconds.values() if program in line)

    def _look(self) -> None:
        while not self._over.wait(2.0):
            free = _free_memory()
            self.memory = max(self.memory, (self._free - free) / 1e9)
            if free < LEAST_FREE:
                os.kill(os.getpid(), signal.SIGTERM)
                return
            for pid, line in self._server.pids().items():
                if seconds := processor_seconds(pid):  # 0 if it has ended
                    self._seconds[pid] = line, seconds


def _free_memory() -> int:
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise FederationError("/proc/meminfo does not say how much memory is available")


if __name__ == "__main__":
    main()
