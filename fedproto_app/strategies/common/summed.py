"""Server half of the closed forms whose clients send sums: add them up, send the totals to all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays
from fedproto_app.core.round import ClientReply, Guidance, Received, Round
from fedproto_app.settings import Settings
from fedproto_app.strategies.analytic import AnalyticSettings
from fedproto_app.strategies.common.client_sums import ClientSums
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import Ask, PersonalStrategy


class SumsStrategy(PersonalStrategy):
    """State: the latest sums of every client ever heard from.

    With ``sharing = "none"`` there is nothing to add up.
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
        """The sums of clients, with nobody's yet."""

    def chosen(self, eligible: list[ClientKey], server_round: int) -> list[ClientKey]:
        """Everyone: what a client did not add up in a round, it never does."""
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
        """Where masks hide what each client sent, the total alone is taken in."""
        if received.total is not None:
            values = {n: value.astype(np.float32) for n, value in received.total.values.items()}
            self._sums.take_in_total(values, sum(facts.samples for facts in round_.facts.values()))

    def conclude(self, round_: Round, ask: Ask) -> None:
        """Make the totals of an evaluation, once for all nodes."""
        due = round_.evaluated and not self.final_after_training
        self._totals = self._sums.totals() if due else {}

    def to_evaluate(self, clients: list[ClientKey], round_: Round) -> list[ClientKey]:
        """Everyone gets the sums over all, who did not train too."""
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
