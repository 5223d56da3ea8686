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
    plain: CohortOptimizer
    if settings.name == "adam":
        plain = CohortAdam(parameters, settings.learning_rate)
    else:
        plain = CohortSGD(
            parameters, settings.learning_rate, settings.momentum, settings.weight_decay
        )
    if settings.smoothing_window == 1:
        return plain
    return TimeSmoothed(plain, parameters, settings.smoothing_window, settings.smoothing_factor)
