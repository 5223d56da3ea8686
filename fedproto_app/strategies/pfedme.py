"""pFedMe (T. Dinh, Tran, Nguyen, NeurIPS 2020), server half: w ← (1 − β)·w + β·mean of the w_n."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord

from fedproto_app.settings import PFedMeSettings
from fedproto_app.strategies.fedavg import FedAvgStrategy
from fedproto_app.wire import numpy_arrays


class PFedMeStrategy(FedAvgStrategy):
    """FedAvg, of which the shared model takes the share β; beyond 1 it goes further than the mean.

    The model that the shares are of is the one that the round began with.
    """

    section: PFedMeSettings

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        mean, metrics = super().aggregate_train(server_round, replies)
        if mean is None:
            return None, metrics
        beta = np.float32(self.section.server_step)
        mixed = {
            name: (1 - beta) * self._before[name] + beta * value
            for name, value in numpy_arrays(mean).items()
        }
        return ArrayRecord({name: Array(value) for name, value in mixed.items()}), metrics
