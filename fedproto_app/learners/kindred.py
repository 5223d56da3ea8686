"""Kindred, client half: a closed form that borrows from the clients that are like this one.

Our own method: FUELS's idea, prototypes that tell who is alike, used before anything is fitted
and not in a loss. One message up and one down.

Up go the client's prototype, its mean day, and the mean products of its random features φ with
themselves and with what is to be forecast, A = ΦᵀΦ/n and B = ΦᵀY/n. The server mixes the others'
A and B into priors of the client's own, by how like the prototypes are. The client fits
    W = (A + s·A' + Λ)⁻¹ (B + s·B' + Λ·W₀)
for every prior (A', B') and strength s, and alone (s = 0). The penalties Λ are diagonal, with one
value for the values, one for the calendar and one for the waves among the features. They draw W to
W₀, a naive forecast: the last value, the season before, the mean of the last periods.

The client's model is the mean of these candidates, weighed by their errors on its own validation
samples: a choice of the best one would trust a short validation part too much. Before any error is
known, each family of candidates has the same weight however many are in it. All candidates are
linear in φ, so the mean is one model again, [H, D].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedproto_app.learners.closed_form import ClosedFormLearner
from fedproto_app.learners.cohort import Cohort
from fedproto_app.learners.learner import Context, Contribution
from fedproto_app.maths.kinship import shares
from fedproto_app.maths.ridge import Eliminated, solve, sums, symmetric, triangle
from fedproto_app.messages import Order
from fedproto_app.models.linear_forecaster import COEFFICIENTS
from fedproto_app.models.random_features import RandomFeatureForecaster
from fedproto_app.settings import KindredSettings
from fedproto_app.tasks.forecasting.profiles import mean_day
from fedproto_app.tasks.forecasting.samples import CohortSamples
from fedproto_app.tasks.forecasting.task import ForecastingTask

# What goes up, and with one prior after the other what comes down.
PROTOTYPE, GRAM, MOMENT = "prototype", "gram", "moment"

VALUES_AT_ONCE = 2**22  # of features or forecasts: what bounds the memory


class Means(NamedTuple):
    """Of K clients: A [K, D, D] and B [K, D, H], float64."""

    gram: Tensor
    moment: Tensor

    def plus(self, strength: float, prior: Means) -> Means:
        """These and so much of others."""
        return Means(self.gram + strength * prior.gram, self.moment + strength * prior.moment)


class MeansContext(Context):
    """The means of the cohort's own train samples."""

    def __init__(self, own: Means) -> None:
        self.own = own


