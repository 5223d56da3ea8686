"""FedProto (Tan et al., AAAI 2022), server half: one global prototype for all clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.learners.fedproto import PROTOTYPE, PROTOTYPES
from fedproto_app.messages import Order
from fedproto_app.secure.fixed_point import CLIENTS, Sums
from fedproto_app.server.federation import Federation
from fedproto_app.server.roster import ClientKey
from fedproto_app.server.round_log import NodeReply
from fedproto_app.settings import FedProtoSettings, Settings
from fedproto_app.strategies.client_models import middle
from fedproto_app.strategies.latest_arrays import LatestArrays
from fedproto_app.strategies.strategy import PersonalStrategy


class FedProtoStrategy(PersonalStrategy):
    """The mean of all clients' latest prototypes, [B, d_r], goes to every client."""

    def __init__(
        self, settings: Settings, section: FedProtoSettings, federation: Federation
    ) -> None:
        super().__init__(settings, section, federation)
        self._prototypes = LatestArrays(PROTOTYPES)
        self._mean: NDArray[np.float32] | None = None

    def guide(self, order: Order, keys: list[ClientKey]) -> Order:
        if self._mean is None:
            return order
        return replace(order, arrays={PROTOTYPE: self._mean})

    def absorb(self, answers: list[NodeReply]) -> None:
        for answer in answers:
            arrived = answer.reply.arrays[PROTOTYPES]
            for key, prototype in zip(answer.keys(), arrived, strict=True):
                self._prototypes.keep(key, {PROTOTYPES: prototype})
        self._average()

    def absorb_total(self, total: Sums) -> None:
        """The mean over the round's clients: what others sent before is in no sum of now."""
        mean = total.values[PROTOTYPES] / total.counts[CLIENTS]
        self._mean = mean.astype(np.float32)

    def _average(self) -> None:
        if self._prototypes.clients():
            latest = self._prototypes.stacked(PROTOTYPES)
            self._mean = middle(latest, self.settings.aggregation)

    def state(self) -> dict[str, NDArray[Any]]:
        if self.settings.aggregation.secure:
            return {} if self._mean is None else {PROTOTYPE: self._mean}
        return self._prototypes.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        if self.settings.aggregation.secure:
            self._mean = state.get(PROTOTYPE)
            return
        self._prototypes.restore(state)
        self._average()
