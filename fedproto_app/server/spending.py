"""What the run's clients have spent of their privacy, as the server counts it.

A client that is asked counts as one that answered: its reply may be on the way for ever. Each is
counted by itself, because a run may ask a share of the clients only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from logging import WARNING
from typing import Any

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.events import tell
from fedproto_app.server.listeners import PRIVACY, Listener, RoundEnd
from fedproto_app.settings import PrivacyPlan
from fedproto_app.trust.privacy_loss import epsilon_of


class Spending(Listener):
    """Releases so far, by client. Stops the run before the ε of any exceeds the limit.

    plan: None where nothing is protected, so nothing is counted. last_round: of the run.
    """

    def __init__(self, plan: PrivacyPlan | None, last_round: float = math.inf) -> None:
        self.plan, self._last_round = plan, last_round
        self._releases: Counter[ClientKey] = Counter()
        self._counted = 0  # the last round of which releases were counted

    def asked(self, keys: Iterable[ClientKey], server_round: int) -> None:
        """Count a round's order to train for these clients, whose releases it asks for."""
        if self.plan is not None:
            for key in keys:
                self._releases[key] += self.plan.releases_in(server_round)
            self._counted = server_round

    def stops(self, next_round: int) -> str:
        """Whether this round could take a client's ε beyond ``privacy.max-epsilon``."""
        forbidden = next_round <= self._last_round and self._beyond(next_round, next_round)
        return PRIVACY if forbidden else ""

    def run_stopped(self, reason: str, rounds: int) -> None:
        if reason == PRIVACY and self.plan is not None:
            limit = self.plan.settings.max_epsilon
            tell("privacy-spent", WARNING, round=rounds, limit=limit)

    def round_ended(self, ended: RoundEnd) -> None:
        """Add ε to the round's line."""
        ended.line["privacy"] = self.report()

    def ends_with(self, server_round: int) -> bool:
        """Whether no round can follow this one, which may be under way."""
        first = server_round + 1 if self._counted == server_round else server_round
        return self._beyond(first, server_round + 1)

    def _beyond(self, first: int, last: int) -> bool:
        if self.plan is None or not (limit := self.plan.settings.max_epsilon):
            return False
        more = sum(map(self.plan.releases_in, range(first, last + 1)))
        return more > 0 and self._epsilon(self._most + more) > limit

    @property
    def _most(self) -> int:
        return max(self._releases.values(), default=0)

    def _epsilon(self, releases: int) -> float:
        assert self.plan is not None
        return epsilon_of(releases * self.plan.loss, self.plan.settings.delta)

    def report(self) -> dict[str, Any]:
        """For artefacts: ε and δ of the client that has spent most, and of what that is the ε."""
        if self.plan is None:
            return {"mechanism": "none"}
        settings = self.plan.settings
        return {
            "mechanism": settings.mechanism,
            "epsilon": self._epsilon(self._most),
            "delta": settings.delta,
            "unit": settings.unit,
            "neighbours": settings.neighbours,
            "noise_multiplier": self.plan.noise_multiplier,
            "releases": self._most,
        }

    def memory(self) -> dict[str, Any]:
        return {"spent": [[*key, count] for key, count in sorted(self._releases.items())]}

    def recall(self, memory: Mapping[str, Any]) -> None:
        self._releases = Counter({ClientKey(*key): count for *key, count in memory["spent"]})
