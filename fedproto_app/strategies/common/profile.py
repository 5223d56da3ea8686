"""What a client tells once for a graph of profiles (docs: compared.md)."""

from __future__ import annotations

from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Contribution
from fedproto_app.tasks.forecasting.profiles import reported_days
from fedproto_app.tasks.forecasting.task import ForecastingTask

PROFILE = "profile"  # [B], and the option of a question for it


def profile(cohort: Cohort, task: ForecastingTask) -> Contribution:
    """Each client's mean standardised day of its train part, [K, B]."""
    return Contribution({PROFILE: reported_days(cohort.samples, task.settings).numpy()})
