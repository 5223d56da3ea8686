"""FedAvg in this app against stock Flower with one client per node, through Flower's simulation.

    python -m benchmarks.stock_flower [--days 14 42] [--quick]

Both apps train the same forecaster on the same windows and batches with Adam, one local epoch a
round, under a SuperLink of their own with Ray on 2 CPUs and 1 CPU a node; they run in turns. The
peer is `benchmarks/stock_app`, one node per client; this app holds the clients in 2 nodes. Timed
is the whole round as the server sees it, from the end of one to the end of the next; neither
evaluates in between. The first rounds, in which Ray starts and data is loaded, do not count.

Flower's own cost a node does not depend on how long a client trains, so the ratio does: it is
told for series of two lengths, 7 and 27 batches a client and epoch.
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
from fedproto_app.errors import FederationError
from fedproto_app.ops.superlink import SuperLink, tail
from fedproto_app.report.progress import GrowingFile
from fedproto_app.settings import settings_from

REPOSITORY = Path(__file__).resolve().parent.parent
WARM_UP = 2  # rounds
AIM = 5.0
DEADLINE = 180.0  # seconds without a new round


class Work(NamedTuple):
    """What both apps are given to do: clients, days of each client's series, rounds in all."""

    clients: int
    days: int
    rounds: int


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


class Comparison(NamedTuple):
    """The runs of both apps on the same work."""

    work: Work
    stock: list[Timing]
    ours: list[Timing]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Clients trained a second by FedAvg: this app's cohorts in 2 nodes against a "
        "stock Flower app with one client per node."
    )
    parser.add_argument("--clients", type=int, default=24, metavar="N", help="clients (24)")
    parser.add_argument(
        "--days", type=int, nargs="+", default=[14, 42], metavar="N", help="of the series (14 42)"
    )
    parser.add_argument(
        "--rounds", type=int, default=8, metavar="N", help="rounds that count, a run (8)"
    )
    parser.add_argument(
        "--repetitions", type=int, default=2, metavar="N", help="runs of each app, in turns (2)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="24 clients, 42 days, one run each of 4 rounds"
    )
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.clients, arguments.days = 24, [42]
        arguments.rounds, arguments.repetitions = 4, 1
    for name, least in (("clients", 2), ("rounds", 1), ("repetitions", 1)):
        if getattr(arguments, name) < least:
            parser.error(f"--{name} {getattr(arguments, name)}: at least {least}")
    if min(arguments.days) < 8:
        parser.error(f"--days {min(arguments.days)}: at least 8")

    console = Console()
    with console.status("") as status:
        comparisons = [
            compare(
                Work(arguments.clients, days, WARM_UP + arguments.rounds),
                arguments.repetitions,
                status.update,
            )
            for days in arguments.days
        ]
    console.print(table(comparisons))
    for comparison in comparisons:
        console.print(verdict(comparison))
    console.print(machine_line(), style="dim")


def compare(work: Work, repetitions: int, progress: Callable[[str], None]) -> Comparison:
    """Run both apps so many times, in turns."""
    comparison = Comparison(work, [], [])
    for repetition in range(1, repetitions + 1):
        label = f"{work.days} days, run {repetition} of {repetitions}, "
        comparison.ours.append(timed_run(our_app, work, label + "this app: ", progress))
        comparison.stock.append(timed_run(stock_app, work, label + "stock Flower: ", progress))
    return comparison


def our_app(work: Work, folder: Path) -> App:
    """This app's FedAvg, 2 nodes, without evaluation until the end."""
    config = {
        "method": "fedavg",
        "rounds": work.rounds + 1,  # the last is evaluated and not waited for
        "evaluate-every": work.rounds + 1,
        "data.synthetic.clients": work.clients,
        "data.synthetic.days": work.days,
        "nodes.minimum": 2,
        "output.dir": str(folder),
        "output.name": "run",
        "output.pictures": False,
    }
    table = settings_from(config).model_dump(by_alias=True)
    return App(REPOSITORY, table, folder / "run" / "rounds.jsonl", nodes=2)


def stock_app(work: Work, folder: Path) -> App:
    """Flower's FedAvg, a node per client."""
    file = folder / "rounds.jsonl"
    config = {
        "num-server-rounds": work.rounds,
        "clients": work.clients,
        "days": work.days,
        "rounds-file": str(file),
    }
    return App(REPOSITORY / "benchmarks" / "stock_app", config, file, nodes=work.clients)


def timed_run(
    make: Callable[[Work, Path], App], work: Work, label: str, progress: Callable[[str], None]
) -> Timing:
    """Run the app to the end of its last counted round; time the rounds after the warm-up."""
    progress(label + "starting")
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as home,
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as output,
        SuperLink(Path(home), import_path=REPOSITORY) as superlink,
    ):
        app = make(work, Path(output))
        run_id = superlink.simulate(app.folder, app.config, app.nodes, cpus=1)
        file, ends = GrowingFile(app.rounds_file), list[float]()
        loss, heard = float("nan"), time.monotonic()
        while len(ends) < work.rounds:
            time.sleep(0.005)
            for line in file.new_lines():
                heard = time.monotonic()
                ends.append(heard)
                loss = _loss(line, work.clients)
                progress(f"{label}round {len(ends)} of {work.rounds}")
            if time.monotonic() - heard > DEADLINE:
                status, log = superlink.status(run_id), tail(Path(home) / "superlink.log")
                raise FederationError(f"no round for {DEADLINE:g} s: {status.details}\n{log}")
        return Timing([end - start for start, end in pairwise(ends[WARM_UP - 1 :])], loss)


def table(comparisons: list[Comparison]) -> Table:
    """Median seconds a round and clients a second."""
    runs, rounds = len(comparisons[0].ours), len(comparisons[0].ours[0].seconds)
    result = Table(
        title=f"FedAvg on {comparisons[0].work.clients} clients, one local epoch a round, 2 CPUs",
        caption=f"medians over {runs * rounds} rounds in {runs} runs of each",
    )
    result.add_column("app")
    for heading in ("nodes", "days", "s/round", "clients/s", "last loss"):
        result.add_column(heading, justify="right")
    for work, stock, ours in comparisons:
        for title, nodes, timings in (("stock Flower", work.clients, stock), ("this app", 2, ours)):
            rate = clients_per_second(work, timings)
            result.add_row(
                title,
                str(nodes),
                str(work.days),
                f"{work.clients / rate:.3f}",
                f"{rate:,.1f}",
                f"{statistics.mean(timing.loss for timing in timings):.3f}",
            )
    return result


def verdict(comparison: Comparison) -> str:
    """The ratio and whether it is what we want."""
    work, stock, ours = comparison
    ratio = clients_per_second(work, ours) / clients_per_second(work, stock)
    return (
        f"{work.days} days: this app / stock Flower = {ratio:.1f}, aim ≥ {AIM:g}: "
        f"{'reached' if ratio >= AIM else 'missed'}"
    )


def clients_per_second(work: Work, timings: list[Timing]) -> float:
    """Clients over the median seconds of a round."""
    return work.clients / statistics.median(s for timing in timings for s in timing.seconds)


def _loss(line: str, clients: int) -> float:
    """The mean loss a round's line tells; raises if a client did not train."""
    noted = json.loads(line)
    if noted["clients"] != clients:
        raise FederationError(f"{noted['clients']} of {clients} clients trained")
    return float(noted["loss"]["total"])


if __name__ == "__main__":
    main()
