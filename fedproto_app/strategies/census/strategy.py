"""Census (ours), server half: FedAvg, and the sums of the clients' vectors.

State: the latest sums of every client. Sums are of the vectors that the encoder of the order gave,
so who is judged gets that encoder with them, not the newer one that the clients' training made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays
from fedproto_app.core.round import ClientReply, Guidance, Received, Round
from fedproto_app.settings import Settings
from fedproto_app.strategies.census import CensusSettings
from fedproto_app.strategies.census.learner import SENDS_SUMS
from fedproto_app.strategies.common.class_fit import COUNTS
from fedproto_app.strategies.common.class_sums import SumsOfClasses
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.strategy import Ask
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.trust.outliers import FEWEST


class SumsOfLearnedFeatures(SumsOfClasses):
    """Of functions that change from round to round."""

    def __init__(self, settings: Settings, federation: Federation, received: Received) -> None:
        super().__init__(settings, federation, received)
        # Where stages come again, sums begin anew with each turn.
        self.grow = settings.classification.stage_schedule != "cyclic"

    def comparable(self, mine: Mapping[ClientKey, float]) -> Mapping[ClientKey, float]:
        """Those of the same round where there are enough; a few stand beside everybody's latest."""
        everybody = super().comparable(mine)
        return mine if len(mine) >= FEWEST else everybody


class CensusStrategy(FedAvgStrategy):
    """The mean of the models; who is judged gets the sums over all clients besides."""

    section: CensusSettings
    judges_trained = False

    def __init__(self, settings: Settings, section: CensusSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        self._sums = SumsOfLearnedFeatures(settings, federation, self.received)
        self._sent_out: Arrays = {}

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Sums are asked for where an evaluation needs them."""
        return Guidance(options={SENDS_SUMS: float(round_.evaluated)})

    def begin(self, round_: Round, ask: Ask) -> None:
        self._sent_out = self.model

    def conclude(self, round_: Round, ask: Ask) -> None:
        self.model = self._sent_out

    def guide_evaluation(
        self, received: Received, clients: Sequence[ClientKey], round_: Round
    ) -> Guidance:
        return Guidance(self._sums.totals())

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        if COUNTS not in reply.arrays:  # a round that is not evaluated
            return None
        return self._sums.fault(reply.arrays, reply.key, reply.samples)

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        sums = {reply.key: reply.arrays for reply in replies if COUNTS in reply.arrays}
        return self._sums.outliers(sums) if sums else {}

    def state(self) -> dict[str, NDArray[Any]]:
        return self._sums.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._sums.restore(state)
