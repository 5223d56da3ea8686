"""Ridge regression in closed form, client half: one message up, one down, no rounds.

A client sends XᵀX and Xᵀy of its train samples, d(d + 1)/2 + d values for each step ahead. Sums
over clients are the sums of all samples, so the federated solution is that of pooled data. The
client's own coefficients are pulled towards it as strongly as its validation samples like best:
    min over w of ‖y − Xw‖² + s·‖w − w_all‖².
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedproto_app.learners.closed_form import ClosedFormLearner
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Context, Contribution
from fedproto_app.learners.release import Release
from fedproto_app.maths.ridge import solve, symmetric, triangle
from fedproto_app.messages import Order
from fedproto_app.models.linear_forecaster import COEFFICIENTS
from fedproto_app.settings import AnalyticSettings
from fedproto_app.tasks.forecasting.task import ForecastingTask

# What goes up from each client, and, summed over the clients, comes down.
GRAM, MOMENT = "gram", "moment"


def sample_bound(clip: float, steps: int) -> float:
    """The most length that a sample adds to the sums of so many steps ahead, as one vector.

    To those of one step (x, y), at most `clip` long, adds clip² at most (`ridge.clipped_samples`).
    """
    return math.sqrt(steps) * clip**2


class SumsContext(Context):
    """gram: [K, H, d, d]; moment: [K, H, d, 1]; of the cohort's train samples."""

    def __init__(self, gram: Tensor, moment: Tensor) -> None:
        self.gram, self.moment = gram, moment


class AnalyticLearner(ClosedFormLearner[SumsContext, ForecastingTask]):
    """The client's own sums, and what is made of them and of those of all."""

    section: AnalyticSettings
    private = (Release("sums", (GRAM, MOMENT)),)

    def context(self, order: Order, cohort: Cohort) -> SumsContext:
        return SumsContext(*self.task.regression_sums(cohort.samples))

    def conclude(self, cohort: Cohort, context: SumsContext) -> dict[str, Tensor]:
        """The client's own solution, which stays if it shares nothing."""
        self._choose(cohort, context, torch.zeros_like(context.moment))
        return {"total": self.task.training_error(cohort.parameters, cohort.samples)}

    def contribution(self, cohort: Cohort, context: SumsContext, server_round: int) -> Contribution:
        if self.section.sharing == "none":
            return Contribution()
        sums = (context.gram, context.moment)
        if self.training.sample_clip is not None:
            sums = self.task.regression_sums(cohort.samples, self.training.sample_clip)
        gram, moment = triangle(sums[0]).float(), sums[1].squeeze(-1).float()
        return Contribution({GRAM: gram.cpu().numpy(), MOMENT: moment.cpu().numpy()})

    def sums_bound(self, cohort: Cohort) -> tuple[float, list[int]]:
        assert self.training.sample_clip is not None
        bound = sample_bound(self.training.sample_clip, self.task.layout.horizon)
        return bound, cohort.samples.train_samples

    def receive(self, cohort: Cohort, order: Order) -> list[int]:
        """Fit each client again, now that the sums over all are known."""
        if MOMENT not in order.arrays:
            return []
        moment = torch.from_numpy(order.arrays[MOMENT]).double().to(self.task.device)[..., None]
        packed = torch.from_numpy(order.arrays[GRAM]).double().to(self.task.device)
        shared = solve(symmetric(packed, moment.shape[-2]), moment, self.section.penalty)
        if not shared.isfinite().all():
            return []  # somebody's sums spoil the total: each goes on with its own solution
        if self.section.sharing == "federated":
            cohort.parameters[COEFFICIENTS].copy_(shared[..., 0])  # all clients' the same
        else:
            self._choose(cohort, SumsContext(*self.task.regression_sums(cohort.samples)), shared)
        return list(range(len(cohort.names)))

    def _choose(self, cohort: Cohort, own: SumsContext, toward: Tensor) -> None:
        """Of all strengths of the pull the one with the least validation error, each client's."""
        strengths = self.section.strengths
        best = torch.full_like(own.moment[:, 0, 0, 0], torch.inf)
        for strength in strengths:
            fitted = solve(own.gram, own.moment, strength, toward)[..., 0].float()
            model = {**cohort.parameters, COEFFICIENTS: fitted}
            error = self.task.validation_error(model, cohort.samples)
            better = error < best
            best = torch.where(better, error, best)
            cohort.parameters[COEFFICIENTS][better] = fitted[better]
