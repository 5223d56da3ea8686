"""FedProto (Tan et al., AAAI 2022), server half: the mean of the clients' prototypes, for all."""

from __future__ import annotations

from collections.abc import Sequence

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.round import Guidance, Received, Round
from fedproto_app.learners.fedproto import PROTOTYPE, PROTOTYPES
from fedproto_app.messages import Order
from fedproto_app.strategies.class_prototypes import ClassPrototypes
from fedproto_app.strategies.strategy import PersonalStrategy


class FedProtoStrategy(PersonalStrategy):
    """Of series: the mean of all clients' latest prototypes, [B, d_r], goes to every client."""

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        mean = received.mean(PROTOTYPES)
        return Guidance() if mean is None else Guidance({PROTOTYPE: mean})


class FedProtoClassesStrategy(ClassPrototypes, PersonalStrategy):
    """Of classes: the mean of a class's prototypes over the round's clients that have it.

    Clients are judged by the prototypes that they have just helped to make.
    """

    final_after_training = False

    def guided_evaluation(self, order: Order, keys: Sequence[ClientKey]) -> Order:
        return self.guided(order, keys)
