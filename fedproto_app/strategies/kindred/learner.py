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

The client's model is the mean of these candidates, weighed by their errors on its own data
(maths/candidates.py): a choice of the best one would trust a short validation part too much. All
candidates are linear in φ, so the mean is one model again, [H, D].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedproto_app.core.messages import Order
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.candidates import Candidates, Family
from fedproto_app.maths.ridge import Eliminated, sums, symmetric, triangle, triangle_size
from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.linear_forecaster import COEFFICIENTS
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.closed_form import ClosedFormLearner
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Context, Contribution
from fedproto_app.strategies.kindred import KindredSettings
from fedproto_app.strategies.kindred.learner import RandomFeatureForecaster
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
    """The means of the cohort's own train samples; squares: those of the squared targets less the
    newest value, [K, H]."""

    def __init__(self, own: Means, squares: Tensor) -> None:
        self.own, self.squares = own, squares


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

    @classmethod
    def sends(cls, section: KindredSettings, sizes: Sizes) -> Sequence[Sends]:
        if section.sharing == "none":
            return []
        return [
            Sends(
                "means",
                {
                    PROTOTYPE: (sizes.period,),
                    GRAM: (triangle_size(sizes.width),),
                    MOMENT: (sizes.horizon, sizes.width),
                },
                remember="latest",
                any_size=True,
                reveals="its mean day, and products of its values at every two times of a sample",
            )
        ]

    @property
    def model(self) -> RandomFeatureForecaster:
        """What makes the features."""
        model = self.task.model
        assert isinstance(model, RandomFeatureForecaster)
        return model

    def context(self, order: Order, cohort: Cohort) -> MeansContext:
        used = self.task.train_targets(cohort.samples)  # (K, n, H)
        clients, width, steps = len(used), self.model.representation_dim, used.shape[2]
        gram = used.new_zeros(clients, width, width, dtype=torch.float64)
        moment = used.new_zeros(clients, width, steps, dtype=torch.float64)
        squares = used.new_zeros(clients, steps, dtype=torch.float64)
        for part in self._parts(cohort.samples, used, slice(None)):
            residuals = part.residuals * part.counted
            of_part = sums(part.features, residuals, part.counted.amax(dim=2))
            gram += of_part[0]
            moment += of_part[1]
            squares += residuals.double().square().sum(dim=1)
        # The mean of each step ahead is of the samples that have its target.
        some, of_step = (one.sum(dim=1).clamp(min=1).double() for one in (used.amax(dim=2), used))
        own = Means(gram / some[:, None, None], moment / of_step[:, None])
        return MeansContext(own, squares / of_step)

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
        for row in range(len(cohort.names)):
            self._fit(cohort, row, context, [])
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
        place_of = {name: place for place, name in enumerate(order.guided)}
        rows = [row for row, name in enumerate(cohort.names) if name in place_of]
        if not rows:
            return []
        context = self.context(order, cohort)
        for row in rows:
            packed, moments = (
                torch.from_numpy(order.arrays[name][place_of[cohort.names[row]]]).double()
                for name in (GRAM, MOMENT)
            )
            grams = symmetric(packed.to(self.task.device), self.model.representation_dim)
            priors = zip(grams, moments.to(self.task.device).mT, strict=True)
            self._fit(cohort, row, context, [Means(*prior) for prior in priors])
        return rows

    def _fit(
        self, cohort: Cohort, row: int, context: MeansContext, priors: Sequence[Means]
    ) -> None:
        """The model of the client in this row. The candidates of all at once are gigabytes."""
        own = Means(*(mean[row] for mean in context.own))
        periods = cohort.samples.batch_counts[row]
        candidates = Candidates(list(self._families(own, priors, periods)))
        counted = cohort.samples.is_validation[row].double().sum()
        mixed = candidates.mean(
            self._squared_errors(cohort, row, candidates.fits) / counted,
            self._training_errors(own, context.squares[row], candidates.fits),
            counted / own.moment.shape[1],
            self.section.eta,
        )
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
            forecasts = (features[there] @ side_by_side).view(-1, number, steps)
            squared = (forecasts - residuals[there, None]).square_()
            errors += torch.einsum("ncs,ns->c", squared, counts[there])
        return errors

    @staticmethod
    def _training_errors(own: Means, squares: Tensor, fits: Tensor) -> Tensor:
        """[C] the mean squared error on the train samples, from the client's means alone.

        With targets missing, A is of more samples than B, so that it is not exact. It counts for
        little beside the validation error, so the products of A are float32.
        """
        side_by_side = fits.transpose(0, 1).flatten(start_dim=1).float()  # (D, C·H)
        explained = (own.gram.float() @ side_by_side).mul_(side_by_side).sum(dim=0)
        errors = explained.view(len(fits), -1) + squares
        errors -= 2 * (fits * own.moment).sum(dim=1)
        return errors.mean(dim=1).clamp(min=0)

    def _families(self, own: Means, priors: Sequence[Means], periods: int) -> Iterator[Family]:
        """All candidates of a client that trains on so many periods.

        All families have the same weight, but the naive forecasts less the more there is to learn
        from. The values of fits that borrow have the largest penalty: with others' data weaker ones
        hardly ever helped.
        """
        section, penalties = self.section, self.section.penalties
        finer, blocks = section.finer_penalties, penalties[1:]
        naive = self.model.repeating(self.task.naive_forecasts())  # last value, season, mean
        for targets in (naive[:1], naive[1:]):
            unfitted = own.moment.new_zeros(len(targets), *own.moment.shape)
            unfitted[:, : naive.shape[1]] = targets
            yield Family(1 / periods, unfitted)
        alone = Fits([own], self.model, {*penalties, *finer[:-1]})
        pairs = [(value, calendar) for value in blocks for calendar in blocks]
        yield from alone.with_blocks(pairs, penalties, naive)
        yield alone.with_one_penalty(finer[:-1])
        mixed = [own.plus(strength, prior) for prior in priors for strength in section.strengths]
        if mixed:
            borrowing = Fits(mixed, self.model, {*penalties[:-1]})
            strongest = [(penalties[-1], finer[-2])]
            yield from borrowing.with_blocks(strongest, penalties[1:-1], naive[:2])
            yield borrowing.with_one_penalty(penalties[:-1])


