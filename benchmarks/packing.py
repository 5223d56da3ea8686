"""Clients of unequal length: cohorts cut by length, as the app does, against cohorts by name.

    python -m benchmarks.packing [--quick]

64 clients of the synthetic traffic, in no order, on one node of one process: with 1 to 20 batches
an epoch, each number as likely, or one client in eight with 20 batches and the others with 1. A
cohort's step holds the clients that still have batches, so in a cohort of unequal ones the longest
goes on with few others or alone. Both ways train the same clients to the same models, in turns; the
script fails if they differ by more than float32's rounding.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.machine import machine_line
from fedproto_app.core.messages import Order, Reply
from fedproto_app.data.shard import Shard
from fedproto_app.data.windows import ClientWindows
from fedproto_app.node.part_reply import PartReply, merged
from fedproto_app.node.shares import Share, shares_of
from fedproto_app.node.store import ClientStore
from fedproto_app.node.trainer import Node
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.tasks.table import load_shard, make_task

CLIENTS, SHORTEST, LONGEST = 64, 1, 20
MEMORY = 10**10  # bytes for states: they stay in memory


class Cut(NamedTuple):
    """A way to cut a node's clients into cohorts, and how full their steps are."""

    name: str
    shares: list[Share]
    steps: int
    clients: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description="A round of clients with 1 to 20 batches: cohorts by length and by name."
    )
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="in turns (5)")
    parser.add_argument("--quick", action="store_true", help="2 repetitions")
    arguments = parser.parse_args()
    repetitions = 2 if arguments.quick else arguments.repetitions
    if repetitions < 1:
        parser.error(f"--repetitions {repetitions}: at least 1")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as the app does
    settings = settings_from({"method": "solo", "data.synthetic.clients": CLIENTS})
    rng, console = np.random.default_rng(0), Console()
    result = Table(title=f"A round of {CLIENTS} clients, by cohorts of {settings.cohort_on_cpu}")
    for heading in ("batches", "cohorts", "steps", "clients a step", "CPU-s a round", "ratio"):
        result.add_column(heading, justify="right")
    for name, counts in (
        ("1 to 20", rng.integers(SHORTEST, LONGEST, CLIENTS, endpoint=True)),
        ("1 or 20", rng.permutation(np.where(np.arange(CLIENTS) % 8, SHORTEST, LONGEST))),
    ):
        shard = unequal(settings, counts.tolist())
        order = Order("benchmark", "", 1, list(shard.clients), evaluate=True)
        cuts = [by_name(settings, shard, order), by_length(settings, shard, order)]
        seconds = measured(settings, shard, order, cuts, repetitions)
        add_rows(result, name, cuts, seconds)
    console.print(result)
    console.print(machine_line(), style="dim")


def measured(
    settings: Settings, shard: Shard, order: Order, cuts: Sequence[Cut], repetitions: int
) -> list[list[float]]:
    """Return the processor seconds of each repetition, by cut; other work affects these less."""
    seconds: list[list[float]] = [[] for _ in cuts]
    replies: dict[str, Reply] = {}
    for repetition in track(
        range(repetitions + 1), "training", console=Console(stderr=True), transient=True
    ):
        for cut, spent in zip(cuts, seconds, strict=True):
            started = time.process_time()
            replies[cut.name] = a_round(settings, shard, order, cut.shares)
            if repetition:  # the first is a warm-up
                spent.append(time.process_time() - started)
    require_same(*replies.values())
    return seconds


def unequal(settings: Settings, counts: Sequence[int]) -> Shard:
    """Return the clients, each with so many of its batches."""
    shard, clients = load_shard(settings, 0, 1), {}
    for (name, client), count in zip(shard.clients.items(), counts, strict=True):
        assert isinstance(client, ClientWindows)
        clients[name] = replace(client, batches=client.batches[:count])
    return Shard(clients, {}, shard.shape)


def by_name(settings: Settings, shard: Shard, order: Order) -> Cut:
    """Return cohorts in the order of names, each with its longest client first."""
    names, size = sorted(order.clients), settings.cohort_on_cpu
    parts = [names[first : first + size] for first in range(0, len(names), size)]
    for part in parts:
        part.sort(key=lambda name: -batches(shard, name))
    return cut("by name", [Share(place, part) for place, part in enumerate(parts)], shard)


def by_length(settings: Settings, shard: Shard, order: Order) -> Cut:
    """Return cohorts as the app cuts them."""
    shares = shares_of(order, shard, make_task(settings, shard.shape), settings.cohort_on_cpu)
    return cut("by length", shares, shard)


def cut(name: str, shares: Sequence[Share], shard: Shard) -> Cut:
    """Return the cut with the steps of an epoch."""
    counts = [[batches(shard, client) for client in share.clients] for share in shares]
    steps = sum(max(shard_batches) for shard_batches in counts)
    return Cut(name, list(shares), steps, sum(map(sum, counts)) / steps)


def batches(shard: Shard, name: str) -> int:
    client = shard.clients[name]
    assert isinstance(client, ClientWindows)
    return len(client.batches)


def a_round(settings: Settings, shard: Shard, order: Order, shares: Sequence[Share]) -> Reply:
    """Train and evaluate all clients."""
    learner = make_learner(settings, make_task(settings, shard.shape))
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        node = Node(
            settings,
            shard,
            ClientStore(Path(folder), MEMORY, lasting=True, clients=CLIENTS),
            learner,
        )
        return merged([PartReply(node.train(order, shares), {}, 0.0)])


def require_same(first: Reply, second: Reply) -> None:
    """Exit unless the clients' losses and metrics are equal in both cuts."""
    mine, others = numbers_of(first), numbers_of(second)
    for (client, name), value in mine.items():
        if not np.isclose(value, others[client, name], rtol=1e-4):
            raise SystemExit(f"{client}: {name} is {value} and {others[client, name]}")


def numbers_of(reply: Reply) -> dict[tuple[str, str], float]:
    """Return each client's numbers, by client and name."""
    tables = [
        *reply.losses.items(),
        *((str(metric), values) for metric, values in reply.metrics.items()),
    ]
    return {
        (client, name): value
        for name, values in tables
        for client, value in zip(reply.names, values, strict=True)
    }


def add_rows(
    result: Table, name: str, cuts: Sequence[Cut], seconds: Sequence[Sequence[float]]
) -> None:
    """Add medians; the ratio is over the repetitions in turn, with both ends."""
    for cut, spent in zip(cuts, seconds, strict=True):
        ratios = [a / b for a, b in zip(seconds[0], spent, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        result.add_row(
            name,
            cut.name,
            str(cut.steps),
            f"{cut.clients:.1f}",
            f"{statistics.median(spent):.2f}",
            spread if cut is not cuts[0] else "",
        )


if __name__ == "__main__":
    main()
