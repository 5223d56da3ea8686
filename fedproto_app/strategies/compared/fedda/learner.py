"""FedDA (Zhang, Dang, Shihada, Alouini, "Dual attention-based federated learning for wireless
traffic prediction", INFOCOM 2021), client half.

A client sends its mean weeks once, before any training. In the rounds it trains as in FedAvg and
sends its own model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.maths.noise import noisy
from fedproto_app.strategies.common.learner import Cohort, Contribution
from fedproto_app.strategies.compared.fedda import FedDaSettings
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.forecasting.weekly_statistics import weekly_statistics

STATISTICS = "weekly-statistics"  # up, once: [W, B]
WEEKS = "weeks"  # the question's option: W


class FedDaLearner(SoloLearner):
    """FedAvg's local training, without averages of nodes, and the reply to the request for
    statistics."""

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

    def answer(self, cohort: Cohort, guidance: Guidance) -> Contribution:
        """Return each client's statistics, [K, W, B], with ``fedda.statistics-noise`` added.

        The noise is drawn from the run's seed, as all randomness is: it shows what noise costs.
        """
        weeks = int(guidance.options[WEEKS])
        statistics = weekly_statistics(cohort.samples, weeks, self.section.week).cpu()
        if scale := self.section.statistics_noise:
            streams = (torch_stream(self.training.seed, name, STATISTICS) for name in cohort.names)
            noised = [
                noisy(client_statistics, "gaussian", scale, stream)
                for client_statistics, stream in zip(statistics, streams, strict=True)
            ]
            statistics = torch.stack(noised)
        return Contribution({STATISTICS: statistics.numpy()})
