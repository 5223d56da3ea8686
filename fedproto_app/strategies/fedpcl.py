"""FedPCL (Deng and Yang, ICANN 2023), server half: FedAvg, and prototypes beside the model.

The server keeps the latest prototype of every client ever heard from. To each client goes their
mean, or, with ``fedpcl.prototypes = "multiple"``, all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.round import ClientReply, Guidance, Received, Round
from fedproto_app.learners.fedpcl import GLOBAL_PROTOTYPES, PROTOTYPES
from fedproto_app.messages import Order
from fedproto_app.settings import FedPclSettings
from fedproto_app.strategies.beyond_median import largest
from fedproto_app.strategies.fedavg import FedAvgStrategy


class FedPclStrategy(FedAvgStrategy):
    """Prototypes of the latest round of every client, [N, B, d_r]."""

    section: FedPclSettings

    def guide(self, received: Received, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        mean = received.mean(PROTOTYPES)
        if mean is None:
            return Guidance()
        single = self.section.prototypes == "single"
        return Guidance({GLOBAL_PROTOTYPES: mean[None] if single else received.stacked(PROTOTYPES)})

    def guided_evaluation(self, order: Order, keys: Sequence[ClientKey]) -> Order:
        """The model alone: clients fit their heads by their targets."""
        return order

    def outliers(self, replies: Sequence[ClientReply]) -> dict[ClientKey, str]:
        """Those that are far longer than the others of the round: they would own the mean, of which
        only directions count."""
        lengths = {
            reply.key: float(np.linalg.norm(reply.arrays[PROTOTYPES].astype(np.float64)))
            for reply in replies
        }
        return largest(lengths, "its prototype is not used: its length is")
