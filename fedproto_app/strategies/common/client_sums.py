"""Sums that clients send and a server adds up, of those that can be true."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays, Refusal
from fedproto_app.core.round import Received
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.trust.averaging import Averaging


class ClientSums(ABC):
    """The latest sums of every client ever heard from.

    shapes: of a client's sums, by name. latest: where these are. Subclasses say when sums cannot be
    true.
    """

    def __init__(
        self, federation: Federation, shapes: Mapping[str, tuple[int, ...]], received: Received
    ) -> None:
        self.federation, self.shapes, self.latest = federation, shapes, received
        self._total: Arrays = {}  # of the newest round, where sums are masked

    @abstractmethod
    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        """Why a client that trained on so many samples cannot have these sums, or None."""

    def take_in_total(self, total: Arrays, samples: int) -> None:
        """Sums over a round's clients, of whom nobody sees one's; refused as one's would be.

        samples: those of all these clients.
        """
        if fault := self.impossible(total, samples):
            self.federation.history.refuse(Refusal("", "", f"masked sum of all nodes: {fault}"))
        else:
            self._total = total

    @abstractmethod
    def impossible(self, sums: Arrays, samples: int) -> str | None:
        """Why so many samples cannot have these sums, or None."""

    @abstractmethod
    def sample_bound(self, clip: float) -> float:
        """The most length that one sample, clipped to `clip`, adds to all sums together."""

    @abstractmethod
    def usable(self, totals: Arrays, deviation: float) -> Arrays:
        """Totals that true ones could be, of totals with noise of this deviation on each entry."""

    def outliers(self, reported: Mapping[ClientKey, Arrays]) -> dict[ClientKey, str]:
        """Why some of these sums, though possible, are not taken beside the others."""
        return {}

    def totals(self) -> Arrays:
        """Over all clients, by the rule in force; {} before any was heard from."""
        if self._total:
            return self._total
        if not self.latest.clients:
            return {}
        facts = self.federation.members.facts
        samples = [facts[key].samples for key in self.latest.clients]
        return self.federation.averaging.totals(self, samples)

    def plain_totals(self) -> Arrays:
        """Of everybody's latest sums."""
        return self.latest.totals()

    @abstractmethod
    def robust_totals(self, averaging: Averaging) -> Arrays:
        """Totals that bear hostile clients; somebody was heard from."""

    def state(self) -> dict[str, NDArray[Any]]:
        """For a checkpoint."""
        return dict(self._total) or self.latest.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """What `state` gave."""
        if state.keys() == self.shapes.keys():
            self._total = dict(state)
        else:
            self.latest.restore(state)
