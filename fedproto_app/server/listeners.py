"""Listeners of a run, which are called after each round.

The loop over the rounds (`rounds.py`) is independent of the listeners' classes. A listener may stop
the run, and may store state in a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

    seconds: duration of each phase. model: the global model after the round. evaluated: whether
    the clients' models were evaluated. line: the round's line of rounds.jsonl, which the first
    listener fills and others may add to.
    """

    number: int
    seconds: Mapping[str, float]
    model: ArrayRecord
    history: History
    evaluated: bool
    line: dict[str, Any] = field(default_factory=dict)


class Listener:
    """Base class of listeners; does nothing."""

    def round_ended(self, ended: RoundEnd) -> None:
        """Called after each round."""

    def stops(self, next_round: int) -> str:
        """Return why this round must not be run, in one word; "" if it may."""
        return ""

    def close(self) -> None:
        """Called at the end of the run, also after an error."""

    def memory(self) -> dict[str, Any]:
        """Return the state that a resumed run needs, under names that no other listener uses."""
        return {}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Restore the state from `memory`, which holds all listeners' values."""


def reason_to_stop(listeners: Sequence[Listener], next_round: int) -> str:
    """Return why this round must not be run, "" if it may; the last listener takes precedence."""
    reasons = (listener.stops(next_round) for listener in reversed(listeners))
    return next((reason for reason in reasons if reason), "")


class Health(Listener):
    """Writes one log line per round."""

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
    """Adds up the costs of the rounds.

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

    The error is the mean over the clients, or the median with a robust rule, as clients may lie.
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
        """Count an evaluation; None: no client has an error."""
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
