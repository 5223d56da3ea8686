"""Define the listeners of a run, which are called after each round.

The loop over the rounds (`rounds.py`) does not depend on the listeners' classes. A listener may
stop the run, and may store state in checkpoints.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedproto_app.core.clients import ClientKey, metric_values
from fedproto_app.core.events import tell
from fedproto_app.core.stored import Memory
from fedproto_app.server.round_log import History
from fedproto_app.settings import PrivacyPlan, Settings
from fedproto_app.tasks.table import task_class
from fedproto_app.trust.privacy_loss import epsilon_of

COSTS = ("parameters_up", "parameters_up_once", "parameters_down", "bytes_up", "bytes_down")
TRAININGS = "trainings"
# Why a run stopped before its last round.
PATIENCE, PRIVACY, STAGES = "patience", "privacy", "stages"


@dataclass(frozen=True)
class RoundEnd:
    """A round that has ended.

    seconds: the duration of each phase. model: the global model after the round. evaluated: whether
    the clients' models were evaluated. line: the round's line of rounds.jsonl. The first listener
    fills it, and others may add to it.
    """

    number: int
    seconds: Mapping[str, float]
    model: ArrayRecord
    history: History
    evaluated: bool
    line: dict[str, Any] = field(default_factory=dict)


class Listener:
    """The base class of listeners. It does nothing."""

    def round_ended(self, ended: RoundEnd) -> None:
        """Called after each round."""

    def stops(self, next_round: int) -> str:
        """Return in one word why the next round must not be run, or "" if it may be run."""
        return ""

    def close(self) -> None:
        """Called at the end of the run, also after an error."""

    def memory(self) -> Memory:
        """Return the state that a resumed run needs, under names that no other listener uses."""
        return {}

    def recall(self, memory: Memory) -> None:
        """Restore the state from `memory`, which holds the values of all listeners."""


def reason_to_stop(listeners: Sequence[Listener], next_round: int) -> str:
    """Return why the next round must not be run, or "". The last listener takes precedence."""
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
            shortened=line["shortened"] or None,
            clients=line["clients"],
            seconds=line["seconds"]["total"],
            loss=line["loss"].get("total"),
            epsilon=line["privacy"].get("epsilon"),
        )


class Costs(Listener):
    """Adds up the costs of the rounds.

    sums: the sums of `COSTS`, and of the number of clients that trained ("trainings").
    """

    def __init__(self) -> None:
        self.sums = dict.fromkeys((*COSTS, TRAININGS), 0)

    def round_ended(self, ended: RoundEnd) -> None:
        for cost in COSTS:
            self.sums[cost] += ended.line[cost]
        self.sums[TRAININGS] += ended.line["clients"]

    def memory(self) -> Memory:
        return {"costs": self.sums}

    def recall(self, memory: Memory) -> None:
        self.sums |= memory["costs"]


class Patience(Listener):
    """Stops the run when the validation error no longer falls. It never looks at test errors.

    The error is the median over the clients, so that no single client decides when a run ends.
    """

    def __init__(self, settings: Settings) -> None:
        self._allowed = settings.patience  # evaluations without improvement, or 0 for any number
        self._criterion = task_class(settings.task).metrics.validation.metric
        self._best, self._waited = math.inf, 0

    def round_ended(self, ended: RoundEnd) -> None:
        if ended.evaluated:
            errors = metric_values(ended.history.results, self._criterion)
            errors = [error for error in errors if not math.isnan(error)]
            self.take(float(np.median(errors)) if errors else None)

    def take(self, validation_error: float | None) -> None:
        """Count an evaluation. validation_error: None if no client has an error."""
        if validation_error is not None and validation_error < self._best:
            self._best, self._waited = validation_error, 0
        else:
            self._waited += 1

    def stops(self, next_round: int) -> str:
        return PATIENCE if 0 < self._allowed <= self._waited else ""

    def memory(self) -> Memory:
        best = self._best if math.isfinite(self._best) else None
        return {"best": best, "waited": self._waited}

    def recall(self, memory: Memory) -> None:
        best = memory["best"]
        self._best, self._waited = math.inf if best is None else best, memory["waited"]


class Stages(Listener):
    """Stops a closed form once it has taken in all stages of the clients' data.

    stages: returns the largest number of stages that any node has declared.
    """

    def __init__(self, settings: Settings, stages: Callable[[], int]) -> None:
        self._stages = stages
        self._rounds = settings.all_rounds if settings.has_round_per_stage else 0

    def stops(self, next_round: int) -> str:
        return STAGES if self._stages() < next_round <= self._rounds else ""

    def ends_with(self, server_round: int) -> bool:
        """Return whether this round is the last."""
        return bool(self.stops(server_round + 1))


class Spending(Listener):
    """Counts each client's releases, and stops the run before any client's ε exceeds the limit.

    A client's releases are counted as soon as it gets an order, because its reply may still arrive.
    Each client is counted separately, because a round may ask only some of the clients.

    plan: the plan of the noise. If it is None, there is no noise and nothing is counted.
    last_round: the run's last round.
    """

    def __init__(self, plan: PrivacyPlan | None, last_round: float = math.inf) -> None:
        self.plan, self._last_round = plan, last_round
        self._releases: Counter[ClientKey] = Counter()
        self._counted = 0  # the last round with counted releases

    def count(self, keys: Iterable[ClientKey], server_round: int) -> None:
        """Count the releases of a training order for these clients."""
        if self.plan is not None:
            for key in keys:
                self._releases[key] += self.plan.releases_in(server_round)
            self._counted = server_round

    def count_evaluation(self, keys: Iterable[ClientKey]) -> None:
        """Count the releases of an evaluation of these clients."""
        if self.plan is not None and self.plan.evaluation:
            for key in keys:
                self._releases[key] += self.plan.evaluation

    def stops(self, next_round: int) -> str:
        """Return the reason to stop if a client's ε could exceed ``privacy.max-epsilon``."""
        forbidden = next_round <= self._last_round and self._beyond(next_round, next_round, 1)
        return PRIVACY if forbidden else ""

    def round_ended(self, ended: RoundEnd) -> None:
        """Add ε to the round's line."""
        ended.line["privacy"] = self.report()

    def ends_with(self, server_round: int) -> bool:
        """Return whether no round can follow this one. The round may still be running."""
        first = server_round + 1 if self._counted == server_round else server_round
        return self._beyond(first, server_round + 1, 2)

    def _beyond(self, first: int, last: int, evaluations: int) -> bool:
        """Return whether these rounds of training and so many evaluations could pass the limit."""
        if self.plan is None or not (limit := self.plan.settings.max_epsilon):
            return False
        more = sum(map(self.plan.releases_in, range(first, last + 1)))
        more += evaluations * self.plan.evaluation
        return more > 0 and self._epsilon(self._most_releases + more) > limit

    @property
    def _most_releases(self) -> int:
        return max(self._releases.values(), default=0)

    def _epsilon(self, releases: int) -> float:
        assert self.plan is not None
        return epsilon_of(releases * self.plan.loss, self.plan.settings.delta)

    def report(self) -> dict[str, Any]:
        """Return for the artefacts the ε and δ of the client with the largest privacy loss, and
        what they protect."""
        if self.plan is None:
            return {"mechanism": "none"}
        settings = self.plan.settings
        return {
            "mechanism": settings.mechanism,
            "epsilon": self._epsilon(self._most_releases),
            "delta": settings.delta,
            "unit": settings.unit,
            "neighbours": settings.neighbours,
            "noise_multiplier": self.plan.noise_multiplier,
            "releases": self._most_releases,
            "metrics": settings.reported,
        }

    def memory(self) -> Memory:
        return {"spent": [[*key, count] for key, count in sorted(self._releases.items())]}

    def recall(self, memory: Memory) -> None:
        self._releases = Counter({ClientKey(*key): count for *key, count in memory["spent"]})