class Family(NamedTuple):
    """Candidates [C, D, H] that together weigh so much before any error is known."""

    weight: float
    fits: Tensor


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
        for part in self._parts(cohort.samples, used, slice(None)):
            some = part.counted.amax(dim=2)
            of_part = sums(part.features, part.residuals * part.counted, some)
            gram += of_part[0]
            moment += of_part[1]
        # The mean of each step ahead is of the samples that have its target.
        counts = [one.sum(dim=1).clamp(min=1).double() for one in (used.amax(dim=2), used)]
        return MeansContext(Means(gram / counts[0][:, None, None], moment / counts[1][:, None]))

    def _parts(
        self, samples: CohortSamples, counted: Tensor, rows: slice, width: int = 0
    ) -> Iterator[Part]:
        """These clients' samples from the first that counts to the last, some at a time: the
        features of a year at once are gigabytes.

        counted: [K, n, H]; width: values that the caller makes of a sample, if they are more than
        its features.
        """
        first, end = extent(counted[rows])
        clients = len(counted[rows])
        size = max(1, VALUES_AT_ONCE // max(width, clients * self.model.representation_dim))
        for start in range(first, end, size):
            some = slice(start, min(start + size, end))
            features = self.task.encode({}, samples.inputs[rows, some])
            residuals = samples.targets[rows, some] - features[..., self.model.newest, None]
            yield Part(features, residuals, counted[rows, some])

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
        """The mean of all candidates, by the error that each has on the validation samples.

        One client after the other: the candidates of all at once are gigabytes.
        """
        counted = cohort.samples.is_validation
        for row, periods in enumerate(cohort.samples.batch_counts):
            own = Means(*(mean[row] for mean in context.own))
            of_row = [Means(*(mean[row] for mean in prior)) for prior in priors]
            families = list(self._families(own, of_row, periods))
            fits = torch.cat([family.fits for family in families])
            prior = torch.cat(
                [torch.full_like(fits[:, 0, 0], weight / len(fits)) for weight, fits in families]
            )
            targets = counted[row].double().sum()
            errors = self._squared_errors(cohort, row, fits) / targets
            parts = shares(errors[None], targets[None] / counted.shape[2], self.section.eta, prior)
            mixed = torch.tensordot(parts[0], fits.nan_to_num(), dims=1)
            cohort.parameters[COEFFICIENTS][row].copy_(mixed.T)

    def _squared_errors(self, cohort: Cohort, row: int, fits: Tensor) -> Tensor:
        """[C] the sum over the validation targets of the client in this row."""
        number, width, steps = fits.shape
        side_by_side = fits.transpose(0, 1).reshape(width, -1)  # (D, C·H)
        errors = fits.new_zeros(number)
        samples, rows = cohort.samples, slice(row, row + 1)
        for part in self._parts(samples, samples.is_validation, rows, side_by_side.shape[1]):
            features, residuals, counts = (each[0].double() for each in part)
            there = counts.amax(dim=1) > 0
            forecasts = (features[there] @ side_by_side).unflatten(1, (number, steps))
            squared = (forecasts - residuals[there, None]).square_()
            errors += torch.einsum("ncs,ns->c", squared, counts[there])
        return errors

    def _families(self, own: Means, priors: Sequence[Means], periods: int) -> Iterator[Family]:
        """All candidates of a client that trains on so many periods.

        All families weigh the same, but the naive forecasts the less the more there is to learn
        from. What borrows has the largest penalty of the values alone: with others' data a weaker
        one hardly ever helped.
        """
        section, penalties = self.section, self.section.penalties
        middle, largest = penalties[len(penalties) // 2], penalties[-1]
        naive = self.model.repeating(self.task.naive_forecasts())
        for targets in (naive[:1], naive[1:]):
            unfitted = own.moment.new_zeros(len(targets), *own.moment.shape)
            unfitted[:, : naive.shape[1]] = targets
            yield Family(1 / periods, unfitted)
        pairs = [(value, day) for value in penalties for day in (min(value, middle), largest)]
        yield from self._blocks([own], pairs, penalties, naive)
        yield Family(1.0, self._even([own], section.finer_penalties[:-1]))
        mixed = [own.plus(strength, prior) for prior in priors for strength in section.strengths]
        if mixed:
            pairs = [(largest, section.finer_penalties[-2])]
            yield from self._blocks(mixed, pairs, penalties[1:], naive)
            yield Family(1.0, self._even(mixed, penalties[:-1]))

    def _even(self, problems: Sequence[Means], penalties: Sequence[float]) -> Tensor:
        """One penalty for all features, drawn to the last value; with and without the waves."""
        gram, moment = (torch.stack(parts).unsqueeze(1) for parts in zip(*problems, strict=True))
        strengths = gram.new_tensor(penalties)[:, None]
        fits = []
        for width in dict.fromkeys((self.model.plain_width, self.model.representation_dim)):
            fit = solve(gram[..., :width, :width], moment[..., :width, :], strengths)
            fits.append(_padded(fit.flatten(end_dim=1), gram.shape[-1]))
        return torch.cat(fits)

    def _blocks(
        self,
        problems: Sequence[Means],
        pairs: Sequence[tuple[float, float]],
        of_waves: Sequence[float],
        naive: Tensor,
    ) -> Iterator[Family]:
        """A penalty for each block of features; two families, drawn to the last value and to the
        forecasts from earlier periods. pairs: penalties of the values and of the calendar."""
        model = self.model
        gram, moment = (torch.stack(parts) for parts in zip(*problems, strict=True))
        sizes = torch.tensor([model.values, model.plain_width - model.values], device=gram.device)
        plain = gram.new_tensor(pairs).repeat_interleave(sizes, dim=1)
        waves = of_waves if model.representation_dim > model.plain_width else []
        fits = torch.cat(
            [
                Eliminated(gram, moment, model.plain_width, penalty).solve(plain, naive)
                for penalty in (*waves, math.inf)
            ]
        )  # (·, c, 3, D, H)
        for some in (fits[:, :, :1], fits[:, :, 1:]):
            yield Family(1.0, some.flatten(end_dim=2))


def _padded(fits: Tensor, width: int) -> Tensor:
    """Coefficients [C, d, H] of the first features, with 0 for the others up to this width."""
    return torch.cat([fits, fits.new_zeros(len(fits), width - fits.shape[1], fits.shape[2])], dim=1)


def extent(counted: Tensor) -> tuple[int, int]:
    """The first of the samples that counts at any client, and the one after the last.

    counted: [K, n, H], not all 0.
    """
    there = counted.amax(dim=(0, 2)).nonzero()
    return int(there.min()), int(there.max()) + 1
