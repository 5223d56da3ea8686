"""Client state on a node's disk, step by step.

    python -m benchmarks.client_state [--clients 10000] [--parameters 6000] [--rounds 10]

Keeps the state of many clients, parameters and Adam's two moments, in cohorts of 16. A step is an
order of a node: a new store is opened, and the order is settled. Tensors that were read are copied,
because files may be mapped into memory and their bytes arrive only then. Seconds are medians over
the rounds from the fourth on, when old states are dropped.

Then a node trains and evaluates 64 clients of the synthetic traffic with FUELS, and writes their
state (1.3 MB a client) after each round, as a node of a deployment does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.parts import peak_memory
from benchmarks.tables import figure_table, print_with_machine
from fedproto_app.core.messages import Order
from fedproto_app.node.shares import Share
from fedproto_app.node.store import ClientStore
from fedproto_app.node.trainer import Node
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.learner import make_learner
from fedproto_app.tasks.table import load_shard, make_task

COHORT, LAYERS = 16, 12
FIRST_COUNTED = 4  # the round in which a store first drops old states
Step = Callable[[int], None]  # given the round


def main() -> None:
    parser = argparse.ArgumentParser(description="What the clients' state costs on a node's disk.")
    parser.add_argument("--clients", type=int, default=10_000, metavar="N")
    parser.add_argument("--parameters", type=int, default=6_000, metavar="N", help="of a client")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="at least 4")
    parser.add_argument("--trained", type=int, default=64, metavar="N", help="clients; 0: none")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="on the disk to measure")
    arguments = parser.parse_args()
    if arguments.rounds < FIRST_COUNTED:
        parser.error(f"--rounds {arguments.rounds}: at least {FIRST_COUNTED}")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as the app does
    rounds = range(1, arguments.rounds + 1)
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as folder,
        Console().status("the store's steps") as status,
    ):
        store = Path(folder) / "all"
        rows = timed_rows(store_steps(store, arguments.clients, arguments.parameters), rounds)
        bytes_on_disk = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
        peak = peak_memory()
        if arguments.trained:
            status.update("training")
            training = trainer(Path(folder) / "trained", arguments.trained)
            rows += timed_rows({"train and write": training}, rounds)
    rows += [
        ["MB on the disk", f"{bytes_on_disk / 1e6:.0f}"],
        ["MB of memory, peak", f"{peak / 1e6:.0f}"],
    ]
    title = f"{arguments.clients} clients of {arguments.parameters} parameters, "
    title += f"{arguments.rounds} rounds; training: {arguments.trained} clients of FUELS"
    print_with_machine(figure_table(["", "seconds", "CPU seconds"], rows, title=title))


def timed_rows(steps: dict[str, Step], rounds: range) -> list[list[str]]:
    """Take all steps in each round; return a row of median seconds for each."""
    spent: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for server_round in rounds:
        for name, step in steps.items():
            start, processor = time.perf_counter(), time.process_time()
            step(server_round)
            seconds = time.perf_counter() - start, time.process_time() - processor
            spent[name] += [seconds] if server_round >= FIRST_COUNTED else []
    return [
        [name, *(f"{statistics.median(kind):.3f}" for kind in zip(*seconds, strict=True))]
        for name, seconds in spent.items()
    ]


def store_steps(folder: Path, clients: int, parameters: int) -> dict[str, Step]:
    """Return the steps by name, in their order."""
    names = [f"client-{number:05d}" for number in range(clients)]
    cohort = {
        f"{group}/layer-{layer}": torch.randn(COHORT, parameters // LAYERS)
        for group in ("parameters", "exp_avg", "exp_avg_sq")
        for layer in range(LAYERS)
    }

    def write(chosen: list[str], server_round: int) -> None:
        store = ClientStore(folder)
        store.begin(server_round)
        for first in range(0, len(chosen), COHORT):
            written = chosen[first : first + COHORT]
            states = {name: value[: len(written)] for name, value in cohort.items()}
            store.write_states(written, server_round, states)
        store.settle()

    def load(chosen: list[str], server_round: int) -> None:
        store = ClientStore(folder)
        store.begin(server_round)
        for first in range(0, len(chosen), COHORT):
            for places, tensors in store.read_states(chosen[first : first + COHORT], server_round):
                for name, value in tensors.items():
                    cohort[name][places] = value
        store.settle()

    return {
        "write all": partial(write, names),
        "write 1%": partial(write, names[: len(names) // 100]),
        "load a cohort": partial(load, names[:COHORT]),
        "load all": partial(load, names),
    }


def trainer(folder: Path, clients: int) -> Step:
    """Return what trains, evaluates and writes these clients with FUELS, given the round."""
    settings = settings_from({"data.synthetic.clients": clients})
    shard = load_shard(settings, 0, 1)
    learner = make_learner(settings, make_task(settings, shard.shape))

    def train(server_round: int) -> None:
        node = Node(settings, shard, ClientStore(folder), learner)
        names, size = list(shard.clients), settings.cohort_on_cpu
        cohorts = [names[first : first + size] for first in range(0, len(names), size)]
        order = Order("benchmark", "", server_round, names, evaluate=True)
        node.train(order, [Share(place, cohort) for place, cohort in enumerate(cohorts)])

    return train


if __name__ == "__main__":
    main()
