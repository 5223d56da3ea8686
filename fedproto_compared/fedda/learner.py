"""FedDA (Zhang, Dang, Shihada, Alouini, "Dual attention-based federated learning for wireless
traffic prediction", INFOCOM 2021), client half.

A client sends its mean weeks once, before any training. In the rounds it trains as in FedAvg and
sends its own model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedproto_app.core.errors import DataError
from fedproto_app.core.messages import Guidance
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sends, Sizes, model
from fedproto_app.data.windows import lookback
from fedproto_app.maths.noise import noisy
from fedproto_app.settings import DataSettings
from fedproto_app.strategies.common.learner import Cohort, Contribution
from fedproto_app.strategies.common.questions import Answers
from fedproto_app.strategies.solo import SoloLearner
from fedproto_app.tasks.forecasting.task import CohortSamples
from fedproto_compared.fedda import FedDaSettings

STATISTICS = "weekly-statistics"  # up, once: [W, B]
WEEKS = "weeks"  # the question's option: W

_CONSTANT = 1e-6  # a smaller deviation is a rounding error, as series have deviation 1


class FedDaLearner(Answers, SoloLearner):
    """FedAvg's local training, but nodes do not average the models. It also answers the request for
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

        The noise is drawn from the run's seed, as all randomness is. It shows what noise costs.
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


def weekly_statistics(samples: CohortSamples, weeks: int, week: int) -> Tensor:
    """Return the means of each client's newest W train weeks by week and phase, [K, W, p].

    The oldest week comes first. The means of each client are standardised again to mean 0 and mean
    square 1, or are all 0 if they are constant. If all values of a phase are missing in a week, the
    mean is 0, as in the series. week: periods per week. Raise `DataError` if a client has fewer
    periods.
    """
    means = torch.stack([_means(samples, row, weeks, week) for row in range(len(samples.names))])
    means = means - means.mean(dim=(1, 2), keepdim=True)
    deviation = means.square().mean(dim=(1, 2), keepdim=True).sqrt()
    return torch.where(deviation > _CONSTANT, means / deviation, torch.zeros_like(means))


def weeks_needed(settings: DataSettings) -> int:
    """Return how many periods of statistics a window covers: its look-back and its targets."""
    return -(-(lookback(settings) + settings.horizon) // settings.period)


def _means(samples: CohortSamples, row: int, weeks: int, week: int) -> Tensor:
    """Return the means of one client, [W, p]."""
    count, periods = samples.batch_counts[row], week * weeks
    if not 0 < periods <= count:
        raise DataError(
            f"client {samples.names[row]!r} trains on {count} periods, not on {periods}"
        )
    picked = samples.batches[row, count - periods : count]  # (W·week, p) sample numbers
    shape = (weeks, week, picked.shape[1])
    targets = samples.targets[row, picked][..., 0].view(shape)
    present = samples.present[row, picked][..., 0].view(shape)
    means: Tensor = (targets * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)
    return means
