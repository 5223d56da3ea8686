"""What watches a run: each listener hears of a round when it has ended.

The loop over the rounds (`rounds.py`) knows none of them by name. A listener may stop the run, and
may have something to remember for a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedproto_app.core.clients import metric_values
from fedproto_app.core.events import tell
from fedproto_app.server.round_log import History
from fedproto_app.settings import Settings
from fedproto_app.tasks.table import task_class

COSTS = ("parameters_up", "parameters_up_once", "parameters_down", "bytes_up", "bytes_down")
TRAININGS = "trainings"
PATIENCE, PRIVACY = "patience", "privacy"  # why a run stopped before its last round


@dataclass(frozen=True)
class RoundEnd:
    """A round that has ended.

    line: what rounds.jsonl says of it; listeners may add figures. model: the global model
    from now on. evaluated: whether the clients' models were.
    """

    number: int
    line: dict[str, Any]
    model: ArrayRecord
    history: History
    evaluated: bool


class Listener:
    """Hears of what happens in a run; does nothing by itself."""

    def round_ended(self, ended: RoundEnd) -> None:
        """Called after each round."""

    def stops(self, next_round: int) -> str:
        """Why this round must not be run, in one word; "" if it may."""
        return ""

    def run_stopped(self, reason: str, rounds: int) -> None:
        """Called when no further round is run, after so many. reason: as `stops` gave it, or
        "rounds"."""

    def run_ended(self) -> None:
        """Called when the run's artefacts are complete."""

    def close(self) -> None:
        """Called in the end, however the run ended."""

    def memory(self) -> dict[str, Any]:
        """What it must know to go on in another process, under names of its own."""
        return {}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Go on from what `memory` returned, among what other listeners did."""


def reason_to_stop(listeners: Sequence[Listener], next_round: int) -> str:
    """Why this round must not be run, "" if it may; the last listener's reason counts first."""
    reasons = (listener.stops(next_round) for listener in reversed(listeners))
    return next((reason for reason in reasons if reason), "")


class Health(Listener):
    """Writes each round in one line of the log."""

    def round_ended(self, ended: RoundEnd) -> None:
        line = ended.line
        tell(
            "round",
            round=ended.number,
            asked=line["asked"],
            answered=line["answered"],
            refused=len(line["refused"]),
            late=line["late"],
            clients=line["clients"],
            seconds=line["seconds"]["total"],
            loss=line["loss"].get("total"),
            epsilon=line["privacy"].get("epsilon"),
        )


class Costs(Listener):
    """Adds up what the rounds cost.

    sums: of `COSTS` over the rounds, and of the clients that trained ("trainings").
    """

    def __init__(self) -> None:
        self.sums = dict.fromkeys((*COSTS, TRAININGS), 0)

    def round_ended(self, ended: RoundEnd) -> None:
        for cost in COSTS:
            self.sums[cost] += ended.line[cost]
        self.sums[TRAININGS] += ended.line["clients"]

    def memory(self) -> dict[str, Any]:
        return {"costs": self.sums}

    def recall(self, memory: Mapping[str, Any]) -> None:
        self.sums |= memory["costs"]


class Patience(Listener):
    """Stops the run when the validation error no longer falls; it never looks at test errors.

    The error is the mean over the clients, or their median where a robust rule says that some may
    lie.
    """

    def __init__(self, settings: Settings) -> None:
        self._allowed = settings.patience  # evaluations without improvement; 0: any number
        self._criterion = task_class(settings.task).criterion
        self._middle = np.mean if settings.aggregation.rule == "mean" else np.median
        self._best, self._waited = math.inf, 0

    def round_ended(self, ended: RoundEnd) -> None:
        if ended.evaluated:
            errors = metric_values(ended.history.results, self._criterion)
            self.take(float(self._middle(errors)) if errors else None)

    def take(self, validation_error: float | None) -> None:
        """Take in an evaluation; None: no client has an error."""
        if validation_error is not None and validation_error < self._best:
            self._best, self._waited = validation_error, 0
        else:
            self._waited += 1

    def stops(self, next_round: int) -> str:
        return PATIENCE if 0 < self._allowed <= self._waited else ""

    def memory(self) -> dict[str, Any]:
        best = self._best if math.isfinite(self._best) else None
        return {"best": best, "waited": self._waited}

    def recall(self, memory: Mapping[str, Any]) -> None:
        best = memory["best"]
        self._best, self._waited = math.inf if best is None else best, memory["waited"]