class Fits:
    """Ridge fits of some problems, all of whose penalties of the waves are known: with each of them
    the waves are solved for once. Without waves, all penalties of these are left out."""

    def __init__(
        self, problems: Sequence[Means], model: RandomFeatureForecaster, waves: set[float]
    ) -> None:
        gram, moment = (torch.stack(parts) for parts in zip(*problems, strict=True))
        self._plain, self._values = model.plain_width, model.values
        if model.representation_dim == model.plain_width:
            waves = set()
        self._eliminated = {
            penalty: Eliminated(gram, moment, self._plain, penalty)
            for penalty in (*sorted(waves), math.inf)
        }

    def with_blocks(
        self, pairs: Sequence[tuple[float, float]], waves: Sequence[float], targets: Tensor
    ) -> Iterator[Family]:
        """A penalty for each block of features. Two families: drawn to the first of the targets
        [k, plain, H], and to the others.

        pairs: penalties of the values and of the calendar.
        """
        sizes = torch.tensor([self._values, self._plain - self._values], device=targets.device)
        plain = targets.new_tensor(pairs).repeat_interleave(sizes, dim=1)
        known = self._known((*waves, math.inf))
        fits = [self._eliminated[penalty].solve(plain, targets) for penalty in known]
        yield _family([some[..., :1, :, :] for some in fits])
        yield _family([some[..., 1:, :, :] for some in fits])

    def with_one_penalty(self, penalties: Sequence[float]) -> Family:
        """The same penalty for all features, drawn to the last value; with waves and without."""
        fits = []
        for penalty in penalties:
            for waves in self._known((penalty, math.inf)):
                problem = self._eliminated[waves]
                plain = problem.moment.new_full((1, self._plain), penalty)
                fits.append(problem.solve(plain, torch.zeros_like(problem.moment[:1])))
        return _family(fits)

    def _known(self, waves: Sequence[float]) -> list[float]:
        return [penalty for penalty in waves if penalty in self._eliminated]


def _family(fits: Sequence[Tensor]) -> Family:
    return Family(1.0, torch.cat([some.flatten(end_dim=-3) for some in fits]))


def extent(counted: Tensor) -> tuple[int, int]:
    """The first of the samples that counts at any client, and the one after the last.

    counted: [K, n, H], not all 0.
    """
    there = counted.amax(dim=(0, 2)).nonzero()
    return int(there.min()), int(there.max()) + 1


def random_features(settings: Settings, layout: WindowLayout) -> RandomFeatureForecaster:
    """The model: every process draws the same features."""
    draws = torch_stream(settings.seed, "random features")
    return RandomFeatureForecaster(layout, settings.method_table(KindredSettings).features, draws)
