"""Local training: a cohort against the same clients one by one.

    python -m benchmarks.throughput [--quick]

The steps are the app's own (`train_cohort`), on windows of the synthetic traffic: FUELS's whole
loss on both views with guidance, and Solo's prediction loss. Both ways of training run in the
same process with the same threads, in turns. Flower's simulation starts two such processes
on two cores.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache
from itertools import product
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

import torch
from rich.progress import track

from benchmarks.pages import Lines, print_table
from benchmarks.parts import parser_of
from fedproto_app.core.messages import Guidance
from fedproto_app.data.shard import Shard
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.common.learner import (
    AnyLearner,
    Cohort,
    Context,
    make_learner,
    new_cohort,
    train_cohort,
)
from fedproto_app.strategies.fuels import FuelsSettings
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.table import load_shard

CLIENTS = 16
METHODS = ("fuels", "solo")
SIZES = (1, CLIENTS)


class Engine(NamedTuple):
    """The processes that train at the same time, and the torch threads of each."""

    processes: int
    threads: int

    def __str__(self) -> str:
        return f"{self.processes} × {self.threads}"


ENGINES = (Engine(1, 1), Engine(1, 2), Engine(2, 1))


class Span(NamedTuple):
    """Work done between two moments of the machine's monotonic clock."""

    start: float
    end: float
    amount: float


# Client-steps a second of each repetition, by method, engine and size of a cohort.
Rates = dict[tuple[str, Engine, int], list[float]]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--repetitions", type=int, default=7, metavar="N", help="of all runs (7)")
    parser.add_argument("--quick", action="store_true", help="2 repetitions, for a first look")
    arguments = parser.parse_args()
    repetitions = 2 if arguments.quick else arguments.repetitions
    if repetitions < 1:
        parser.error(f"--repetitions {repetitions}: at least 1")
    print_table(table(measure(repetitions)), texts=2)


def measure(repetitions: int) -> Rates:
    """Measure everything once to warm up, then so many times in turns.

    The two processes live through the benchmark and work alone or both at once.
    """
    measured: Rates = defaultdict(list)
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(2)
    with ExitStack() as stack:
        pools = [
            stack.enter_context(ProcessPoolExecutor(1, spawn, _join, (barrier,))) for _ in range(2)
        ]
        for repetition in track(range(repetitions + 1), "repetitions"):
            for method, engine, size in product(METHODS, ENGINES, SIZES):
                rate = _rate(pools[: engine.processes], engine, method, size)
                if repetition:
                    measured[method, engine, size].append(rate)
    return measured


def _rate(pools: list[ProcessPoolExecutor], engine: Engine, method: str, size: int) -> float:
    """Return the client-steps a second over the engine's processes, from first start to last
    end."""
    futures = [pool.submit(_train, engine, method, size) for pool in pools]
    spans = [future.result() for future in futures]
    seconds = max(span.end for span in spans) - min(span.start for span in spans)
    return sum(span.amount for span in spans) / seconds


def table(measured: Rates) -> Lines:
    """Return median rates. The ratio is the median of the ratios within each repetition."""
    lines: list[list[str]] = [["method", "processes × threads", "one by one", "cohort", "ratio"]]
    for method, engine in product(METHODS, ENGINES):
        alone, together = (measured[method, engine, size] for size in SIZES)
        rates = (f"{statistics.median(steps):,.0f}" for steps in (alone, together))
        ratio = statistics.median(a / b for a, b in zip(together, alone, strict=True))
        lines.append([method, str(engine), *rates, f"{ratio:.2f}"])
    return lines


# --- in the processes -------------------------------------------------------------------------

_barrier: Barrier


def _join(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier
    torch.set_flush_denormal(True)  # as the app does


def _train(engine: Engine, method: str, size: int) -> Span:
    """Train one epoch of all clients in cohorts of this size, and return the client-steps."""
    torch.set_num_threads(engine.threads)
    settings = _settings(method, size)
    learner = make_learner(settings, ForecastingTask(settings))
    cohorts = list(_cohorts(learner, settings))
    if engine.processes > 1:
        _barrier.wait()  # both processes are ready
    start = time.monotonic()
    for cohort, context in cohorts:
        train_cohort(learner, cohort, context)
    end = time.monotonic()
    return Span(start, end, sum(sum(cohort.samples.batch_counts) for cohort, _ in cohorts))


def _settings(method: str, size: int) -> Settings:
    return settings_from({"method": method, "cohort-size": size, "data.synthetic.clients": CLIENTS})


@cache
def _shard() -> Shard:
    return load_shard(_settings("solo", 1), 0, 1)


def _cohorts(learner: AnyLearner, settings: Settings) -> Iterator[tuple[Cohort, Context]]:
    """Return all clients at the start of training, with random prototypes as guidance."""
    shard = _shard()
    names = list(shard.clients)
    width = _settings("fuels", 1).method_table(FuelsSettings).prototype_dim
    shape = (len(names), settings.data.period, width)
    generator = torch.Generator().manual_seed(0)
    arrays = {
        key: torch.randn(shape, generator=generator).numpy() for key in ("positive", "negative")
    }
    guidance = Guidance(arrays, names)
    for first in range(0, len(names), settings.cohort_size):
        members = names[first : first + settings.cohort_size]
        parameters = {
            name: value.expand(len(members), *value.shape).clone()
            for name, value in learner.initial_parameters().items()
        }
        samples = learner.task.gather([shard.clients[name] for name in members], 1)
        cohort = new_cohort(learner, parameters, samples, server_round=1)
        yield cohort, learner.context(guidance, cohort)


if __name__ == "__main__":
    main()
