"""FedAvg by `fedproto run` against stock Flower, plain and batched torch loops and pfl-research.

    python -m benchmarks.stock_flower [--clients 100] [--days 10] [--peers …]

All train the same forecaster on the same windows and batches: Adam (fused, as fast as torch has
it), one local epoch a round, two processes of one thread each, whatever the environment says. They
run in turns, several times. A round is timed from the end of the previous round to its own, as
written to the file, and nothing is evaluated in between. The processor time of all processes per
round comes first, because it depends less on other work of the machine. The first rounds do not
count, because processes start and data is loaded. At the end all must have reached the same loss.

stock Flower: `benchmarks/stock_app`, one client a node, under a SuperLink with Ray. plain loop:
`benchmarks/peers/plain_loop.py`, no framework at all. batched loop: `batched_loop.py` beside it,
cohorts by bmm. pfl: `benchmarks/peers/pfl_loop.py`, in an environment that is made for it in
.venv-pfl. If that fails, pfl is left out, with the reason.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks.pages import ROOT, Lines, print_table
from benchmarks.parts import PROGRAM, changes_of, end, output_in, parser_of, processor_seconds
from benchmarks.peers.pfl_home import pfl_python
from fedproto_app.core.errors import FederationError
from fedproto_app.data.sources import load_series
from fedproto_app.data.windows import make_windows
from fedproto_app.ops.guardian import marked_processes
from fedproto_app.ops.superlink import SuperLink, tail
from fedproto_app.report.progress import GrowingFile
from fedproto_app.settings import flower_config, settings_from

WARM_UP = 2  # rounds
DEADLINE = 180.0  # seconds without a new round
SAME_LOSS = 0.1  # of the mean of all; first models and orders of batches differ
OURS, NUMBA = "fedproto run", "fedproto run, numba"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
AIMS = {  # times the processor time of `fedproto run`, with each kernel
    "stock Flower": {OURS: 5.0, NUMBA: 7.5},
    "plain loop": {OURS: 1.8, NUMBA: 2.6},
    "pfl": {OURS: 2.0, NUMBA: 3.0},
}


class Work(NamedTuple):
    """The work of every contestant: clients, days of a client's series, rounds, and the file of the
    batches for contestants that do not read the series."""

    clients: int
    days: int
    rounds: int
    file: Path


class Running(NamedTuple):
    """A running contestant: the file of its rounds, the reason for a failure, and the FLWR_HOME in
    the environment of all its processes."""

    rounds_file: Path
    trouble: Callable[[], str]
    home: Path


class Timing(NamedTuple):
    """A run: seconds of each counted round, the mean training loss of the last one, and the
    processor time of all processes, seconds a round."""

    seconds: list[float]
    loss: float
    processor: float

    @property
    def round(self) -> float:
        return statistics.median(self.seconds)


Start = Callable[[Work, Path], AbstractContextManager[Running]]
Runs = dict[str, list[Timing]]


def main() -> None:
    contestants: dict[str, Start] = {
        OURS: fedproto_run,
        NUMBA: compiled_run,
        "this app in Flower's engine": flowers_engine,
        "stock Flower": stock_flower,
        "plain loop": plain_loop,
        "batched loop": batched_loop,
        "pfl": pfl,
    }
    parser = parser_of(__doc__)
    least = {"clients": 2, "days": 8, "rounds": 1, "repetitions": 1}
    parser.add_argument("--clients", type=int, default=100, metavar="N", help="clients (100)")
    parser.add_argument("--days", type=int, default=10, metavar="N", help="of the series (10)")
    parser.add_argument("--rounds", type=int, default=8, metavar="N", help="that count, a run (8)")
    parser.add_argument("--repetitions", type=int, default=3, metavar="N", help="in turns (3)")
    parser.add_argument("--peers", nargs="*", default=list(contestants)[1:], choices=contestants)
    arguments = parser.parse_args()
    for name, smallest in least.items():
        if getattr(arguments, name) < smallest:
            parser.error(f"--{name} {getattr(arguments, name)}: at least {smallest}")

    for name in THREADS:  # each contestant has one thread a process and says so itself
        os.environ.pop(name, None)
    console = Console()
    chosen = {name: contestants[name] for name in (OURS, *arguments.peers)}
    if NUMBA in chosen and find_spec("numba") is None:
        console.print("the numba kernel left out: it needs fedproto-app[fast]")
        del chosen[NUMBA]
    if "pfl" in chosen:
        with console.status("pfl-research: its environment"):
            python, why = pfl_python(ROOT / ".venv-pfl")
        if python is None:
            console.print(f"pfl-research left out: it cannot be installed here: {why}")
            del chosen["pfl"]
    with console.status("") as status, tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file = Path(folder) / "clients.npz"
        write_clients(file, arguments.clients, arguments.days)
        work = Work(arguments.clients, arguments.days, WARM_UP + arguments.rounds, file)
        runs = compare(chosen, work, arguments.repetitions, status.update)
    print_table(table(work, runs), *verdicts(runs))
    if loss_spread(runs) > SAME_LOSS:
        sys.exit("the losses differ: these did not do the same work")


def write_clients(file: Path, clients: int, days: int) -> None:
    """Write all clients' batches for the peers, client by client."""
    settings = settings_from({"data.synthetic.clients": clients, "data.synthetic.days": days})
    windows = [make_windows(series, settings.data) for series in load_series(settings.data)]
    arrays = {
        name: np.concatenate([getattr(client, name)[client.batches] for client in windows])
        for name in ("inputs", "targets", "present")
    }
    counts = np.array([len(client.batches) for client in windows])
    np.savez(file, allow_pickle=False, counts=counts, **arrays)


