"""The clients' privacy loss in a run, as the server counts it.

A client counts as soon as it gets an order, because its reply may still arrive. Each client is
counted separately, because a round may ask only a share of the clients.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from fedproto_app.core.clients import ClientKey
from fedproto_app.server.listeners import PRIVACY, Listener, RoundEnd
from fedproto_app.settings import PrivacyPlan
from fedproto_app.trust.privacy_loss import epsilon_of


class Spending(Listener):
    """Counts releases by client, and stops the run before any client's ε exceeds the limit.

    plan: None without noise; then nothing is counted. last_round: the run's last round.
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

    def stops(self, next_round: int) -> str:
        """Return the reason to stop if a client's ε could exceed ``privacy.max-epsilon``."""
        forbidden = next_round <= self._last_round and self._beyond(next_round, next_round)
        return PRIVACY if forbidden else ""

    def round_ended(self, ended: RoundEnd) -> None:
        """Add ε to the round's line."""
        ended.line["privacy"] = self.report()

    def ends_with(self, server_round: int) -> bool:
        """Whether no round can follow this one, which may be running."""
        first = server_round + 1 if self._counted == server_round else server_round
        return self._beyond(first, server_round + 1)

    def _beyond(self, first: int, last: int) -> bool:
        if self.plan is None or not (limit := self.plan.settings.max_epsilon):
            return False
        more = sum(map(self.plan.releases_in, range(first, last + 1)))
        return more > 0 and self._epsilon(self._most_releases + more) > limit

    @property
    def _most_releases(self) -> int:
        return max(self._releases.values(), default=0)

    def _epsilon(self, releases: int) -> float:
        assert self.plan is not None
        return epsilon_of(releases * self.plan.loss, self.plan.settings.delta)

    def report(self) -> dict[str, Any]:
        """Return, for artefacts, ε and δ of the client with the largest loss, and their unit."""
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
        }

    def memory(self) -> dict[str, Any]:
        return {"spent": [[*key, count] for key, count in sorted(self._releases.items())]}

    def recall(self, memory: Mapping[str, Any]) -> None:
        self._releases = Counter({ClientKey(*key): count for *key, count in memory["spent"]})
