"""Classes in closed form, server half: sums of fixed features, and whose go together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.round import Guidance, Received, Round
from fedproto_app.settings import Settings
from fedproto_app.strategies.analytic import AnalyticSettings
from fedproto_app.strategies.analytic.classes_strategy import ClassGroups
from fedproto_app.strategies.common.class_fit import WITHIN
from fedproto_app.strategies.common.class_sums import SumsOfClasses
from fedproto_app.strategies.common.client_sums import SumsStrategy
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import Ask


class AnalyticClassesStrategy(SumsStrategy):
    """Σ x xᵀ, each class's Σ x and number of samples, of all stages so far.

    With ``sharing = "clustered"`` clients are told besides what those made of their classes that
    mean the same by them.
    """

    def __init__(
        self, settings: Settings, section: AnalyticSettings, federation: Federation
    ) -> None:
        super().__init__(settings, section, federation)
        self._groups = ClassGroups(section.penalty)

    def client_sums(self) -> SumsOfClasses:
        sums = SumsOfClasses(self.settings, self.federation, self.received)
        sums.reclassed = self.section.guess_rounds > 0
        return sums

    def shared_names(self) -> Collection[str]:
        return [*super().shared_names(), WITHIN]

    def conclude(self, round_: Round, ask: Ask) -> None:
        super().conclude(round_, ask)
        if self._totals and self.section.sharing == "clustered":
            self._groups.find(self._sums.latest, self._totals, round_)

    def guide_evaluation(
        self, received: Received, clients: Sequence[ClientKey], round_: Round
    ) -> Guidance:
        own = self._groups.sums_for(clients)
        return replace(own, arrays={**self._totals, **own.arrays})

    def state(self) -> dict[str, NDArray[Any]]:
        return super().state() | self._groups.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        super().restore(state)
        self._groups.restore(state)

    def findings(self) -> dict[str, dict[str, NDArray[Any]]]:
        """``clusters``: who was in which cluster in each round."""
        return self._groups.findings(self.federation.members.facts)
