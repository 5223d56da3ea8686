"""The optimiser that a run's settings choose."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedproto_app.maths.optim import CohortAdam, CohortOptimizer, CohortSGD, TimeSmoothed
from fedproto_app.settings import OptimizerSettings


def make_optimizer(
    settings: OptimizerSettings, parameters: Mapping[str, Tensor]
) -> CohortOptimizer:
    """A new optimiser as ``[optimizer]`` has it, for these parameters [K, …]."""
    optimizer: CohortOptimizer
    if settings.name == "adam":
        optimizer = CohortAdam(parameters, settings.learning_rate)
    else:
        optimizer = CohortSGD(
            parameters, settings.learning_rate, settings.momentum, settings.weight_decay
        )
    window = settings.smoothing_window
    if window > 1:
        optimizer = TimeSmoothed(optimizer, parameters, window, settings.smoothing_factor)
    return optimizer
