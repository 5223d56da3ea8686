"""A client's mean day, used to find similar clients (docs: compared.md)."""

from __future__ import annotations

import torch
from torch import Tensor

from fedproto_app.core.randomness import torch_stream
from fedproto_app.maths.noise import noisy
from fedproto_app.settings import Settings
from fedproto_app.tasks.forecasting.samples import CohortSamples


def mean_day(samples: CohortSamples) -> Tensor:
    """Return the mean of each client's train targets by phase, [K, p]; 0 if all are missing."""
    rows = torch.arange(len(samples.names), device=samples.targets.device)[:, None, None]
    targets = samples.targets[rows, samples.batches][..., 0]  # (K, S, p)
    present = samples.present[rows, samples.batches][..., 0].clone()
    for row, count in enumerate(samples.batch_counts):
        present[row, count:] = 0
    return (targets * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)


def reported_days(samples: CohortSamples, settings: Settings) -> Tensor:
    """Return the mean days that clients report, [K, p], with noise of ``graph.noise`` added.

    The noise is drawn from the run's seed, so it is for experiments on the cost of noise only.
    """
    days = mean_day(samples).cpu()
    if not settings.graph.noise:
        return days
    streams = [torch_stream(settings.seed, name, "profile") for name in samples.names]
    rows = zip(days, streams, strict=True)
    return torch.stack(
        [noisy(day, "gaussian", settings.graph.noise, stream) for day, stream in rows]
    )
