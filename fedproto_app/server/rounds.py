"""The rounds of a run, over Flower's public strategy interface.

Flower's own `Strategy.start` counts 1 … N. It cannot stop early, go on from a checkpoint or say
what a phase cost, so the loop is here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid

from fedproto_app.events import tell
from fedproto_app.metrics import Metric
from fedproto_app.report.artefacts import RunFolder, round_line
from fedproto_app.report.task_report import metric_values
from fedproto_app.server.checkpoint import Checkpoint, Memory
from fedproto_app.server.federation import Federation
from fedproto_app.strategies.common.strategy import MethodStrategy
from fedproto_app.tasks.table import task_class
from fedproto_app.wire import array_record, numpy_arrays

COSTS = ("parameters_up", "parameters_up_once", "parameters_down", "bytes_up", "bytes_down")
_NOTHING = dict.fromkeys((*COSTS, "trainings"), 0)


@dataclass
class Patience:
    """Early stopping on validation error, never on test error.

    allowed: evaluations in a row without improvement; 0: any number.
    """

    allowed: int
    best: float = math.inf
    waited: int = 0

    def take(self, validation_error: float | None) -> None:
        """Take in an evaluation."""
        if validation_error is not None and validation_error < self.best:
            self.best, self.waited = validation_error, 0
        else:
            self.waited += 1

    @property
    def exhausted(self) -> bool:
        return 0 < self.allowed <= self.waited


@dataclass
class Outcome:
    """How far the rounds have come, and what they cost.

    spent: whether another round would exceed the run's `privacy.max-epsilon`.
    costs: sums over the rounds of `COSTS` and of the clients that trained ("trainings").
    """

    model: ArrayRecord
    patience: Patience
    rounds: int = 0
    spent: bool = False
    costs: dict[str, int] = field(default_factory=lambda: dict(_NOTHING))

    @property
    def stopped(self) -> str:
        """Why the rounds ended: "rounds", "patience" or "privacy"."""
        if self.patience.exhausted:
            return "patience"
        return "privacy" if self.spent else "rounds"

    def count(self, line: Mapping[str, Any]) -> None:
        """Add what a round cost, by its line of rounds.jsonl."""
        for cost in COSTS:
            self.costs[cost] += line[cost]
        self.costs["trainings"] += line["clients"]

    def memory(self) -> Memory:
        """What a checkpoint holds of it, besides the model and the round."""
        best = self.patience.best if math.isfinite(self.patience.best) else None
        return {"costs": self.costs, "best": best, "waited": self.patience.waited}


def first_outcome(strategy: MethodStrategy, federation: Federation) -> Outcome:
    """Before the first round."""
    patience = Patience(federation.settings.patience)
    return Outcome(array_record(strategy.initial_arrays()), patience)


def outcome_of(checkpoint: Checkpoint, federation: Federation) -> Outcome:
    """After the checkpoint's round."""
    told = checkpoint.outcome
    best = math.inf if told["best"] is None else told["best"]
    patience = Patience(federation.settings.patience, best, told["waited"])
    model = array_record(checkpoint.model)
    # A checkpoint of an earlier version may lack one.
    costs = {**_NOTHING, **told["costs"]}
    return Outcome(model, patience, checkpoint.server_round, costs=costs)


class Persistence:
    """When a run writes its checkpoints: after every round, where nodes keep their own state."""

    def is_due(self, *, last: bool) -> bool:
        """Whether a round ends with a checkpoint. last: no other comes after it."""
        return True

    def prepare(self) -> None:
        """Called before a checkpoint is written, which must not be ahead of the nodes."""


def run_rounds(
    strategy: MethodStrategy,
    federation: Federation,
    grid: Grid,
    folder: RunFolder,
    outcome: Outcome,
    persistence: Persistence,
) -> None:
    """Train for the set number of rounds, or until the mean validation error stops falling.

    outcome: where to go on from; it grows round by round.
    """
    settings = federation.settings
    criterion = task_class(settings.task).criterion
    for server_round in range(outcome.rounds + 1, settings.all_rounds + 1):
        outcome.spent = federation.spending.forbids(server_round)
        if outcome.spent:
            tell("privacy-spent", WARNING, round=outcome.rounds, limit=settings.privacy.max_epsilon)
        if outcome.patience.exhausted or outcome.spent:
            return
        federation.begin_round(server_round, grid)
        seconds = _one_round(strategy, federation, grid, server_round, outcome)
        evaluated = federation.evaluates(server_round)
        line = round_line(federation.log, federation.results, seconds, evaluated, settings.task)
        line["privacy"] = federation.spending.told()
        _tell_health(server_round, line)
        folder.append_round(server_round, line)
        outcome.rounds = server_round
        outcome.count(line)
        if evaluated:
            outcome.patience.take(_middle(federation, criterion))
        last = server_round == settings.all_rounds or outcome.patience.exhausted
        last = last or federation.spending.forbids(server_round + 1)
        if not persistence.is_due(last=last):
            continue
        persistence.prepare()
        folder.write_checkpoint(
            Checkpoint(
                server_round,
                federation.token,
                nodes=federation.roster.partitions(),
                model=numpy_arrays(outcome.model),
                strategy=strategy.state(),
                federation=federation.memory(),
                outcome=outcome.memory(),
                seconds=folder.seconds(),
            )
        )


def _middle(federation: Federation, criterion: Metric) -> float | None:
    """What patience goes by: the mean over the clients; their median where some may lie."""
    values = metric_values(federation.results, criterion)
    middle = np.mean if federation.settings.aggregation.rule == "mean" else np.median
    return float(middle(values)) if values else None


def _one_round(
    strategy: MethodStrategy,
    federation: Federation,
    grid: Grid,
    server_round: int,
    outcome: Outcome,
) -> dict[str, float]:
    """Train, aggregate, evaluate. Returns the seconds of each."""
    start = time.perf_counter()
    messages = strategy.configure_train(server_round, outcome.model, ConfigRecord(), grid)
    replies = federation.ask(grid, messages)
    trained = time.perf_counter()
    arrays, _ = strategy.aggregate_train(server_round, replies)
    if arrays is not None:
        outcome.model = arrays
    aggregated = time.perf_counter()
    messages = list(strategy.configure_evaluate(server_round, outcome.model, ConfigRecord(), grid))
    if messages:
        strategy.aggregate_evaluate(server_round, federation.ask(grid, messages))
    end = time.perf_counter()
    return {
        "train": trained - start,
        "aggregate": aggregated - trained,
        "evaluate": end - aggregated,
        "total": end - start,
    }


def _tell_health(server_round: int, line: Mapping[str, Any]) -> None:
    """The round in one line of the log."""
    tell(
        "round",
        round=server_round,
        asked=line["asked"],
        answered=line["answered"],
        refused=len(line["refused"]),
        late=line["late"],
        clients=line["clients"],
        seconds=line["seconds"]["total"],
        loss=line["loss"].get("total"),
        epsilon=line["privacy"].get("epsilon"),
    )