def compare(
    chosen: dict[str, Start], work: Work, repetitions: int, progress: Callable[[str], None]
) -> Runs:
    """Run all contestants so many times, in turns."""
    runs: Runs = {name: [] for name in chosen}
    for repetition in range(1, repetitions + 1):
        for name, start in chosen.items():
            label = f"run {repetition} of {repetitions}, {name}: "
            runs[name].append(timed_run(start, work, label, progress))
    return runs


def timed_run(start: Start, work: Work, label: str, progress: Callable[[str], None]) -> Timing:
    """Run to the end of the last counted round, and time the rounds after the warm-up."""
    progress(label + "starting")
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as folder,
        start(work, Path(folder)) as running,
    ):
        file, ends = GrowingFile(running.rounds_file), list[float]()
        spent: list[float] = []  # by the end of each observed round
        loss, last_line_at = float("nan"), time.monotonic()
        while len(ends) < work.rounds:
            time.sleep(0.005)
            for line in file.new_lines():
                last_line_at = time.monotonic()
                ends.append(last_line_at)
                loss = _loss(line, work.clients)
                progress(f"{label}round {len(ends)} of {work.rounds}")
            spent += [processor_seconds(*marked_processes(running.home))] * (len(ends) - len(spent))
            if time.monotonic() - last_line_at > DEADLINE:
                raise FederationError(f"{label}no round for {DEADLINE:g} s: {running.trouble()}")
        ends = ends[: work.rounds]
        processor = (spent[work.rounds - 1] - spent[WARM_UP - 1]) / (work.rounds - WARM_UP)
        return Timing(
            [end - begin for begin, end in pairwise(ends[WARM_UP - 1 :])], loss, processor
        )


# --- the contestants --------------------------------------------------------------------------


def _our_settings(work: Work, folder: Path) -> dict[str, Any]:
    return {
        "method": "fedavg",
        "rounds": work.rounds + 1,  # the last is evaluated and not waited for
        "evaluate-every": work.rounds + 1,
        "data.synthetic.clients": work.clients,
        "data.synthetic.days": work.days,
        **output_in(folder),
    }


def fedproto_run(
    work: Work, folder: Path, kernel: str = "torch"
) -> AbstractContextManager[Running]:
    """Run this app in its own engine, as a user does."""
    settings = {**_our_settings(work, folder), "kernel": kernel}
    command = [sys.executable, "-c", PROGRAM, "run", *changes_of(settings)]
    return _process(command, folder, folder / "run" / "rounds.jsonl")


def compiled_run(work: Work, folder: Path) -> AbstractContextManager[Running]:
    """Run this app with the numba kernel."""
    return fedproto_run(work, folder, "numba")


def flowers_engine(work: Work, folder: Path) -> AbstractContextManager[Running]:
    """Run this app in Flower's simulation, 2 nodes, under its own SuperLink."""
    settings = settings_from({**_our_settings(work, folder), "nodes.minimum": 2})
    return _simulation(ROOT, flower_config(settings), 2, folder / "run" / "rounds.jsonl")


def stock_flower(work: Work, folder: Path) -> AbstractContextManager[Running]:
    """Run Flower's FedAvg, a node per client."""
    file = folder / "rounds.jsonl"
    config = {
        "num-server-rounds": work.rounds,
        "clients": work.clients,
        "clients-file": str(work.file),
        "rounds-file": str(file),
    }
    return _simulation(ROOT / "benchmarks" / "stock_app", config, work.clients, file)


