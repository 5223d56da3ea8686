"""Ridge regression in closed form, client half: one message up, one down, no rounds.

A client sends XᵀX and Xᵀy of its train samples, d(d + 1)/2 + d values for each step ahead. Their
totals over clients equal the sums over pooled data, so the federated solution equals the pooled
solution. A client's coefficients are drawn to a solution w₀,
    min over w of ‖y − Xw‖² + s·‖w_values − w₀‖² + s'·‖w_calendar − w₀‖²,
where w₀ is a naive forecast, the mean, or the federated solution. Each choice of the penalties s
and s' and of w₀ gives a candidate. The client's model is the mean of all candidates, weighted by
their errors on its validation samples as in Kindred.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from logging import WARNING

import torch
from torch import Tensor

from fedproto_app.core.events import tell
from fedproto_app.core.messages import Guidance
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.candidates import Candidates, Family
from fedproto_app.maths.ridge import solve, symmetric, triangle, triangle_size
from fedproto_app.models.forecaster import COEFFICIENTS
from fedproto_app.strategies.analytic import AnalyticSettings
from fedproto_app.strategies.common.closed_form import ClosedFormLearner
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution
from fedproto_app.tasks.forecasting.task import ForecastingTask

# Each client sends these sums and gets back their totals over the clients.
GRAM, MOMENT = "gram", "moment"

VALUES_AT_ONCE = 2**22  # forecasts of all candidates at once; bounds the memory


def sample_bound(clip: float, steps: int) -> float:
    """Return the largest norm that a sample adds to the sums of all steps ahead together.

    A pair (x, y) of norm ≤ `clip` adds at most clip² to the sums of one step
    (`ridge.clipped_samples`).
    """
    return math.sqrt(steps) * clip**2


class SumsContext(Context):
    """Sums over the cohort's train samples: gram [K, H, d, d], moment [K, H, d, 1].

    squares: each client's mean of the squared targets, [K]. counts: the number of these targets,
    at least 1, [K].
    """

    def __init__(self, gram: Tensor, moment: Tensor, targets: Tensor, used: Tensor) -> None:
        self.gram, self.moment = gram, moment
        self.counts = used.double().sum(dim=(1, 2)).clamp(min=1)
        self.squares = (targets.double().square() * used).sum(dim=(1, 2)) / self.counts


class AnalyticLearner(ClosedFormLearner[SumsContext, ForecastingTask]):
    """Sends a client's sums and fits its model to them and to the totals."""

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
                reveals="sums of products of its values at each two times of a sample",
            )
        ]

    def context(self, guidance: Guidance, cohort: Cohort) -> SumsContext:
        sums = self.task.regression_sums(cohort.samples)
        return SumsContext(*sums, cohort.samples.targets, self.task.train_targets(cohort.samples))

    def conclude(self, cohort: Cohort, context: SumsContext) -> dict[str, Tensor]:
        """Fit the client's own solution, which is final if the client shares nothing."""
        self._fit(cohort, context, [])
        return {"total": self.task.training_error(cohort.parameters, cohort.samples)}

    def contribution(self, cohort: Cohort, context: SumsContext) -> Contribution:
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

    def receive(self, cohort: Cohort, guidance: Guidance) -> list[int]:
        """Fit each client again, now with the totals."""
        if MOMENT not in guidance.arrays:
            return []
        moment = torch.from_numpy(guidance.arrays[MOMENT]).double().to(self.task.device)[..., None]
        packed = torch.from_numpy(guidance.arrays[GRAM]).double().to(self.task.device)
        shared = solve(symmetric(packed, moment.shape[-2]), moment, self.section.penalty)
        if not shared.isfinite().all():
            tell("invalid-totals", WARNING, round=cohort.server_round, clients=len(cohort.names))
            return []  # each client keeps its own solution
        if self.section.sharing == "federated":
            cohort.parameters[COEFFICIENTS].copy_(shared[..., 0])  # the same for all clients
        else:
            self._fit(cohort, self.context(guidance, cohort), [shared])
        return list(range(len(cohort.names)))

    def _fit(self, cohort: Cohort, sums: SumsContext, shared: Sequence[Tensor]) -> None:
        """Fit the mean of all candidates. shared: solutions [H, d, 1] for all clients' samples."""
        samples = cohort.samples
        for row, periods in enumerate(samples.batch_counts):
            gram, moment = sums.gram[row], sums.moment[row]
            candidates = Candidates(list(self._families(gram, moment, shared, periods)))
            fits = candidates.fits[..., 0]  # (C, H, d)
            explained = torch.einsum("chd,hde,che->c", fits, gram, fits)
            explained -= 2 * torch.einsum("chd,hd->c", fits, moment[..., 0])
            training = (explained / sums.counts[row] + sums.squares[row]).clamp(min=0)

            mask = samples.is_validation[row].double()
            squared = fits.new_zeros(len(fits))
            size = max(1, VALUES_AT_ONCE // fits[..., 0].numel())
            for batch in mask.amax(dim=1).nonzero()[:, 0].split(size):
                regressors = self.task.layout.regressors(samples.inputs[row, batch]).double()
                residuals = torch.einsum("nhd,chd->cnh", regressors, fits)
                residuals -= samples.targets[row, batch]
                squared += (residuals.square() * mask[batch]).sum(dim=(1, 2))
            targets = mask.sum()
            mixed = candidates.mean(
                squared / targets.clamp(min=1),
                training,
                targets / mask.shape[1],
                self.section.eta,
            )
            cohort.parameters[COEFFICIENTS][row].copy_(mixed[..., 0])

    def _families(
        self, gram: Tensor, moment: Tensor, shared: Sequence[Tensor], periods: int
    ) -> Iterator[Family]:
        """Yield the candidates for a client that trains on this many periods, [C, H, d, 1].

        A fit has either one penalty, or one for the values and another for the calendar. Fits are
        drawn to the mean, to naive forecasts and to the shared solutions. The weight of the naive
        forecasts falls with the number of periods. A client without a train sample gets only the
        shared solution.
        """
        layout, strengths = self.task.layout, self.section.strengths
        if shared and not gram.any():  # a sample's calendar, or its 1, has products other than 0
            yield Family(1.0, torch.stack(list(shared)))
            return
        naive = layout.regressor_copies(self.task.naive_forecasts())[..., None]  # (3, H, d, 1)
        yield Family(1 / periods, naive[:1])
        yield Family(1 / periods, naive[1:])
        past = layout.past_regressors
        sizes = torch.tensor([past, layout.regressor_width - past], device=gram.device)
        pairs = gram.new_tensor(list(product(strengths[::2], repeat=2)))
        blocks = pairs.repeat_interleave(sizes, dim=1)[:, None]  # (pairs, 1, d)
        even = gram.new_tensor(strengths)[:, None, None]
        drawn = [(even, torch.zeros_like(naive[:1])), (blocks, naive[:1]), (blocks, naive[1:])]
        for solution in shared:
            drawn += [(even, solution[None]), (blocks, solution[None])]
        for penalties, targets in drawn:
            fits = [solve(gram, moment, penalties, target) for target in targets]
            yield Family(1.0, torch.cat(fits))
