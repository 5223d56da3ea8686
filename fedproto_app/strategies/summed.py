"""Server half of the closed forms whose clients send sums: add them up, send the totals to all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedproto_app.messages import Arrays, ArraySpec, Order, Refusal
from fedproto_app.server.federation import Federation, NodeReply
from fedproto_app.server.roster import ClientKey
from fedproto_app.settings import AnalyticSettings, Settings
from fedproto_app.strategies.latest_arrays import LatestArrays
from fedproto_app.strategies.strategy import PersonalStrategy


class SumsStrategy(PersonalStrategy):
    """State: the latest sums of every client ever heard from.

    With ``sharing = "none"`` there is nothing to add up. Subclasses say what a client sends and
    when it cannot be true.
    """

    section: AnalyticSettings

    def __init__(
        self, settings: Settings, section: AnalyticSettings, federation: Federation
    ) -> None:
        super().__init__(settings, section, federation)
        self.final_after_training = section.sharing == "none"
        shapes = {} if self.final_after_training else self.shapes()
        self.spec = ArraySpec(per_client=shapes)
        self._sums = LatestArrays(*shapes)

    @abstractmethod
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of a client's sums, by name."""

    def chosen(self, eligible: list[ClientKey], server_round: int) -> list[ClientKey]:
        """Everyone: what a client did not add up in a round, it never does."""
        return eligible

    def outliers(self, reported: Mapping[ClientKey, Arrays]) -> dict[ClientKey, str]:
        """Why some of these sums, though possible, are not taken beside the others."""
        return {}

    @abstractmethod
    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        """Why a client that trained on so many samples cannot have these sums, or None."""

    def absorb(self, answers: list[NodeReply]) -> None:
        """Take in the sums of the clients that reported, unless they cannot be true."""
        reported: dict[ClientKey, Arrays] = {}
        faults: dict[ClientKey, str] = {}
        for answer in answers if self.spec.per_client else []:
            reply = answer.reply
            rows = zip(answer.keys(), reply.samples, strict=True)
            for row, (key, samples) in enumerate(rows):
                sums = {name: array[row] for name, array in reply.arrays.items()}
                if fault := self.fault(sums, key, samples):
                    faults[key] = fault
                else:
                    reported[key] = sums
        faults |= self.outliers(reported)
        for key, fault in faults.items():
            self.federation.refuse(Refusal(key.node, key.client, fault))
        for key, sums in reported.items():
            if key not in faults:
                self._sums.keep(key, sums)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Everyone gets the sums over all, who did not train too."""
        if self.final_after_training:
            return super().configure_evaluate(server_round, arrays, config, grid)
        if not self.federation.evaluates(server_round):
            return []
        totals = self._sums.totals()

        def order(keys: list[ClientKey]) -> Order:
            return replace(self.federation.order(keys, server_round), arrays=totals)

        everyone = self.federation.roster.clients() if totals else []
        return self.federation.orders(everyone, order, MessageType.EVALUATE)

    def state(self) -> dict[str, NDArray[Any]]:
        return self._sums.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._sums.restore(state)
