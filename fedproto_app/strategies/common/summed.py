"""Server half of the closed forms whose clients send sums: add them up, send the totals to all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.messages import Arrays, Order
from fedproto_app.secure.fixed_point import Sums
from fedproto_app.server.federation import Federation
from fedproto_app.settings import Settings
from fedproto_app.strategies.analytic import AnalyticSettings
from fedproto_app.strategies.common.client_sums import ClientSums
from fedproto_app.strategies.common.strategy import PersonalStrategy


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

    def take_in_total(self, sums: Sums, server_round: int) -> None:
        values = {name: value.astype(np.float32) for name, value in sums.values.items()}
        declared = self.federation.members.facts.values()
        self._sums.take_in_total(values, sum(facts.samples for facts in declared))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Everyone gets the sums over all, who did not train too."""
        if self.final_after_training:
            return super().configure_evaluate(server_round, arrays, config, grid)
        if not self.federation.selection.evaluates(server_round):
            return []
        if not (totals := self._sums.totals()):
            return []
        everyone, make = self.federation.members.clients(), self.answer(totals, server_round)
        return self.federation.pipeline.orders(everyone, make, MessageType.EVALUATE, self.told_all)

    @property
    def told_all(self) -> Collection[str]:
        """Of the arrays of an answer those that are the same for every client."""
        return self._sums.shapes

    def answer(self, totals: Arrays, server_round: int) -> Callable[[list[ClientKey]], Order]:
        """The order with what its clients are told, for some clients of a node."""
        return lambda keys: replace(
            self.federation.pipeline.order(keys, server_round), arrays=totals
        )

    def state(self) -> dict[str, NDArray[Any]]:
        return self._sums.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._sums.restore(state)
