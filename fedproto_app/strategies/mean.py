"""A forecast that is always the mean of the series' train part.

Where values are independent noise, no forecast is better.
"""

from __future__ import annotations

from fedproto_app.core.method import Method
from fedproto_app.strategies.naive import MeanLearner
from fedproto_app.strategies.solo import SoloStrategy

METHOD = Method(
    name="mean",
    title="mean of the past",
    strategy=SoloStrategy,
    learner=MeanLearner,
    tasks=("forecasting",),
    model="fedproto_app.tasks.forecasting.task:linear_model",
    rounds=lambda settings: 1,
)
