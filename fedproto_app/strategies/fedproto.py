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
        self.spec = ArraySpec(per_client={"prototypes": shape})
        self._prototypes: dict[ClientKey, NDArray[np.float32]] = {}
        self._mean: NDArray[np.float32] | None = None

    def guide(self, order: Order, keys: list[ClientKey]) -> Order:
        if self._mean is None:
            return order
        return replace(order, arrays={"prototype": self._mean})

    def absorb(self, answers: list[NodeReply]) -> None:
        for answer in answers:
            arrived = answer.reply.arrays["prototypes"]
            for key, prototype in zip(answer.keys(), arrived, strict=True):
                self._prototypes[key] = prototype
        if self._prototypes:  # in the order of names: the sum must not depend on who came first
            latest = np.stack([self._prototypes[key] for key in sorted(self._prototypes)])
            self._mean = latest.mean(axis=0, dtype=np.float64).astype(np.float32)

    def state(self) -> dict[str, NDArray[Any]]:
        keys = list(self._prototypes)
        if not keys:
            return {}
        return {
            "names": np.array([key.client for key in keys]),
            "nodes": np.array([key.node for key in keys]),
            "prototypes": np.stack([self._prototypes[key] for key in keys]),
        }
