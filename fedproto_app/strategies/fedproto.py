"""FedProto (Tan et al., AAAI 2022), server half: one global prototype for all clients."""

from __future__ import annotations

from collections.abc import Sequence

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.round import Guidance, Received, Round
from fedproto_app.learners.fedproto import PROTOTYPE, PROTOTYPES
from fedproto_app.strategies.strategy import PersonalStrategy


class FedProtoStrategy(PersonalStrategy):
    """The mean of all clients' latest prototypes, [B, d_r], goes to every client."""

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        mean = received.mean(PROTOTYPES)
        return Guidance() if mean is None else Guidance({PROTOTYPE: mean})
