"""Census (ours), server half: FedAvg, and the sums of the clients' vectors.

State: the latest sums of every client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from fedproto_app.messages import Order
from fedproto_app.server.federation import Federation, NodeReply
from fedproto_app.server.roster import ClientKey
from fedproto_app.settings import CensusSettings, Settings
from fedproto_app.strategies.class_sums import SumsOfClasses
from fedproto_app.strategies.fedavg import FedAvgStrategy


class CensusStrategy(FedAvgStrategy):
    """The mean of the models; who is judged gets the sums over all clients besides."""

    section: CensusSettings
    judges_trained = False

    def __init__(self, settings: Settings, section: CensusSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        self._sums = SumsOfClasses(settings, federation)
        self.spec = replace(self.spec, per_client=self._sums.shapes)

    def guide_evaluation(self, order: Order, keys: list[ClientKey]) -> Order:
        return replace(order, arrays={**order.arrays, **self._sums.totals()})

    def absorb(self, answers: list[NodeReply]) -> None:
        self._sums.take_in(answers)

    def state(self) -> dict[str, NDArray[Any]]:
        return self._sums.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._sums.restore(state)
