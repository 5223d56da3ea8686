"""Classes in closed form, server half: sums of fixed features, which never become fewer."""

from __future__ import annotations

from fedproto_app.learners.class_fit import COUNTS
from fedproto_app.messages import Arrays
from fedproto_app.server.roster import ClientKey
from fedproto_app.strategies.class_sums import SumsOfClasses
from fedproto_app.strategies.summed import SumsStrategy


class GrowingSums(SumsOfClasses):
    """Of all stages so far."""

    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        before = self.latest.of(key)
        if before is not None and (sums[COUNTS] < before[COUNTS]).any():
            return "its sums are of fewer samples than it sent before"
        return super().fault(sums, key, samples)


class AnalyticClassesStrategy(SumsStrategy):
    """Σ x xᵀ, each class's Σ x and number of samples, of all stages so far."""

    def expected(self) -> GrowingSums:
        return GrowingSums(self.settings, self.federation)
