"""The forecast that repeats the value one period before."""

from __future__ import annotations

from fedproto_app.core.method import Method
from fedproto_app.strategies.naive import SeasonalNaiveLearner
from fedproto_app.strategies.solo import SoloStrategy

METHOD = Method(
    name="seasonal-naive",
    title="a period before",
    strategy=SoloStrategy,
    learner=SeasonalNaiveLearner,
    tasks=("forecasting",),
    model="fedproto_app.tasks.forecasting.task:linear_model",
    rounds=lambda settings: 1,
)
