"""The rounds of a run, over Flower's public strategy interface.

Flower's own `Strategy.start` counts 1 … N and has no way to stop early or to tell what a phase
cost, so the loop stands here.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedproto_app.federation import Federation, RoundLog
from fedproto_app.report.artefacts import RunFolder, round_line
from fedproto_app.report.task_report import mean_metric
from fedproto_app.strategies.strategy import MethodStrategy
from fedproto_app.tasks.registry import TASKS
from fedproto_app.wire import array_record, numpy_arrays

COSTS = ("parameters_up", "parameters_down", "bytes_up", "bytes_down")


@dataclass
class Outcome:
    """How the rounds ended: how many, why ("rounds" or "patience"), and what they cost.

    costs: sums over the rounds of `COSTS` and of the clients that trained ("trainings").
    """

    rounds: int = 0
    stopped: str = "rounds"
    costs: dict[str, int] = field(default_factory=lambda: dict.fromkeys((*COSTS, "trainings"), 0))
    model: ArrayRecord = field(default_factory=ArrayRecord)


def run_rounds(
    strategy: MethodStrategy, federation: Federation, grid: Grid, folder: RunFolder
) -> Outcome:
    """Train for the set number of rounds, or until the mean validation error stops falling."""
    settings = federation.settings
    patience = Patience(settings.patience)
    criterion = TASKS[settings.task].criterion
    outcome = Outcome(model=array_record(strategy.initial_arrays()))
    for server_round in range(1, settings.all_rounds + 1):
        if server_round > 1:
            federation.log = RoundLog()
            federation.await_clients(grid)
        seconds = _one_round(strategy, grid, server_round, outcome, settings.nodes.round_deadline)
        evaluated = federation.evaluates(server_round)
        line = round_line(federation.log, federation.results, seconds, evaluated, settings.task)
        folder.append_round(server_round, line)
        folder.write_checkpoint(
            server_round, numpy_arrays(outcome.model), strategy.state(), federation.token
        )
        outcome.rounds = server_round
        for cost in COSTS:
            outcome.costs[cost] += line[cost]
        outcome.costs["trainings"] += line["clients"]
        if evaluated and patience.exhausted(mean_metric(federation.results, criterion)):
            outcome.stopped = "patience"
            break
    return outcome


def _one_round(
    strategy: MethodStrategy, grid: Grid, server_round: int, outcome: Outcome, deadline: float
) -> dict[str, float]:
    """Train, aggregate, evaluate. Returns the seconds of each."""
    start = time.perf_counter()
    messages = strategy.configure_train(server_round, outcome.model, ConfigRecord(), grid)
    replies = grid.send_and_receive(list(messages), timeout=deadline)
    trained = time.perf_counter()
    arrays, _ = strategy.aggregate_train(server_round, replies)
    if arrays is not None:
        outcome.model = arrays
    aggregated = time.perf_counter()
    messages = list(strategy.configure_evaluate(server_round, outcome.model, ConfigRecord(), grid))
    if messages:
        replies = grid.send_and_receive(messages, timeout=deadline)
        strategy.aggregate_evaluate(server_round, replies)
    end = time.perf_counter()
    return {
        "train": trained - start,
        "aggregate": aggregated - trained,
        "evaluate": end - aggregated,
        "total": end - start,
    }


class Patience:
    """Early stopping on validation error, never on test error."""

    def __init__(self, allowed: int) -> None:
        self._allowed, self._best, self._waited = allowed, math.inf, 0

    def exhausted(self, validation_error: float | None) -> bool:
        """Take in an evaluation; True once `allowed` of them in a row brought nothing better."""
        if validation_error is not None and validation_error < self._best:
            self._best, self._waited = validation_error, 0
        else:
            self._waited += 1
        return self._allowed > 0 and self._waited >= self._allowed
