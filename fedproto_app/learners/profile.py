"""What a client tells once for a graph of profiles (docs: graph.md)."""

from __future__ import annotations

import torch

from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Contribution
from fedproto_app.maths.noise import noisy
from fedproto_app.randomness import torch_stream
from fedproto_app.tasks.forecasting.profiles import mean_day
from fedproto_app.tasks.forecasting.task import ForecastingTask

PROFILE = "profile"  # [B], and the option of a question for it


def profile(cohort: Cohort, task: ForecastingTask) -> Contribution:
    """Each client's mean standardised day of its train part, [K, B], with ``graph.noise`` on it.

    The noise is drawn of the run's seed, as all is: it shows what noise costs.
    """
    days = mean_day(cohort.samples).cpu()
    settings = task.settings
    if settings.graph.noise:
        streams = [torch_stream(settings.seed, name, PROFILE) for name in cohort.names]
        rows = zip(days, streams, strict=True)
        days = torch.stack(
            [noisy(day, "gaussian", settings.graph.noise, stream) for day, stream in rows]
        )
    return Contribution({PROFILE: days.numpy()})
