"""A client's mean day: what of its series tells whom it is like."""

from __future__ import annotations

import torch
from torch import Tensor

from fedproto_app.tasks.forecasting.task import CohortSamples


def mean_day(samples: CohortSamples) -> Tensor:
    """[K, p] the mean of each client's train targets by phase, 0 where all of one are missing."""
    rows = torch.arange(len(samples.names), device=samples.targets.device)[:, None, None]
    targets = samples.targets[rows, samples.batches][..., 0]  # (K, S, p)
    present = samples.present[rows, samples.batches][..., 0].clone()
    for row, count in enumerate(samples.batch_counts):
        present[row, count:] = 0
    return (targets * present).sum(dim=1) / present.sum(dim=1).clamp(min=1)
