"""Ridge regression in closed form, server half: what the clients' sums look like."""

from __future__ import annotations

import torch

from fedproto_app.learners.analytic import GRAM, MOMENT
from fedproto_app.maths.ridge import sums_fault, symmetric, triangle_size
from fedproto_app.messages import Arrays
from fedproto_app.server.roster import ClientKey
from fedproto_app.strategies.client_sums import ClientSums
from fedproto_app.strategies.summed import SumsStrategy
from fedproto_app.tasks.forecasting.task import ForecastingTask
from fedproto_app.tasks.table import make_task

# A client's values are on the scale of its train part, where their mean square is 1; a spike that
# is carried over a gap can make it more.
LARGEST_MEAN_SQUARE = 100.0


class SumsOfRegressors(ClientSums):
    """XᵀX and Xᵀy for each step ahead."""

    def fault(self, sums: Arrays, key: ClientKey, samples: int) -> str | None:
        fault = self.impossible(sums, samples)
        return fault and f"its sums cannot be those of {samples} samples: {fault}"

    def impossible(self, sums: Arrays, samples: int) -> str | None:
        moment = torch.from_numpy(sums[MOMENT]).double().unsqueeze(-1)
        gram = symmetric(torch.from_numpy(sums[GRAM]).double(), moment.shape[-2])
        return sums_fault(gram, moment, samples, LARGEST_MEAN_SQUARE)


class AnalyticStrategy(SumsStrategy):
    """XᵀX and Xᵀy for each step ahead."""

    def expected(self) -> SumsOfRegressors:
        task = make_task(self.settings, self.federation.shape)
        assert isinstance(task, ForecastingTask)
        horizon, width = task.layout.horizon, task.layout.regressor_width
        shapes = {GRAM: (horizon, triangle_size(width)), MOMENT: (horizon, width)}
        return SumsOfRegressors(self.federation, shapes)
