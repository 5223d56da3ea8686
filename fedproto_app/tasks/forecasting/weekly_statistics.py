"""A client's mean weeks, as FedDA's send them: a summary of the train part of its series."""

from __future__ import annotations

import torch
from torch import Tensor

from fedproto_app.core.errors import DataError
from fedproto_app.data.windows import lookback
from fedproto_app.settings import DataSettings
from fedproto_app.tasks.forecasting.samples import CohortSamples

_CONSTANT = 1e-6  # a deviation below it is rounding: the series has deviation 1


def weekly_statistics(samples: CohortSamples, weeks: int, week: int) -> Tensor:
    """[K, W, p] by week and phase the mean of the newest W weeks of each client's train part.

    Oldest first, and each client's standardised again to mean 0 and mean square 1 (all 0 where
    nothing varies). Where all values of a phase are missing in a week the mean is 0, as in the
    series. week: periods of one. Raises `DataError` for a client with fewer periods.
    """
    means = torch.stack([_means(samples, row, weeks, week) for row in range(len(samples.names))])
    means = means - means.mean(dim=(1, 2), keepdim=True)
    deviation = means.square().mean(dim=(1, 2), keepdim=True).sqrt()
    return torch.where(deviation > _CONSTANT, means / deviation, torch.zeros_like(means))


def weeks_needed(settings: DataSettings) -> int:
    """Weeks of statistics that hold one window: its look-back and its targets."""
    return -(-(lookback(settings) + settings.horizon) // settings.period)


def _means(samples: CohortSamples, row: int, weeks: int, week: int) -> Tensor:
    """[W, p] of one client."""
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
