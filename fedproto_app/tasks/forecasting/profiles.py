"""A client's mean day: what of its series tells whom it is like (docs: graph.md)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedproto_app.core.randomness import torch_stream
from fedproto_app.maths.noise import noisy
from fedproto_app.settings import Settings
from fedproto_app.tasks.forecasting.samples import CohortSamples


def mean_day(samples: CohortSamples) -> Tensor:
    """[K, p] the mean of each client's train targets by phase, 0 where all of one are missing."""
    rows = torch.arange(len(samples.names), device=samples.targets.device)[:, None, None]
    targets = samples.targets[rows, samples.batches][..., 0]  # (K, S, p)
    present = samples.present[rows, samples.batches][..., 0].clone()
    for row, count in enumerate(samples.batch_counts):
        present[row, count:] = 0
    return (targets * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)


def told_days(samples: CohortSamples, settings: Settings) -> Tensor:
    """[K, p] the mean days as clients tell them, with ``graph.noise`` on each.

    The noise is drawn of the run's seed, as all is: it shows what noise costs.
    """
    days = mean_day(samples).cpu()
    if not settings.graph.noise:
        return days
    streams = [torch_stream(settings.seed, name, "profile") for name in samples.names]
    rows = zip(days, streams, strict=True)
    return torch.stack([noisy(day, "gaussian", settings.graph.noise, own) for day, own in rows])
