"""Sums that clients send, which the server validates and adds up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays, Guidance, Refusal
from fedproto_app.core.round import ClientReply, Received, Round
from fedproto_app.settings import Settings
from fedproto_app.strategies.analytic import AnalyticSettings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import Ask, PersonalStrategy
from fedproto_app.trust.averaging import Averaging


class ClientSums(ABC):
    """The latest sums of every client that ever reported.

    shapes: the shapes of a client's sums, by name. latest: the sums. Subclasses say when sums
    cannot be true.
    """

    def __init__(
        self, federation: Federation, shapes: Mapping[str, tuple[int, ...]], received: Received
    ) -> None:
        self.federation, self.shapes, self.latest = federation, shapes, received
        self._total: Arrays = {}  # of the newest round, where sums are masked

    @abstractmethod
    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        """Return why a client with this many train samples cannot have these sums, or None."""

    def take_in_total(self, total: Arrays, samples: int) -> None:
        """Take in the masked sums over a round's clients, unless they cannot be true.

        samples: the samples of all these clients.
        """
        if fault := self.impossible(total, samples):
            self.federation.history.refuse(Refusal("", "", f"masked sum of all nodes: {fault}"))
        else:
            self._total = total

    @abstractmethod
    def impossible(self, sums: Arrays, samples: int) -> str | None:
        """Return why this many samples cannot have these sums, or None."""

    @abstractmethod
    def sample_bound(self, clip: float) -> float:
        """Return the largest norm that a sample, clipped to `clip`, adds to all sums together."""

    @abstractmethod
    def usable(self, totals: Arrays, deviation: float) -> Arrays:
        """Return valid totals from totals with noise of this deviation on each entry."""

    def outliers(self, reported: Mapping[ClientKey, Arrays]) -> dict[ClientKey, str]:
        """Return why some of these sums, though possible, are refused beside the others."""
        return {}

    def totals(self) -> Arrays:
        """Return the totals over all clients by the aggregation rule; {} if none reported yet."""
        if self._total:
            return self._total
        if not self.latest.clients:
            return {}
        facts = self.federation.members.facts
        samples = [facts[key].samples for key in self.latest.clients]
        return self.federation.averaging.totals(self, samples)

    def plain_totals(self) -> Arrays:
        """Return the totals of the latest sums of all clients."""
        return self.latest.totals()

    @abstractmethod
    def robust_totals(self, averaging: Averaging) -> Arrays:
        """Return robust totals. At least one client must have reported."""

    def state(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for a checkpoint."""
        return dict(self._total) or self.latest.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restore the arrays of `state`."""
        if state.keys() == self.shapes.keys():
            self._total = dict(state)
        else:
            self.latest.restore(state)


# Server half of the closed forms whose clients send sums: add them up, send the totals to all.


class SumsStrategy(PersonalStrategy):
    """State: the latest sums of every client that ever reported.

    With ``sharing = "none"`` clients send nothing.
    """

    section: AnalyticSettings

    def __init__(
        self, settings: Settings, section: AnalyticSettings, federation: Federation
    ) -> None:
        super().__init__(settings, section, federation)
        self.final_after_training = section.sharing == "none"
        self._sums = self.client_sums()
        self._totals: Arrays = {}

    @abstractmethod
    def client_sums(self) -> ClientSums:
        """Return an empty store of the clients' sums."""

    def chosen(self, eligible: list[ClientKey], server_round: int) -> list[ClientKey]:
        """Return all clients: a client that misses a round never adds that round's data."""
        return eligible

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        if not (self.averaging.checks_sums and reply.arrays):
            return None
        return self._sums.fault(reply.arrays, reply.key, reply.samples)

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        if not (self.averaging.checks_sums and self.releases):
            return {}
        return self._sums.outliers({reply.key: reply.arrays for reply in replies})

    def update(self, received: Received, round_: Round) -> None:
        """Take in the total, if masks hide each client's sums."""
        if received.total is not None:
            values = {n: value.astype(np.float32) for n, value in received.total.values.items()}
            self._sums.take_in_total(values, sum(facts.samples for facts in round_.facts.values()))

    def conclude(self, round_: Round, ask: Ask) -> None:
        """Compute the totals for an evaluation, once for all nodes."""
        due = round_.evaluated and not self.final_after_training
        self._totals = self._sums.totals() if due else {}

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Return all clients: also those that did not train get the totals."""
        if self.final_after_training:
            return super().to_evaluate(clients, round_)
        return clients if self._totals else []

    def shared_names(self) -> Collection[str]:
        return self._sums.shapes

    def guide_evaluation(
        self, received: Received, clients: Sequence[ClientKey], round_: Round
    ) -> Guidance:
        return Guidance(self._totals)

    def state(self) -> dict[str, NDArray[Any]]:
        return self._sums.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._sums.restore(state)
