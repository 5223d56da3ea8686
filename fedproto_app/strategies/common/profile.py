"""The profile that a client sends once for a graph of profiles (docs: compared.md)."""

from __future__ import annotations

from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Contribution
from fedproto_app.tasks.forecasting.profiles import reported_days
from fedproto_app.tasks.forecasting.task import ForecastingTask

PROFILE = "profile"  # an array [B], and the option of the question for it


def profile(cohort: Cohort, task: ForecastingTask) -> Contribution:
    """Return the mean standardised day of each client's train part, [K, B]."""
    return Contribution({PROFILE: reported_days(cohort.samples, task.settings).numpy()})
