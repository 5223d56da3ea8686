"""FedProto (Tan et al., AAAI 2022), server half: one global prototype for all clients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproto_app.federation import Federation, NodeReply
from fedproto_app.roster import ClientKey
from fedproto_app.settings import Settings
from fedproto_app.strategies.strategy import PersonalStrategy
from fedproto_app.wire import ArraySpec, Order


class FedProtoStrategy(PersonalStrategy):
    """The mean of all clients' latest prototypes, [B, d_r], goes to every client."""

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        shape = (settings.data.period, settings.model.representation_dim)
        self.spec = ArraySpec({"prototypes": shape}, per_client=True)
        self._prototypes: dict[ClientKey, NDArray[np.float32]] = {}

    def guide(self, order: Order, keys: list[ClientKey]) -> Order:
        if not self._prototypes:
            return order
        latest = [self._prototypes[key] for key in sorted(self._prototypes)]
        mean = np.stack(latest).mean(axis=0, dtype=np.float64).astype(np.float32)
        return replace(order, arrays={"prototype": mean})

    def absorb(self, answers: list[NodeReply]) -> None:
        for answer in answers:
            for key, prototype in zip(
                answer.keys(), answer.reply.arrays["prototypes"], strict=True
            ):
                self._prototypes[key] = prototype

    def state(self) -> dict[str, NDArray[Any]]:
        keys = list(self._prototypes)
        if not keys:
            return {}
        return {
            "names": np.array([key.client for key in keys]),
            "nodes": np.array([key.node for key in keys]),
            "prototypes": np.stack([self._prototypes[key] for key in keys]),
        }
