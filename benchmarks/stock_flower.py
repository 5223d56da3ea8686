"""FedAvg in this app against stock Flower with one client per node, through Flower's simulation.

    python -m benchmarks.stock_flower [--clients 24] [--quick]

Both apps train the same forecaster on the same windows and batches with Adam, one local epoch a
round, under a SuperLink of their own with Ray on 2 CPUs and 1 CPU a node; they run in turns. The
peer is `benchmarks/stock_app`, one node per client; this app holds the clients in 2 nodes. Timed
is the whole round as the server sees it, from the end of one to the end of the next; neither
evaluates in between. The first rounds, in which Ray starts and data is loaded, do not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine_line
from fedproto_app.cli.superlink import SuperLink, tail
from fedproto_app.errors import FederationError
from fedproto_app.report.progress import GrowingFile
from fedproto_app.settings import settings_from

REPOSITORY = Path(__file__).resolve().parent.parent
WARM_UP = 2  # rounds
AIM = 5.0
DEADLINE = 180.0  # seconds without a new round


class App(NamedTuple):
    """A Flower app to time: its folder, its run configuration, where it notes its rounds."""

    folder: Path
    config: dict[str, Any]
    rounds_file: Path
    nodes: int


class Timing(NamedTuple):
    """One run: seconds of each counted round, and the mean training loss of the last one."""

    seconds: list[float]
    loss: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Clients trained a second by FedAvg: this app's cohorts in 2 nodes against a "
        "stock Flower app with one client per node."
    )
    parser.add_argument("--clients", type=int, default=24, metavar="N", help="clients (24)")
    parser.add_argument(
        "--rounds", type=int, default=10, metavar="N", help="rounds that count, a run (10)"
    )
    parser.add_argument(
        "--repetitions", type=int, default=3, metavar="N", help="runs of each app, in turns (3)"
    )
    parser.add_argument("--quick", action="store_true", help="one run each of 4 rounds")
    arguments = parser.parse_args()
    for name in ("clients", "rounds", "repetitions"):
        if getattr(arguments, name) < (2 if name == "clients" else 1):
            parser.error(f"--{name} {getattr(arguments, name)}: too few")
    if arguments.quick:
        arguments.rounds, arguments.repetitions = 4, 1

    console = Console()
    ours: list[Timing] = []
    stock: list[Timing] = []
    with console.status("") as status:
        for repetition in range(1, arguments.repetitions + 1):
            for title, make, timings in (("this app", our_app, ours), ("stock", stock_app, stock)):
                label = f"run {repetition} of {arguments.repetitions}, {title}: "
                timings.append(
                    timed_run(make, arguments.clients, arguments.rounds, label, status.update)
                )
    console.print(table(arguments.clients, ours, stock))
    console.print(machine_line(), style="dim")


def our_app(clients: int, rounds: int, folder: Path) -> App:
    """This app's FedAvg, 2 nodes, without evaluation until the end."""
    config = {
        "method": "fedavg",
        "rounds": rounds + 1,  # the last is evaluated and not waited for
        "evaluate-every": rounds + 1,
        "data.synthetic.clients": clients,
        "nodes.minimum": 2,
        "output.dir": str(folder),
        "output.name": "run",
        "output.pictures": False,
    }
    table = settings_from(config).model_dump(by_alias=True)
    return App(REPOSITORY, table, folder / "run" / "rounds.jsonl", nodes=2)


def stock_app(clients: int, rounds: int, folder: Path) -> App:
    """Flower's FedAvg, a node per client."""
    file = folder / "rounds.jsonl"
    config = {"num-server-rounds": rounds, "clients": clients, "rounds-file": str(file)}
    return App(REPOSITORY / "benchmarks" / "stock_app", config, file, nodes=clients)


def timed_run(
    make: Callable[[int, int, Path], App],
    clients: int,
    rounds: int,
    label: str,
    progress: Callable[[str], None],
) -> Timing:
    """Run the app for its warm-up and so many rounds more, and time those."""
    progress(label + "starting")
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as home,
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as output,
        SuperLink(Path(home), import_path=REPOSITORY) as superlink,
    ):
        app = make(clients, WARM_UP + rounds, Path(output))
        run_id = superlink.submit(app.folder, app.config, app.nodes, cpus=1)
        file, ends = GrowingFile(app.rounds_file), list[float]()
        loss, heard = float("nan"), time.monotonic()
        while len(ends) < WARM_UP + rounds:
            time.sleep(0.005)
            for line in file.new_lines():
                heard = time.monotonic()
                ends.append(heard)
                round_ = json.loads(line)
                loss = round_["loss"]["total"]
                if round_["clients"] != clients:
                    raise FederationError(f"{round_['clients']} of {clients} clients trained")
                progress(f"{label}round {len(ends)} of {WARM_UP + rounds}")
            if time.monotonic() - heard > DEADLINE:
                status, log = superlink.status(run_id), tail(Path(home) / "superlink.log")
                raise FederationError(f"no round for {DEADLINE:g} s: {status.details}\n{log}")
        counted = ends[WARM_UP - 1 :]
        return Timing([end - start for start, end in pairwise(counted)], loss)


def table(clients: int, ours: list[Timing], stock: list[Timing]) -> Table:
    """Median seconds a round, clients a second, and the ratio of the two."""
    rates = {
        name: clients / statistics.median(s for timing in timings for s in timing.seconds)
        for name, timings in (("ours", ours), ("stock", stock))
    }
    ratio = rates["ours"] / rates["stock"]
    result = Table(
        title=f"FedAvg on {clients} clients, one local epoch a round, 2 CPUs",
        caption=f"this app / stock Flower = {ratio:.1f}, aim ≥ {AIM:g}: "
        f"{'reached' if ratio >= AIM else 'missed'}; medians over {len(ours)} runs each of "
        f"{len(ours[0].seconds)} rounds",
    )
    result.add_column("app")
    for heading in ("nodes", "s/round", "clients/s", "last loss"):
        result.add_column(heading, justify="right")
    for title, name, nodes, timings in (
        ("stock Flower", "stock", clients, stock),
        ("this app", "ours", 2, ours),
    ):
        loss = statistics.mean(timing.loss for timing in timings)
        result.add_row(
            title,
            str(nodes),
            f"{clients / rates[name]:.3f}",
            f"{rates[name]:,.1f}",
            f"{loss:.3f}",
        )
    return result


if __name__ == "__main__":
    main()
