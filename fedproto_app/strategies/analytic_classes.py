"""Classes in closed form, server half: sums of fixed features."""

from __future__ import annotations

from fedproto_app.strategies.class_sums import SumsOfClasses
from fedproto_app.strategies.summed import SumsStrategy


class AnalyticClassesStrategy(SumsStrategy):
    """Σ x xᵀ, each class's Σ x and number of samples, of all stages so far."""

    def expected(self) -> SumsOfClasses:
        return SumsOfClasses(self.settings, self.federation)
