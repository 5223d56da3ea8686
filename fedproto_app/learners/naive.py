"""The simplest forecasts: the newest value, and the value one period before.

Nothing is learned and nothing is exchanged.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from fedproto_app.learners.closed_form import ClosedFormLearner
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Context
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.messages import Order
from fedproto_app.models.linear_forecaster import COEFFICIENTS
from fedproto_app.tasks.forecasting.task import ForecastingTask


class _CopyingLearner(ClosedFormLearner[Context, ForecastingTask]):
    """A forecast that repeats a value: a linear one with a single coefficient, 1."""

    @abstractmethod
    def copied(self, layout: WindowLayout) -> int:
        """Which of the regressors is the forecast."""

    def initial_parameters(self) -> dict[str, Tensor]:
        parameters = self.task.initial_parameters()
        parameters[COEFFICIENTS][:, self.copied(self.task.layout)] = 1.0
        return parameters

    def context(self, order: Order, cohort: Cohort) -> Context:
        return Context()

    def conclude(self, cohort: Cohort, context: Context) -> dict[str, Tensor]:
        return {"total": self.task.training_error(cohort.parameters, cohort.samples)}


class NaiveLearner(_CopyingLearner):
    """Every value to come is the newest one."""

    def copied(self, layout: WindowLayout) -> int:
        return layout.close - 1


class SeasonalNaiveLearner(_CopyingLearner):
    """Every value to come is the one a period before."""

    def copied(self, layout: WindowLayout) -> int:
        return layout.close + self.task.settings.data.distances.index(layout.period)
