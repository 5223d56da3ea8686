"""Classes in closed form, server half: sums of fixed features, which never become fewer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from fedproto_app.learners.class_fit import COUNTS
from fedproto_app.messages import Arrays
from fedproto_app.server.federation import Federation
from fedproto_app.server.roster import ClientKey
from fedproto_app.settings import Settings
from fedproto_app.strategies.class_sums import SumsOfClasses, size_of
from fedproto_app.strategies.summed import SumsStrategy


class GrowingSums(SumsOfClasses):
    """Of all stages so far, by functions that are always the same."""

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self._sizes: dict[ClientKey, float] = {}

    def comparable(self, mine: Mapping[ClientKey, float]) -> list[float]:
        self._sizes |= mine
        return list(self._sizes.values())

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().restore(state)
        every = {key: self.latest.of(key) for key in self.latest.clients()}
        self._sizes = {key: size_of(sums) for key, sums in every.items() if sums}

    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        before = self.latest.of(key)
        if before is not None and (sums[COUNTS] < before[COUNTS]).any():
            return "its sums are of fewer samples than it sent before"
        return super().fault(sums, key, samples)


class AnalyticClassesStrategy(SumsStrategy):
    """Σ x xᵀ, each class's Σ x and number of samples, of all stages so far."""

    def expected(self) -> GrowingSums:
        return GrowingSums(self.settings, self.federation)
