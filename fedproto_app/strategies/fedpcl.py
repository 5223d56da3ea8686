"""FedPCL (Deng and Yang, ICANN 2023), server half: FedAvg, and prototypes beside the model.

The server keeps the latest prototype of every client ever heard from. To each client goes their
mean, or, with ``fedpcl.prototypes = "multiple"``, all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.learners.fedpcl import GLOBAL_PROTOTYPES, PROTOTYPES
from fedproto_app.messages import Order
from fedproto_app.server.federation import Federation
from fedproto_app.server.roster import ClientKey
from fedproto_app.server.round_log import NodeReply
from fedproto_app.settings import FedPclSettings, Settings
from fedproto_app.strategies.beyond_median import refuse_largest
from fedproto_app.strategies.client_models import middle
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.strategies.latest_arrays import LatestArrays

Prototypes = dict[ClientKey, NDArray[np.float32]]  # [B, d_r] each


class FedPclStrategy(FedAvgStrategy):
    """State: the latest prototypes, [N, B, d_r]."""

    section: FedPclSettings

    def __init__(self, settings: Settings, section: FedPclSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        self._latest = LatestArrays(PROTOTYPES)
        self._sent: NDArray[np.float32] | None = None  # what clients get next, [M, B, d_r]

    def guide(self, order: Order, keys: list[ClientKey]) -> Order:
        if self._sent is None:
            return order
        return replace(order, arrays={**order.arrays, GLOBAL_PROTOTYPES: self._sent})

    def guide_evaluation(self, order: Order, keys: list[ClientKey]) -> Order:
        """The model alone: clients fit their heads by their targets."""
        return order

    def absorb(self, answers: list[NodeReply]) -> None:
        arrived = {
            key: prototype
            for answer in answers
            for key, prototype in zip(answer.keys(), answer.reply.arrays[PROTOTYPES], strict=True)
        }
        for key, prototype in self._believed(arrived).items():
            self._latest.keep(key, {PROTOTYPES: prototype})
        self._renew()

    def state(self) -> dict[str, NDArray[Any]]:
        return self._latest.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._latest.restore(state)
        self._renew()

    def _believed(self, arrived: Prototypes) -> Prototypes:
        """Without those that are far longer than the others of the round: they would own the mean,
        of which only directions count."""
        lengths = {
            key: float(np.linalg.norm(prototype.astype(np.float64)))
            for key, prototype in arrived.items()
        }
        told = "its prototype is not used: its length is"
        beyond = refuse_largest(self.federation, lengths, told)
        return {key: prototype for key, prototype in arrived.items() if key not in beyond}

    def _renew(self) -> None:
        if not self._latest.clients():
            return
        every = self._latest.stacked(PROTOTYPES)
        if self.section.prototypes == "single":
            every = middle(every, self.settings.aggregation)[None]
        self._sent = every
