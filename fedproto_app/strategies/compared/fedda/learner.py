"""FedDA (Zhang, Dang, Shihada, Alouini, "Dual attention-based federated learning for wireless
traffic prediction", INFOCOM 2021), client half.

Asked once, before anything is trained, a client sends its mean weeks. In the rounds it trains as
FedAvg's and sends its own model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedproto_app.core.messages import Order
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.maths.noise import noisy
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Contribution
from fedproto_app.strategies.common.own_model import OwnModelLearner
from fedproto_app.strategies.compared.fedda import FedDaSettings
from fedproto_app.tasks.forecasting.weekly_statistics import weekly_statistics

STATISTICS = "weekly-statistics"  # up, once: [W, B]
WEEKS = "weeks"  # the question's option: W


class FedDaLearner(OwnModelLearner):
    """FedAvg's local training, and an answer to the question for statistics."""

    section: FedDaSettings

    @classmethod
    def sends(cls, section: FedDaSettings, sizes: Sizes) -> Sequence[Sends]:
        statistics = Sends(
            "weekly statistics",
            {STATISTICS: (sizes.batches, sizes.period)},
            when="question",
            reveals="the mean course of its weeks",
        )
        return [model(combine="each", clip=""), statistics]

    def answer(self, cohort: Cohort, order: Order) -> Contribution:
        """Each client's statistics, [K, W, B], with ``fedda.statistics-noise`` on them.

        The noise is drawn of the run's seed, as all is: it shows what noise costs.
        """
        weeks = int(order.options[WEEKS])
        statistics = weekly_statistics(cohort.samples, weeks, self.section.week).cpu()
        if scale := self.section.statistics_noise:
            streams = (torch_stream(self.training.seed, name, STATISTICS) for name in cohort.names)
            noised = [
                noisy(its, "gaussian", scale, stream)
                for its, stream in zip(statistics, streams, strict=True)
            ]
            statistics = torch.stack(noised)
        return Contribution({STATISTICS: statistics.numpy()})
