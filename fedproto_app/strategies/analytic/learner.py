"""Ridge regression in closed form, client half: one message up, one down, no rounds.

A client sends XᵀX and Xᵀy of its train samples, d(d + 1)/2 + d values for each step ahead. Sums
over clients are the sums of all samples, so the federated solution is that of pooled data. The
client's own coefficients are drawn to a solution w₀,
    min over w of ‖y − Xw‖² + s·‖w_values − w₀‖² + s'·‖w_calendar − w₀‖²,
which is a naive forecast, the mean, or what all clients' samples say. Its model is the mean of
these candidates over penalties s, s' and solutions w₀, weighed by their errors on its validation
samples as Kindred weighs its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product

import torch
from torch import Tensor

from fedproto_app.core.messages import Order
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.candidates import Candidates, Family
from fedproto_app.maths.ridge import solve, symmetric, triangle, triangle_size
from fedproto_app.models.linear_forecaster import COEFFICIENTS
from fedproto_app.strategies.analytic import AnalyticSettings
from fedproto_app.strategies.common.closed_form import ClosedFormLearner
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Context, Contribution
from fedproto_app.tasks.forecasting.task import ForecastingTask

# What goes up from each client, and, summed over the clients, comes down.
GRAM, MOMENT = "gram", "moment"

VALUES_AT_ONCE = 2**22  # forecasts of all candidates: what bounds the memory


def sample_bound(clip: float, steps: int) -> float:
    """The most length that a sample adds to the sums of so many steps ahead, as one vector.

    To those of one step (x, y), at most `clip` long, adds clip² at most (`ridge.clipped_samples`).
    """
    return math.sqrt(steps) * clip**2


class SumsContext(Context):
    """gram: [K, H, d, d]; moment: [K, H, d, 1]; of the cohort's train samples.

    squares: the mean of the squared targets, [K]; counts: of all these targets, [K].
    """

    def __init__(self, gram: Tensor, moment: Tensor, targets: Tensor, used: Tensor) -> None:
        self.gram, self.moment = gram, moment
        self.counts = used.double().sum(dim=(1, 2))
        self.squares = (targets.double().square() * used).sum(dim=(1, 2)) / self.counts


class AnalyticLearner(ClosedFormLearner[SumsContext, ForecastingTask]):
    """The client's own sums, and what is made of them and of those of all."""

    section: AnalyticSettings

    @classmethod
    def sends(cls, section: AnalyticSettings, sizes: Sizes) -> Sequence[Sends]:
        if section.sharing == "none":
            return []
        width = sizes.regressors
        return [
            Sends(
                "sums",
                {GRAM: (sizes.horizon, triangle_size(width)), MOMENT: (sizes.horizon, width)},
                combine="sum",
                remember="latest",
                of_present="the sums over the clients that take part",
                clip="sums",
                any_size=True,
                reveals="products of its values at every two times of a sample, added up",
            )
        ]

    def context(self, order: Order, cohort: Cohort) -> SumsContext:
        sums = self.task.regression_sums(cohort.samples)
        return SumsContext(*sums, cohort.samples.targets, self.task.train_targets(cohort.samples))

    def conclude(self, cohort: Cohort, context: SumsContext) -> dict[str, Tensor]:
        """The client's own solution, which stays if it shares nothing."""
        self._fit(cohort, context, [])
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
            self._fit(cohort, self.context(order, cohort), [shared])
        return list(range(len(cohort.names)))

    def _fit(self, cohort: Cohort, own: SumsContext, shared: Sequence[Tensor]) -> None:
        """The mean of all candidates. shared: solutions [H, d, 1] of all clients' samples."""
        samples = cohort.samples
        for row, periods in enumerate(samples.batch_counts):
            gram, moment = own.gram[row], own.moment[row]
            candidates = Candidates(list(self._families(gram, moment, shared, periods)))
            fits = candidates.fits[..., 0]  # (C, H, d)
            explained = torch.einsum("chd,hde,che->c", fits, gram, fits)
            explained -= 2 * torch.einsum("chd,hd->c", fits, moment[..., 0])
            training = (explained / own.counts[row] + own.squares[row]).clamp(min=0)

            counted = samples.is_validation[row].double()
            squared = fits.new_zeros(len(fits))
            size = max(1, VALUES_AT_ONCE // fits[..., 0].numel())
            for some in counted.amax(dim=1).nonzero()[:, 0].split(size):
                regressors = self.task.layout.regressors(samples.inputs[row, some]).double()
                residuals = torch.einsum("nhd,chd->cnh", regressors, fits)
                residuals -= samples.targets[row, some]
                squared += (residuals.square() * counted[some]).sum(dim=(1, 2))
            targets = counted.sum()
            mixed = candidates.mean(
                squared / targets,
                training,
                targets / counted.shape[1],
                self.section.eta,
            )
            cohort.parameters[COEFFICIENTS][row].copy_(mixed[..., 0])

    def _families(
        self, gram: Tensor, moment: Tensor, shared: Sequence[Tensor], periods: int
    ) -> Iterator[Family]:
        """Of a client that trains on so many periods: fits [C, H, d, 1] with a penalty for all
        regressors, or for the values and for the calendar, drawn to the mean, to naive forecasts
        and to what is shared. The naive forecasts weigh the less the more there is to learn from.
        """
        layout, strengths = self.task.layout, self.section.strengths
        naive = layout.regressor_copies(self.task.naive_forecasts())[..., None]  # (3, H, d, 1)
        yield Family(1 / periods, naive[:1])
        yield Family(1 / periods, naive[1:])
        values = layout.close + layout.distances
        sizes = torch.tensor([values, layout.regressor_width - values], device=gram.device)
        pairs = gram.new_tensor(list(product(strengths[::2], repeat=2)))
        blocks = pairs.repeat_interleave(sizes, dim=1)[:, None]  # (pairs, 1, d)
        even = gram.new_tensor(strengths)[:, None, None]
        drawn = [(even, torch.zeros_like(naive[:1])), (blocks, naive[:1]), (blocks, naive[1:])]
        for solution in shared:
            drawn += [(even, solution[None]), (blocks, solution[None])]
        for penalties, targets in drawn:
            fits = [solve(gram, moment, penalties, target) for target in targets]
            yield Family(1.0, torch.cat(fits))