def plain_loop(work: Work, folder: Path) -> AbstractContextManager[Running]:
    """No framework."""
    return _two_processes(sys.executable, "plain_loop", work, folder)


def batched_loop(work: Work, folder: Path) -> AbstractContextManager[Running]:
    """No framework, and cohorts as in the app."""
    return _two_processes(sys.executable, "batched_loop", work, folder)


def pfl(work: Work, folder: Path) -> AbstractContextManager[Running]:
    """Run pfl-research in its environment."""
    return _two_processes(str(ROOT / ".venv-pfl/bin/python"), "pfl_loop", work, folder)


def _two_processes(
    python: str, module: str, work: Work, folder: Path
) -> AbstractContextManager[Running]:
    file = folder / "rounds.jsonl"
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    arguments = [str(work.file), str(work.rounds), str(file)]
    command = [*launcher, "-m", f"benchmarks.peers.{module}", *arguments]
    return _process(command, folder, file)


@contextmanager
def _process(command: list[str], folder: Path, rounds_file: Path) -> Iterator[Running]:
    """Run a command, and end it when its rounds are done."""
    log = folder / "output.log"
    with log.open("wb") as output:
        marked = {**os.environ, "FLWR_HOME": str(folder)}
        process = subprocess.Popen(command, cwd=ROOT, env=marked, stdout=output, stderr=output)
    try:
        yield Running(rounds_file, lambda: tail(log), folder)
    finally:
        end(process)


@contextmanager
def _simulation(
    app: Path, config: dict[str, Any], nodes: int, rounds_file: Path
) -> Iterator[Running]:
    """Run Flower's simulation with Ray on 2 CPUs, one per node."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as home,
        SuperLink(Path(home), import_path=ROOT) as superlink,
    ):
        run_id = superlink.simulate(app, config, nodes, cpus=1)

        def trouble() -> str:
            log = tail(Path(home) / "superlink.log")
            return f"{superlink.status(run_id).details}\n{log}"

        yield Running(rounds_file, trouble, Path(home))


# --- the table --------------------------------------------------------------------------------


def ratios(runs: Runs, peer: str, ours: str = OURS) -> list[float]:
    """Return how many times our processor time the peer needed, in each repetition."""
    pairs = zip(runs[ours], runs[peer], strict=True)
    return [peers.processor / mine.processor for mine, peers in pairs]


def table(work: Work, runs: Runs) -> Lines:
    """Return medians over the repetitions, and the spread of the processor times' ratio."""
    rows = []
    seconds_of_ours = statistics.median(timing.round for timing in runs[OURS])
    for name, timings in runs.items():
        seconds = statistics.median(timing.round for timing in timings)
        processor = statistics.median(timing.processor for timing in timings)
        times = ratios(runs, name)
        rows.append(
            (
                name,
                f"{processor:.3f}",
                f"{statistics.median(times):.2f}",
                f"{min(times):.2f}–{max(times):.2f}",
                f"{seconds:.3f}",
                f"{seconds / seconds_of_ours:.2f}",
                f"{work.clients / seconds:,.0f}",
                f"{statistics.mean(timing.loss for timing in timings):.4f}",
            )
        )
    head = ("", "CPU-s", "ratio", "spread", "s a round", "ratio", "clients/s", "last loss")
    return [head, *rows]


def verdicts(runs: Runs) -> Iterator[str]:
    """Yield whether each ratio reaches its aim, and whether all did the same work."""
    for peer, aims in AIMS.items():
        for ours, aim in aims.items():
            if peer in runs and ours in runs:
                ratio = statistics.median(ratios(runs, peer, ours))
                reached = "reached" if ratio >= aim else "missed"
                yield f"{peer} / {ours} = {ratio:.2f} in CPU-s, aim ≥ {aim:g}: {reached}"
    spread = loss_spread(runs)
    verdict = "the same" if spread <= SAME_LOSS else "NOT the same"
    yield f"last losses: {spread:.1%} apart, at most {SAME_LOSS:.0%} allowed: {verdict}"


def loss_spread(runs: Runs) -> float:
    """Return the range of the mean losses, as a share of their mean."""
    losses = [statistics.mean(timing.loss for timing in timings) for timings in runs.values()]
    return (max(losses) - min(losses)) / statistics.mean(losses)


def _loss(line: str, clients: int) -> float:
    """Return the mean loss of a round's line. Raises an error if a client did not train."""
    noted = json.loads(line)
    if noted["clients"] != clients:
        raise FederationError(f"{noted['clients']} of {clients} clients trained")
    return float(noted["loss"]["total"])


if __name__ == "__main__":
    main()
