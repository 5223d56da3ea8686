"""Census (ours), server half: FedAvg, and sums of the clients' features.

State: the latest sums of every client. The sums come from the encoder that the clients received, so
clients are evaluated with that encoder, not with the newly averaged one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.round import ClientReply, Received, Round
from fedproto_app.settings import Settings
from fedproto_app.strategies.census import CensusSettings
from fedproto_app.strategies.census.learner import SENDS_SUMS
from fedproto_app.strategies.common.class_fit import COUNTS
from fedproto_app.strategies.common.client_sums import SumsOfClasses
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.trust.outliers import FEWEST


class SumsOfLearnedFeatures(SumsOfClasses):
    """Sums of features that change from round to round."""

    def __init__(self, settings: Settings, federation: Federation, received: Received) -> None:
        super().__init__(settings, federation, received)
        # If stages repeat, sums start again with each cycle.
        self.grow = settings.classification.stage_schedule != "cyclic"

    def comparable(self, reported: Mapping[ClientKey, float]) -> Mapping[ClientKey, float]:
        """Return the sizes of the round; if these are few, the latest sizes of all clients."""
        return reported if len(reported) >= FEWEST else super().comparable(reported)


class CensusStrategy(FedAvgStrategy):
    """The mean of the models; for an evaluation, clients also get the sums over all clients."""

    section: CensusSettings
    judges_trained = False

    def __init__(self, settings: Settings, section: CensusSettings, federation: Federation) -> None:
        super().__init__(settings, section, federation)
        self._sums = SumsOfLearnedFeatures(settings, federation, self.received)
        self.saved = [self._sums]
        self._sent_out: Arrays = {}

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Ask for sums if the round is evaluated."""
        return Guidance(options={SENDS_SUMS: float(round_.evaluated)})

    def begin(self, round_: Round) -> None:
        self._sent_out = self.model

    def update(self, received: Received, round_: Round) -> None:
        self._sums.take_in(received, round_)

    def conclude(self, round_: Round) -> None:
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
