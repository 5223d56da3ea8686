"""Client state on a node's disk: this tree's store beside an earlier commit's, step by step.

    python -m benchmarks.client_state [f11d518] [--clients 10000] [--parameters 6000] [--rounds 10]

Two processes, one with each version of the code, keep the state of the same clients: parameters and
Adam's two moments, in cohorts of 16. They take turns at every step, so other work on the machine
slows both. A step is an order of a node: a new store is opened, and the order is settled.
Tensors that were read are copied, because files may be mapped into memory and their bytes arrive
only then. Seconds are medians over the rounds from the fourth on, when old states are dropped.

Then each trains and evaluates 64 clients of the synthetic traffic with FUELS, and writes their
state (1.3 MB a client) after each round, as a node of a deployment does. The ratio of the seconds
of these rounds shows what the store costs in practice.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.pages import ROOT

LAST_LOG = "f11d518"  # the last commit whose nodes kept an append-only log of files
COHORT = 16
STEPS = ("write all", "write 1%", "load a cohort", "load all")
TRAINING = "train and write"


def main() -> None:
    parser = argparse.ArgumentParser(description="Two versions of the clients' state, in turns.")
    parser.add_argument("commit", nargs="?", default=LAST_LOG, help="the earlier commit")
    parser.add_argument("--clients", type=int, default=10_000, metavar="N")
    parser.add_argument("--parameters", type=int, default=6_000, metavar="N", help="of a client")
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="at least 4")
    parser.add_argument("--trained", type=int, default=64, metavar="N", help="clients; 0: none")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="on the disk to measure")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments)
        return
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as folder,
        checked_out(arguments.commit, Path(folder) / "tree") as tree,
    ):
        report(arguments, measure(arguments, {arguments.commit: tree, "now": ROOT}, Path(folder)))


@contextmanager
def checked_out(commit: str, tree: Path) -> Iterator[Path]:
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def measure(
    arguments: argparse.Namespace, trees: dict[str, Path], folder: Path
) -> dict[str, list[dict[str, Any]]]:
    """Return each version's answers to every step, in the order of the steps."""
    workers = {
        version: subprocess.Popen(
            [sys.executable, str(Path(__file__)), *sys.argv[1:], "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tree)},
            cwd=folder,
        )
        for version, tree in trees.items()
    }
    answers: dict[str, list[dict[str, Any]]] = {version: [] for version in workers}
    try:
        rounds = range(1, arguments.rounds + 1)
        order = [(step, server_round) for server_round in rounds for step in STEPS]
        order += [(TRAINING, server_round) for server_round in rounds if arguments.trained]
        for step, server_round in order:
            for version, worker in workers.items():
                assert worker.stdin
                assert worker.stdout
                question = {"step": step, "round": server_round, "folder": version}
                worker.stdin.write(json.dumps(question) + "\n")
                worker.stdin.flush()
                answer = {**question, **json.loads(worker.stdout.readline())}
                print(json.dumps(answer), file=sys.stderr)  # where a run of many minutes stands
                answers[version].append(answer)
    finally:
        for worker in workers.values():
            worker.communicate()
    return answers


def report(arguments: argparse.Namespace, answers: dict[str, list[dict[str, Any]]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from benchmarks.machine import machine_line

    table = Table(
        title=f"{arguments.clients} clients of {arguments.parameters} parameters, "
        f"{arguments.rounds} rounds; training: {arguments.trained} clients of FUELS"
    )
    for heading in ("", *answers, "ratio", *(f"CPU {version}" for version in answers), "ratio"):
        table.add_column(heading, justify="right")

    def median(version: str, step: str, key: str) -> float:
        rounds = [a for a in answers[version] if a["step"] == step and a["round"] >= 4]
        return float(statistics.median(answer[key] for answer in rounds))

    for step in (*STEPS, TRAINING) if arguments.trained else STEPS:
        cells = []
        for key in ("seconds", "processor"):
            before, after = (median(version, step, key) for version in answers)
            cells += [f"{before:.3f} s", f"{after:.3f} s", f"{after / before:.2f}"]
        table.add_row(step, *cells)
    for key, name in (("bytes", "MB on the disk"), ("memory", "MB of memory, peak")):
        before, after = (
            [answer[key] for answer in steps if answer["step"] in STEPS][-1]
            for steps in answers.values()
        )
        table.add_row(name, f"{before / 1e6:.0f}", f"{after / 1e6:.0f}", f"{after / before:.2f}")
    console = Console(width=120)
    console.print(table)
    console.print(machine_line(), style="dim")


# --- a process with one version of the code -------------------------------------------------------


def work(arguments: argparse.Namespace) -> None:
    """Do a step for each line of standard input; a line of JSON is the answer."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # as the app does
    names = [f"client-{number:05d}" for number in range(arguments.clients)]
    layers = 12
    cohort = {
        f"{group}/layer-{layer}": torch.randn(COHORT, arguments.parameters // layers)
        for group in ("parameters", "exp_avg", "exp_avg_sq")
        for layer in range(layers)
    }
    train: Callable[[int], None] | None = None
    for line in sys.stdin:
        question = json.loads(line)
        folder, server_round, step = Path(question["folder"]), question["round"], question["step"]
        if step == TRAINING:
            train = train or trainer(folder / "trained", arguments.trained)
        start, processor = time.perf_counter(), time.process_time()
        if step == "write all":
            write(folder / "all", names, server_round, cohort)
        elif step == "write 1%":
            write(folder / "all", names[: len(names) // 100], server_round, cohort)
        elif step == "load a cohort":
            load(folder / "all", names[:COHORT], server_round, cohort)
        elif step == "load all":
            load(folder / "all", names, server_round, cohort)
        elif train:
            train(server_round)
        answer = {
            "seconds": time.perf_counter() - start,
            "processor": time.process_time() - processor,
            "bytes": sum(p.stat().st_size for p in (folder / "all").rglob("*") if p.is_file()),
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
        print(json.dumps(answer), flush=True)
    for part in ("all", "trained"):
        shutil.rmtree(folder / part, ignore_errors=True)


def write(
    folder: Path, names: list[str], server_round: int, cohort: dict[str, torch.Tensor]
) -> None:
    from fedproto_app.node.store import ClientStore

    store = ClientStore(folder)
    store.begin(server_round)
    for first in range(0, len(names), COHORT):
        chosen = names[first : first + COHORT]
        states = {name: value[: len(chosen)] for name, value in cohort.items()}
        store.write_states(chosen, server_round, states)
    store.settle()


def load(
    folder: Path, names: list[str], server_round: int, cohort: dict[str, torch.Tensor]
) -> None:
    from fedproto_app.node.store import ClientStore

    store = ClientStore(folder)
    store.begin(server_round)
    for first in range(0, len(names), COHORT):
        for places, tensors in store.read_states(names[first : first + COHORT], server_round):
            for name, value in tensors.items():
                cohort[name][places] = value
    store.settle()


def trainer(folder: Path, clients: int) -> Callable[[int], None]:
    """Train, evaluate and write these clients with FUELS, given the round."""
    from fedproto_app.node.shares import Share
    from fedproto_app.node.store import ClientStore
    from fedproto_app.node.trainer import Node
    from fedproto_app.settings import settings_from
    from fedproto_app.tasks.table import load_shard, make_task

    make_learner = either(
        "make_learner",
        "fedproto_app.strategies.common.halves",
        "fedproto_app.strategies.common.learner",
    )
    order_of = either("Order", "fedproto_app.core.messages", "fedproto_app.core.messages")
    settings = settings_from({"data.synthetic.clients": clients})
    shard = load_shard(settings, 0, 1)
    learner = make_learner(settings, make_task(settings, shard.shape))

    def train(server_round: int) -> None:
        node = Node(settings, shard, ClientStore(folder), learner)
        names, size = list(shard.clients), settings.cohort_on_cpu
        cohorts = [names[first : first + size] for first in range(0, len(names), size)]
        order = order_of("benchmark", "", server_round, names, evaluate=True)
        node.train(order, [Share(place, cohort) for place, cohort in enumerate(cohorts)])

    return train


def either(name: str, *modules: str) -> Any:
    """Return the object with this name from the first of these modules that the version has."""
    module = next(module for module in modules if has_module(module))
    return getattr(import_module(module), name)


def has_module(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor its package
        return False


if __name__ == "__main__":
    main()
