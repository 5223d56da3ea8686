"""A client's mean weeks, which clients of FedDA send: a summary of the train part of a series."""

from __future__ import annotations

import torch
from torch import Tensor

from fedproto_app.core.errors import DataError
from fedproto_app.data.windows import lookback
from fedproto_app.settings import DataSettings
from fedproto_app.tasks.forecasting.samples import CohortSamples

_CONSTANT = 1e-6  # a smaller deviation is a rounding error, as series have deviation 1


def weekly_statistics(samples: CohortSamples, weeks: int, week: int) -> Tensor:
    """Return the means of each client's newest W train weeks by week and phase, [K, W, p].

    Oldest week first. The means of each client are standardised again to mean 0 and mean square 1
    (all 0 if they are constant). If all values of a phase are missing in a week, the mean is 0, as
    in the series. week: periods per week. Raises `DataError` for a client with fewer periods.
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
