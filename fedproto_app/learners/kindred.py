"""Kindred, client half: a closed form that borrows from the clients that are like this one.

Our own method: FUELS's idea, prototypes that tell who is alike, used before anything is fitted
and not in a loss. One message up and one down.

Up go the client's prototype, its mean day, and the mean products of its random features φ with
themselves and with what is to be forecast, A = ΦᵀΦ/n and B = ΦᵀY/n. The server mixes the others'
A and B into priors of the client's own, by how like the prototypes are. The client fits
    W = (A + s·A' + λ·I)⁻¹ (B + s·B')
for every prior (A', B'), strength s and penalty λ, and alone (s = 0), each with all features and
with the plain ones only. Its model is the mean of these candidates, weighed by their errors on
the client's own validation samples: a choice of the best one would trust a short validation part
too much. All candidates are linear in φ, so the mean is one model again, [H, D].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedproto_app.learners.closed_form import ClosedFormLearner
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Context, Contribution
from fedproto_app.maths.kinship import shares
from fedproto_app.maths.ridge import solve, sums, symmetric, triangle
from fedproto_app.messages import Order
from fedproto_app.models.linear_forecaster import COEFFICIENTS
from fedproto_app.models.random_features import RandomFeatureForecaster
from fedproto_app.settings import KindredSettings
from fedproto_app.tasks.forecasting.profiles import mean_day
from fedproto_app.tasks.forecasting.task import ForecastingTask

# What goes up, and with one prior after the other what comes down.
PROTOTYPE, GRAM, MOMENT = "prototype", "gram", "moment"

VALUES_AT_ONCE = 2**22  # of features, over all clients of a cohort: what bounds the memory


class Means(NamedTuple):
    """Of K clients: A [K, D, D] and B [K, D, H], float64."""

    gram: Tensor
    moment: Tensor

    def of_first(self, width: int) -> Means:
        """Those of the first so many features."""
        return Means(self.gram[:, :width, :width], self.moment[:, :width])


class MeansContext(Context):
    """The means of the cohort's own train samples."""

    def __init__(self, own: Means) -> None:
        self.own = own


class Part(NamedTuple):
    """Some samples of all K clients.

    features: [K, m, D]; residuals: what W is to forecast of them, the targets less the newest
    value, [K, m, H]; counted: [K, m, H], 1 for the targets that count, else 0.
    """

    features: Tensor
    residuals: Tensor
    counted: Tensor


