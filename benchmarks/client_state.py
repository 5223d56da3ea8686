"""Client state on the node's disk: megabytes and seconds a round, as a share of the node's time.

    python -m benchmarks.client_state [--clients 100] [--folder DIR] [--quick]

FUELS on the synthetic traffic, through the app's own node code, with training, evaluation and the
writing of every client's parameters and Adam moments each round. A clock around the store's
methods tells what state costs; what was read is copied within it, as files are mapped and their
bytes arrive only then. With 2 nodes there are two processes at the same time, as in
Flower's simulation on two cores.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

from benchmarks.machine import machine_line
from fedproto_app.core.messages import Order
from fedproto_app.node.part_reply import PartReply, merged
from fedproto_app.node.shares import shares_of
from fedproto_app.node.state_log import Found
from fedproto_app.node.store import ClientStore
from fedproto_app.node.trainer import Node
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.common.halves import make_learner
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.table import load_shard

WARM_UP = 2  # rounds; the first has nothing to read, and from the third on old files are dropped
AIM = 0.05


class RoundCost(NamedTuple):
    """What a round cost one node: seconds in all, reading and writing; bytes read and written."""

    seconds: float
    reading: float
    writing: float
    bytes_read: float
    bytes_written: float

    @property
    def share(self) -> float:
        return (self.reading + self.writing) / self.seconds


class Clock:
    """Adds up the seconds and bytes of one round."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seconds = {"reading": 0.0, "writing": 0.0}
        self.bytes = {"reading": 0.0, "writing": 0.0}

    @contextmanager
    def on(self, kind: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[kind] += time.perf_counter() - start


class ClockedStore(ClientStore):
    """The node's store with a clock around everything that touches the disk."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._clock = clock
        super().__init__(folder)

    def read_states(self, clients: Sequence[str], upto: int) -> list[Found]:
        with self._clock.on("reading"):
            mapped = super().read_states(clients, upto)
            found = [
                Found(places, {name: value.clone() for name, value in tensors.items()})
                for places, tensors in mapped
            ]
        self._clock.bytes["reading"] += sum(_size(tensors) for _, tensors in found)
        return found

    def write_states(
        self, clients: Sequence[str], server_round: int, tensors: Mapping[str, Tensor]
    ) -> None:
        with self._clock.on("writing"):
            super().write_states(clients, server_round, tensors)
        self._clock.bytes["writing"] += _size(tensors)

    def settle(self) -> None:
        with self._clock.on("writing"):
            super().settle()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Megabytes and seconds of client state a round, as a share of a node's time."
    )
    parser.add_argument("--clients", type=int, default=100, metavar="N", help="clients (100)")
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="rounds that count, after 2 more (5)"
    )
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="whose disk to measure (the temporary folder's)"
    )
    parser.add_argument("--quick", action="store_true", help="20 clients, 3 rounds")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.clients, arguments.rounds = 20, 3
    if arguments.clients < 2 or arguments.rounds < 1:
        parser.error("--clients: at least 2, --rounds: at least 1")
    if arguments.folder and not arguments.folder.is_dir():
        parser.error(f"--folder {arguments.folder}: no such folder")

    console = Console()
    costs = {}
    with Progress(console=console, refresh_per_second=2) as progress:
        for nodes in (1, 2):
            bar = progress.add_task(f"{nodes} node{'s' if nodes > 1 else ''}", total=None)
            costs[nodes] = measure(nodes, arguments.clients, arguments.rounds, arguments.folder)
            progress.update(bar, total=1, completed=1)
    console.print(table(arguments.clients, costs))
    console.print(machine_line(), style="dim")


def measure(nodes: int, clients: int, rounds: int, folder: Path | None) -> list[RoundCost]:
    """The counted rounds of all nodes, each node a process."""
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=folder) as state,
        ProcessPoolExecutor(nodes, mp_context=spawn) as pool,
    ):
        running = [
            pool.submit(run_node, node, nodes, clients, rounds, Path(state) / str(node))
            for node in range(nodes)
        ]
        return [cost for future in running for cost in future.result()]


def run_node(node: int, nodes: int, clients: int, rounds: int, folder: Path) -> list[RoundCost]:
    """Train this node's share of the clients; what each counted round cost."""
    settings = settings_from({"data.synthetic.clients": clients})
    torch.set_num_threads(settings.threads)
    torch.set_flush_denormal(True)  # as the app does
    clock = Clock()

    return list(_rounds(settings, node, nodes, rounds, ClockedStore(folder, clock), clock))[
        WARM_UP:
    ]


def _rounds(
    settings: Settings, node: int, nodes: int, rounds: int, store: ClientStore, clock: Clock
) -> Iterator[RoundCost]:
    """Rounds with each client's own prototype as its positive, its neighbour's as its negative."""
    shard = load_shard(settings, node, nodes)
    names = list(shard.clients)
    learner = make_learner(settings, ForecastingTask(settings))
    worker = Node(settings, shard, store, learner)
    order = Order("benchmark", "", 1, names, evaluate=True)
    for server_round in range(1, WARM_UP + rounds + 1):
        clock.reset()
        start = time.perf_counter()
        shares = shares_of(order, shard, learner.task, settings.cohort_on_cpu)
        cohorts = worker.train(order, shares)
        seconds = time.perf_counter() - start
        reply = merged([PartReply(cohorts, {}, seconds)])
        yield RoundCost(
            seconds,
            clock.seconds["reading"],
            clock.seconds["writing"],
            clock.bytes["reading"],
            clock.bytes["writing"],
        )
        own = reply.arrays["prototypes"]
        arrays = {"positive": own, "negative": np.roll(own, 1, axis=0)}
        order = Order(
            "benchmark",
            "",
            server_round + 1,
            names,
            evaluate=True,
            arrays=arrays,
            guided=reply.names,
        )


def table(clients: int, costs: Mapping[int, list[RoundCost]]) -> Table:
    """Medians over the rounds of all nodes, per node and round."""
    shares = [statistics.median(cost.share for cost in rounds) for rounds in costs.values()]
    result = Table(
        title=f"Client state of FUELS a node and round, {clients} clients in all",
        caption=f"share of the node's time at most {max(shares):.1%}, aim < {AIM:.0%}: "
        f"{'reached' if max(shares) < AIM else 'missed'}; without waiting for the disk itself",
    )
    headings = ("nodes", "clients each", "MB read", "MB written", "s read", "s written", "s round")
    for heading in (*headings, "share"):
        result.add_column(heading, justify="right")
    for (nodes, rounds), share in zip(costs.items(), shares, strict=True):
        median = RoundCost(*(statistics.median(values) for values in zip(*rounds, strict=True)))
        result.add_row(
            str(nodes),
            str(clients // nodes),
            f"{median.bytes_read / 1e6:.1f}",
            f"{median.bytes_written / 1e6:.1f}",
            f"{median.reading:.3f}",
            f"{median.writing:.3f}",
            f"{median.seconds:.2f}",
            f"{share:.1%}",
        )
    return result


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(value.nbytes for value in tensors.values())


if __name__ == "__main__":
    main()
