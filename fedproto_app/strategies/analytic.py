"""Ridge regression in closed form, server half: add up the clients' sums, send them to all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedproto_app.learners.analytic import GRAM, MOMENT
from fedproto_app.maths.ridge import sums_fault, symmetric, triangle_size
from fedproto_app.messages import Arrays, ArraySpec, Order, Refusal
from fedproto_app.server.federation import Federation, NodeReply
from fedproto_app.server.roster import ClientKey
from fedproto_app.settings import AnalyticSettings, Settings
from fedproto_app.strategies.latest_arrays import LatestArrays
from fedproto_app.strategies.strategy import PersonalStrategy
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.table import make_task

# A client's values are on the scale of its train part, where their mean square is 1; a spike that
# is carried over a gap can make it more.
LARGEST_MEAN_SQUARE = 100.0


class AnalyticStrategy(PersonalStrategy):
    """State: the latest sums of every client ever heard from.

    With ``sharing = "none"`` there is nothing to add up.
    """

    section: AnalyticSettings

    def __init__(
        self, settings: Settings, section: AnalyticSettings, federation: Federation
    ) -> None:
        super().__init__(settings, section, federation)
        self._sums = LatestArrays(GRAM, MOMENT)
        self.final_after_training = section.sharing == "none"
        if self.final_after_training:
            return
        task = make_task(settings, federation.shape)
        assert isinstance(task, ForecastingTask)
        horizon, width = task.layout.horizon, task.layout.regressor_width
        shapes = {GRAM: (horizon, triangle_size(width)), MOMENT: (horizon, width)}
        self.spec = ArraySpec(per_client=shapes)

    def absorb(self, answers: list[NodeReply]) -> None:
        """Take in the sums of the clients that reported, unless they cannot be true."""
        for answer in answers if self.spec.per_client else []:
            reply = answer.reply
            rows = zip(answer.keys(), reply.samples, strict=True)
            for row, (key, samples) in enumerate(rows):
                sums = {name: array[row] for name, array in reply.arrays.items()}
                if fault := _fault(sums, samples):
                    self.federation.refuse(Refusal(key.node, key.client, fault))
                else:
                    self._sums.keep(key, sums)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Everyone gets the sums over all, who did not train too."""
        if self.final_after_training:
            return super().configure_evaluate(server_round, arrays, config, grid)
        totals = self._totals()

        def order(keys: list[ClientKey]) -> Order:
            return replace(self.federation.order(keys, server_round), arrays=totals)

        everyone = self.federation.roster.clients() if totals else []
        return self.federation.orders(everyone, order, MessageType.EVALUATE)

    def state(self) -> dict[str, NDArray[Any]]:
        return self._sums.state()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        self._sums.restore(state)

    def _totals(self) -> Arrays:
        """Over all clients, in the order of their names, so that they are reproducible."""
        return {
            name: self._sums.stacked(name).astype(np.float64).sum(axis=0).astype(np.float32)
            for name in (GRAM, MOMENT)
            if self._sums.clients()
        }


def _fault(sums: Arrays, samples: int) -> str | None:
    moment = torch.from_numpy(sums[MOMENT]).double().unsqueeze(-1)
    gram = symmetric(torch.from_numpy(sums[GRAM]).double(), moment.shape[-2])
    fault = sums_fault(gram, moment, samples, LARGEST_MEAN_SQUARE)
    return fault and f"its sums cannot be those of {samples} samples: {fault}"