class KindredLearner(ClosedFormLearner[MeansContext, ForecastingTask]):
    """Means up; a weighted mean of fits, once the priors are down."""

    section: KindredSettings

    @property
    def model(self) -> RandomFeatureForecaster:
        """What makes the features."""
        model = self.task.model
        assert isinstance(model, RandomFeatureForecaster)
        return model

    def context(self, order: Order, cohort: Cohort) -> MeansContext:
        used = self.task.train_targets(cohort.samples)  # (K, n, H)
        shape = (len(used), self.model.representation_dim)
        gram = used.new_zeros(*shape, shape[1], dtype=torch.float64)
        moment = used.new_zeros(*shape, used.shape[2], dtype=torch.float64)
        for part in self._parts(cohort, used):
            some = part.counted.amax(dim=2)
            of_part = sums(part.features, part.residuals * part.counted, some)
            gram += of_part[0]
            moment += of_part[1]
        # The mean of each step ahead is of the samples that have its target.
        counts = [one.sum(dim=1).clamp(min=1).double() for one in (used.amax(dim=2), used)]
        return MeansContext(Means(gram / counts[0][:, None, None], moment / counts[1][:, None]))

    def _parts(self, cohort: Cohort, counted: Tensor) -> Iterator[Part]:
        """The samples from the first that counts at any client to the last, some at a time: the
        features of a year at once are gigabytes. counted: [K, n, H]."""
        samples = cohort.samples
        first, end = extent(counted)
        size = max(1, VALUES_AT_ONCE // (len(counted) * self.model.representation_dim))
        for start in range(first, end, size):
            some = slice(start, min(start + size, end))
            features = self.task.encode(cohort.parameters, samples.inputs[:, some])
            residuals = samples.targets[:, some] - features[..., self.model.newest, None]
            yield Part(features, residuals, counted[:, some])

    def conclude(self, cohort: Cohort, context: MeansContext) -> dict[str, Tensor]:
        """What the client makes of its data alone, which stays if no prior comes."""
        self._fit(cohort, context, [])
        return {"total": self.task.training_error(cohort.parameters, cohort.samples)}

    def contribution(
        self, cohort: Cohort, context: MeansContext, server_round: int
    ) -> Contribution:
        if self.section.sharing == "none":
            return Contribution()
        sent = {
            PROTOTYPE: mean_day(cohort.samples),
            GRAM: triangle(context.own.gram),
            MOMENT: context.own.moment.transpose(1, 2),
        }
        return Contribution({name: value.float().cpu().numpy() for name, value in sent.items()})

    def receive(self, cohort: Cohort, order: Order) -> list[int]:
        """Fit the clients that got priors with them."""
        row_of = {name: row for row, name in enumerate(order.guided)}
        rows = [row for row, name in enumerate(cohort.names) if name in row_of]
        if not rows:
            return []
        take = [row_of.get(name, 0) for name in cohort.names]  # who has none borrows, and is left
        packed, moments = (
            torch.from_numpy(order.arrays[name][take]).double().to(self.task.device)
            for name in (GRAM, MOMENT)
        )
        before = cohort.parameters[COEFFICIENTS].clone()
        grams = symmetric(packed, self.model.representation_dim)
        priors = [
            Means(gram, moment.transpose(1, 2))
            for gram, moment in zip(grams.unbind(1), moments.unbind(1), strict=True)
        ]
        self._fit(cohort, self.context(order, cohort), priors)
        for row in set(range(len(cohort.names))) - set(rows):
            cohort.parameters[COEFFICIENTS][row] = before[row]
        return rows

    def _fit(self, cohort: Cohort, context: MeansContext, priors: Sequence[Means]) -> None:
        """The mean of all candidates, by the error that each has on the validation samples."""
        counted = cohort.samples.is_validation
        fits = list(self._candidates(context.own, priors))
        errors = torch.zeros(len(counted), len(fits), dtype=torch.float64, device=counted.device)
        for part in self._parts(cohort, counted):
            features, residuals, counts = (one.double() for one in part)
            for number, fit in enumerate(fits):
                squared = (features @ fit - residuals).square() * counts
                errors[:, number] += squared.sum(dim=(1, 2))
        targets = counted.double().sum(dim=(1, 2))
        parts = shares(errors / targets[:, None], targets / counted.shape[2], self.section.eta)
        mixed = torch.zeros_like(fits[0])
        for number, fit in enumerate(fits):
            mixed += parts[:, number, None, None] * fit.nan_to_num()
        cohort.parameters[COEFFICIENTS].copy_(mixed.transpose(1, 2))

    def _candidates(self, own: Means, priors: Sequence[Means]) -> Iterator[Tensor]:
        """Coefficients [K, D, H], 0 outside the block of features that a candidate uses."""
        section, none = self.section, torch.zeros_like(own.moment)
        for width in dict.fromkeys((self.model.plain_width, self.model.representation_dim)):
            alone = own.of_first(width)
            for penalty in section.penalties_alone:
                yield _padded(solve(*alone, penalty), none)
            for prior in (prior.of_first(width) for prior in priors):
                for strength in section.strengths:
                    gram = alone.gram + strength * prior.gram
                    moment = alone.moment + strength * prior.moment
                    for penalty in section.penalties:
                        yield _padded(solve(gram, moment, penalty), none)


def _padded(fit: Tensor, like: Tensor) -> Tensor:
    """Coefficients of the first features, with 0 for the others."""
    return torch.cat([fit, like[:, fit.shape[1] :]], dim=1)


def extent(counted: Tensor) -> tuple[int, int]:
    """The first of the samples that counts at any client, and the one after the last.

    counted: [K, n, H], not all 0.
    """
    there = counted.amax(dim=(0, 2)).nonzero()
    return int(there.min()), int(there.max()) + 1
