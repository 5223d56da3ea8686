"""Kindred, client half: a closed form that borrows from similar clients.

Our own method. Like FUELS it compares the clients' prototypes, but it does so before anything is
fitted, and not in a loss. It takes one message up and one down.

A client sends its prototype (its mean day) and the mean products of its random features φ with
themselves and with the targets, A = ΦᵀΦ/n and B = ΦᵀY/n. The server mixes the other clients' A and
B into priors, weighted by the similarity of the prototypes. With ``sharing = "common"`` or
``"groups"`` a client sends no prototype. The server then computes only the means over all clients
and over the clients of each group, and a client subtracts its own part. The client fits
    W = (A + s·A' + Λ)⁻¹ (B + s·B' + Λ·W₀)
for every prior (A', B') and strength s, and without a prior (s = 0). The penalties Λ are diagonal,
with a value for each block of features: values, calendar, waves. They draw W to W₀, a naive
forecast: the last value, the value a season before, or the mean of the last periods.

The client's model is the mean of these candidates, weighted by their errors on its own data
(maths/candidates.py). To choose the best candidate would trust a short validation part too much.
All candidates are linear in φ, so their mean is again a model [H, D].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.randomness import torch_stream
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.candidates import Candidates, Family
from fedproto_app.maths.ridge import Eliminated, sums, symmetric, triangle, triangle_size
from fedproto_app.maths.window_layout import WEEK, Blocks, WindowLayout
from fedproto_app.models.forecaster import COEFFICIENTS
from fedproto_app.models.model import Model
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.closed_form import ClosedFormLearner
from fedproto_app.strategies.common.learner import Cohort, Context, Contribution
from fedproto_app.strategies.kindred import KindredSettings
from fedproto_app.tasks.forecasting.task import CohortSamples, ForecastingTask, mean_day

# Random Fourier features (Rahimi and Recht, NeurIPS 2007) make a closed form non-linear. They are
# drawn from the run's seed, so all clients have the same features without sending them.

_SCALES = (1.0, 0.5)  # scales of the values in the waves: finer and coarser
_TURNS = 4  # turns in a period of the fastest wave of `course_of_weekdays`


class RandomFeatureForecaster(Model):
    """ŷ_h = (newest value) + w_h · φ(x) for samples [K, B, …] of a layout.

    The representation φ(x), [D], starts with the plain features u: all other values minus the
    newest value, the newest value itself, and what is beside the first target, which is its
    calendar or a 1. With `courses`, `course_of_weekdays` follows. Then come `width` waves for each
    scale σ, √2 · cos(u R + b) / √width, with b uniform on the circle. The entries of R are drawn
    from N(0, 1), and those for values are multiplied by σ/√(number of values). Waves are bounded,
    so they do not extrapolate.

    further: the numbers of the layout's distances that `data.lags` adds to the last periods. Waves
    do not see the values at these distances, because a few waves fill a space of more values worse,
    and the other values do most for the forecast.
    """

    def __init__(
        self,
        layout: WindowLayout,
        width: int,
        generator: torch.Generator,
        *,
        courses: bool = False,
        further: Sequence[int] = (),
    ) -> None:
        self._layout, self.values = layout, layout.values
        beside = layout.beside_width or 1
        self._courses = courses
        self.plain_width = self.values + beside + courses * WEEK * 2 * _TURNS
        self.representation_dim = self.plain_width + len(_SCALES) * width
        self._amplitude = math.sqrt(2 / width) if width else 0.0
        self.is_further = torch.zeros(self.plain_width, dtype=torch.bool)  # of the plain features
        for number in further:
            first = layout.close - 1 + number * layout.horizon
            self.is_further[first : first + layout.horizon] = True
        in_waves = ~self.is_further[: self.values + beside]
        seen = int(in_waves.sum())
        scale = torch.ones(seen, len(_SCALES))
        scale[: seen - beside] = torch.tensor(_SCALES) * (seen - beside) ** -0.5
        draws = torch.randn(seen, len(_SCALES), width, generator=generator)
        self._directions = torch.zeros(len(in_waves), len(_SCALES) * width)
        self._directions[in_waves] = (draws * scale.unsqueeze(2)).flatten(start_dim=1)
        self._phases = 2 * math.pi * torch.rand(len(_SCALES) * width, generator=generator)

    @property
    def newest(self) -> int:
        """The position of the newest value among the features."""
        return self.values - 1

    def repeating(self, weights: Tensor) -> Tensor:
        """Return coefficients of forecasts that are weighted means of past values, [k, plain, H].

        weights: [k, 1 + Q], for the newest value and for the values at the Q distances. The sum of
        each row is 1.
        """
        layout = self._layout
        # Feature (distance, h) stands for the value at the distance before target h, and for no
        # other target.
        of_targets = weights[:, 1:, None].expand(-1, -1, layout.horizon)  # (k, Q, H)
        lagged = of_targets.diag_embed().flatten(1, 2)  # (k, Q·H, H)
        before, behind = layout.close - 1, self.plain_width - self.newest
        return pad(lagged, (0, 0, before, behind))

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {COEFFICIENTS: torch.zeros(self._layout.horizon, self.representation_dim)}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (samples,) = inputs
        blocks = self._layout.blocks(samples)
        newest = blocks.close[..., -1:]
        older = torch.cat([blocks.close[..., :-1], blocks.lagged.flatten(-2)], dim=-1)
        plain = torch.cat([older - newest, newest, blocks.beside(constant=True)], dim=-1)
        angles = plain @ self._directions.to(samples.device) + self._phases.to(samples.device)
        courses = [course_of_weekdays(blocks)] if self._courses else []
        return torch.cat([plain, *courses, self._amplitude * angles.cos()], dim=-1)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        newest = representation[..., self.newest : self.newest + 1]
        steps: Tensor = representation @ parameters[COEFFICIENTS].transpose(1, 2)
        return newest + steps


def course_of_weekdays(blocks: Blocks) -> Tensor:
    """Return the time of day of the first target, in columns of its weekday, [..., 7 · 2 · turns].

    The columns of its weekday hold waves that go round once, twice, … in a period, first as cosines
    and then as sines. The other columns are 0. With separate columns for the phase and the weekday
    instead, all days would have the same course: a forecast of the next day that begins on Friday
    evening could differ from one on Thursday evening only in its level.
    """
    phase, day = blocks.times.double().unbind(dim=-1)[:2]
    turns = torch.arange(1, _TURNS + 1, device=phase.device)
    angles = 2 * math.pi / blocks.layout.period * phase[..., None] * turns
    waves = torch.cat([angles.cos(), angles.sin()], dim=-1)
    days = one_hot(day.long() % WEEK, WEEK).unsqueeze(-1)
    return (days * waves.unsqueeze(-2)).flatten(-2).to(blocks.times.dtype)


# The arrays that clients send. They get GRAM and MOMENT of each prior.
PROTOTYPE, GRAM, MOMENT = "prototype", "gram", "moment"
# Where clients send no prototype, they get totals over S groups of clients, [S, …]. For each client
# they also get the number of others in each group, [K, S], 0 for a group that is not its own.
OTHERS = "others"
# They then send A and B in this unit. Masked sums are rounded to 2⁻²⁴, but the products of waves
# are small and nearly dependent, and need more digits. Scaling by a power of two loses none.
UNIT = 2.0**-16

STRENGTHS = (0.5, 10.0, 50.0)  # s: weights of a prior relative to the client's own data

# The weight of fits with priors for a young client, whose few days validate hardly anything. The
# other clients' history is many times as long as its own, but gets no more than this weight.
YOUNG_BORROWS = 5.0

LEAVES_OUT = 1e6  # added to the penalty of a feature that a fit leaves out

VALUES_AT_ONCE = 2**22  # features or forecasts; bounds the memory


class Means(NamedTuple):
    """A [K, D, D] and B [K, D, H] of K clients, float64."""

    gram: Tensor
    moment: Tensor

    def plus(self, strength: float, prior: Means) -> Means:
        """Return these means plus `strength` times the prior."""
        return Means(self.gram + strength * prior.gram, self.moment + strength * prior.moment)


class MeansContext(Context):
    """The means of the cohort's train samples. squares: mean squares of the targets minus the
    newest value, [K, H]."""

    def __init__(self, means: Means, squares: Tensor) -> None:
        self.means, self.squares = means, squares


class Part(NamedTuple):
    """Some samples of all K clients.

    features: [K, m, D]. residuals: the targets minus the newest value, which W forecasts,
    [K, m, H]. mask: [K, m, H], 1 for the targets that count, else 0.
    """

    features: Tensor
    residuals: Tensor
    mask: Tensor


class KindredLearner(ClosedFormLearner[MeansContext, ForecastingTask]):
    """Sends means, gets priors and fits a weighted mean of candidates."""

    section: KindredSettings

    @classmethod
    def sends(cls, section: KindredSettings, sizes: Sizes) -> Sequence[Sends]:
        if section.sharing == "none":
            return []
        arrays = {GRAM: (triangle_size(sizes.width),), MOMENT: (sizes.horizon, sizes.width)}
        reveals = "products of its values at each two times of a sample"
        means = Sends("means", arrays, remember="latest", any_size=True, reveals=reveals)
        if section.needs_totals:
            of_present = "the means over the clients that take part"
            by_group = section.sharing == "groups"
            return [replace(means, combine="mean", by_group=by_group, of_present=of_present)]
        arrays = {PROTOTYPE: (sizes.period,), **arrays}
        return [replace(means, arrays=arrays, reveals=f"its mean day, and {reveals}")]

    @property
    def model(self) -> RandomFeatureForecaster:
        """The model that computes the features."""
        model = self.task.model
        assert isinstance(model, RandomFeatureForecaster)
        return model

    def context(self, guidance: Guidance, cohort: Cohort) -> MeansContext:
        used = self.task.train_targets(cohort.samples)  # (K, n, H)
        clients, width, steps = len(used), self.model.representation_dim, used.shape[2]
        gram = used.new_zeros(clients, width, width, dtype=torch.float64)
        moment = used.new_zeros(clients, width, steps, dtype=torch.float64)
        squares = used.new_zeros(clients, steps, dtype=torch.float64)
        for part in self._parts(cohort.samples, used, slice(None)):
            residuals = part.residuals * part.mask
            of_part = sums(part.features, residuals, part.mask.amax(dim=2))
            gram += of_part[0]
            moment += of_part[1]
            squares += residuals.double().square().sum(dim=1)
        # The means of a step ahead are over the samples that have its target.
        samples, of_step = (
            mask.sum(dim=1).clamp(min=1).double() for mask in (used.amax(dim=2), used)
        )
        means = Means(gram / samples[:, None, None], moment / of_step[:, None])
        return MeansContext(means, squares / of_step)

    def _parts(
        self, samples: CohortSamples, mask: Tensor, rows: slice, width: int = 0
    ) -> Iterator[Part]:
        """Yield these clients' samples, from the first that counts to the last. They come in parts,
        because the features of a whole year are gigabytes.

        mask: [K, n, H]. width: the number of values that the caller computes from a sample, if
        larger than the number of features.
        """
        first, end = extent(mask[rows])
        clients = len(mask[rows])
        size = max(1, VALUES_AT_ONCE // max(width, clients * self.model.representation_dim))
        for start in range(first, end, size):
            part = slice(start, min(start + size, end))
            features = self.task.encode({}, samples.inputs[rows, part])
            residuals = samples.targets[rows, part] - features[..., self.model.newest, None]
            yield Part(features, residuals, mask[rows, part])

    def conclude(self, cohort: Cohort, context: MeansContext) -> dict[str, Tensor]:
        """Fit each client's model to its data alone. This model stays if no prior comes."""
        for row in range(len(cohort.names)):
            self._fit(cohort, row, context, [])
        return {"total": self.task.training_error(cohort.parameters, cohort.samples)}

    def contribution(self, cohort: Cohort, context: MeansContext) -> Contribution:
        if self.section.sharing == "none":
            return Contribution()
        arrays = {
            GRAM: triangle(context.means.gram),
            MOMENT: context.means.moment.transpose(1, 2),
        }
        if self.section.needs_totals:
            arrays = {name: value / UNIT for name, value in arrays.items()}
        else:
            arrays[PROTOTYPE] = mean_day(cohort.samples)
        return Contribution({name: value.float().cpu().numpy() for name, value in arrays.items()})

    def receive(self, cohort: Cohort, guidance: Guidance) -> list[int]:
        """Fit the clients that got priors, and return their rows."""
        place_of = {name: place for place, name in enumerate(guidance.clients)}
        rows = [row for row, name in enumerate(cohort.names) if name in place_of]
        if not rows:
            return []
        context, arrays = self.context(guidance, cohort), guidance.arrays
        totals = self._unpacked(arrays, slice(None)) if OTHERS in arrays else []
        for row in rows:
            place = place_of[cohort.names[row]]
            if totals:
                # A client that only receives has means as well, but has not sent them.
                is_sender = cohort.samples.train_samples[row] > 0
                sent_means = [mean[row].float().double() * is_sender for mean in context.means]
                counts = arrays[OTHERS][place].tolist()
                priors = [
                    Means(*((UNIT * t - m) / count for t, m in zip(total, sent_means, strict=True)))
                    for total, count in zip(totals, counts, strict=True)
                    if count
                ]
            else:
                priors = self._unpacked(arrays, place)
            self._fit(cohort, row, context, priors)
        return rows

    def _unpacked(self, arrays: Arrays, rows: int | slice) -> list[Means]:
        """Return the means, or totals, in these rows of the guidance."""
        device, width = self.task.device, self.model.representation_dim
        packed, moments = (
            torch.from_numpy(arrays[name][rows]).double().to(device) for name in (GRAM, MOMENT)
        )
        return list(map(Means, symmetric(packed, width), moments.mT))

    def _fit(
        self, cohort: Cohort, row: int, context: MeansContext, priors: Sequence[Means]
    ) -> None:
        """Fit the client in this row alone, because candidates for all at once are gigabytes."""
        means = Means(*(mean[row] for mean in context.means))
        periods = cohort.samples.batch_counts[row]
        is_young = cohort.samples.clients[row].is_young
        candidates = Candidates(list(self._families(means, priors, periods, is_young)))
        validation_targets = cohort.samples.is_validation[row].double().sum()
        mixed = candidates.mean(
            self._squared_errors(cohort, row, candidates) / validation_targets.clamp(min=1),
            torch.cat(
                [
                    self._training_errors(means, context.squares[row], family.fits)
                    for family in candidates.families
                ]
            ),
            validation_targets / means.moment.shape[1],
            self.section.eta,
        )
        cohort.parameters[COEFFICIENTS][row].copy_(mixed.T)

    def _squared_errors(self, cohort: Cohort, row: int, candidates: Candidates) -> Tensor:
        """Return each candidate's summed squared error on the client's validation targets, [C]."""
        fits = [family.fits for family in candidates.families]
        errors = torch.zeros_like(candidates.prior)
        samples, rows = cohort.samples, slice(row, row + 1)
        largest = max(of_family[:, 0].numel() for of_family in fits)
        for part in self._parts(samples, samples.is_validation, rows, largest):
            features, residuals, counts = (array[0].double() for array in part)
            has_target = counts.amax(dim=1) > 0
            present, residuals = features[has_target], residuals[has_target, None]
            start = 0
            for of_family in fits:
                number, width, steps = of_family.shape
                side_by_side = of_family.transpose(0, 1).reshape(width, -1)  # (D, C·H)
                forecasts = (present @ side_by_side).view(-1, number, steps)
                squared = (forecasts - residuals).square_()
                errors[start : start + number] += torch.einsum(
                    "ncs,ns->c", squared, counts[has_target]
                )
                start += number
        return errors

    @staticmethod
    def _training_errors(means: Means, squares: Tensor, fits: Tensor) -> Tensor:
        """Return the mean squared error on the train samples, from the client's means alone, [C].

        With missing targets, A covers more samples than B, so the error is not exact. It weighs
        little beside the validation error, so float32 is enough for the products of A.
        """
        side_by_side = fits.transpose(0, 1).flatten(start_dim=1).float()  # (D, C·H)
        explained = (means.gram.float() @ side_by_side).mul_(side_by_side).sum(dim=0)
        errors = explained.view(len(fits), -1) + squares
        errors -= 2 * (fits * means.moment).sum(dim=1)
        return errors.mean(dim=1).clamp(min=0)

    def _families(
        self, means: Means, priors: Sequence[Means], periods: int, is_young: bool
    ) -> Iterator[Family]:
        """Yield all candidates for a client that trains on this many periods.

        All families have the same weight, with two exceptions: the weight of the naive forecasts
        falls with the number of periods, and a young client's fits with priors have the weight
        `YOUNG_BORROWS`. Fits with priors use only the largest penalty on values, because weaker
        ones hardly ever helped. A client without a train sample has fits with priors alone.
        """
        section, penalties = self.section, self.section.penalties
        finer, blocks = section.finer_penalties, penalties[1:]
        naive = self.model.repeating(self.task.naive_forecasts())  # last value, season, mean
        # A sample's calendar, or its 1, has products other than 0.
        is_fitted = not priors or bool(means.gram.any())
        for targets in (naive[:1], naive[1:]) if is_fitted else ():
            unfitted = means.moment.new_zeros(len(targets), *means.moment.shape)
            unfitted[:, : naive.shape[1]] = targets
            yield Family(1 / periods, unfitted)
        if is_fitted:
            alone = Fits([means], self.model, {*penalties, *finer[:-1]})
            pairs = [(value, calendar) for value in blocks for calendar in blocks]
            yield from alone.with_blocks(pairs, penalties, naive)
            yield alone.with_one_penalty(finer[:-1])
        mixed = [means.plus(strength, prior) for prior in priors for strength in STRENGTHS]
        if mixed:
            borrowing = Fits(mixed, self.model, {*penalties[:-1]})
            strongest = [(penalties[-1], finer[-2])]
            families = [
                *borrowing.with_blocks(strongest, penalties[1:-1], naive[:2]),
                borrowing.with_one_penalty(penalties[:-1]),
            ]
            weight = YOUNG_BORROWS if is_young else 1.0
            yield from (family._replace(weight=weight) for family in families)


class Fits:
    """Ridge fits of several problems.

    The waves are eliminated once for each of their penalties. A model without waves ignores these
    penalties. Every fit is made with the further lags and without them, because where weeks do not
    repeat, these lags only add noise.
    """

    def __init__(
        self, problems: Sequence[Means], model: RandomFeatureForecaster, waves: set[float]
    ) -> None:
        gram, moment = (torch.stack(parts) for parts in zip(*problems, strict=True))
        self._plain, self._values = model.plain_width, model.values
        left_out = LEAVES_OUT * model.is_further.to(gram)
        choices = [0 * left_out, left_out] if left_out.any() else [left_out]
        self._added = torch.stack(choices)  # [1 or 2, p]
        if model.representation_dim == model.plain_width:
            waves = set()
        self._eliminated = {
            penalty: Eliminated(gram, moment, self._plain, penalty)
            for penalty in (*sorted(waves), math.inf)
        }

    def with_blocks(
        self, pairs: Sequence[tuple[float, float]], waves: Sequence[float], targets: Tensor
    ) -> Iterator[Family]:
        """Yield fits with a penalty for each block of features, in two families.

        Fits of the first family are drawn to the first target [k, plain, H], and fits of the
        second to the other targets. pairs: the penalties of the values and of the calendar.
        """
        sizes = torch.tensor([self._values, self._plain - self._values], device=targets.device)
        plain = targets.new_tensor(pairs).repeat_interleave(sizes, dim=1)
        penalties = self._available((*waves, math.inf))
        plain = self._with_and_without(plain)
        fits = [self._eliminated[penalty].solve(plain, targets) for penalty in penalties]
        yield _family([fit[..., :1, :, :] for fit in fits])
        yield _family([fit[..., 1:, :, :] for fit in fits])

    def with_one_penalty(self, penalties: Sequence[float]) -> Family:
        """Return fits with the same penalty for all features, drawn to the last value, both with
        waves and without."""
        fits = []
        for penalty in penalties:
            for waves in self._available((penalty, math.inf)):
                problem = self._eliminated[waves]
                plain = self._with_and_without(problem.moment.new_full((1, self._plain), penalty))
                fits.append(problem.solve(plain, torch.zeros_like(problem.moment[:1])))
        return _family(fits)

    def _with_and_without(self, penalties: Tensor) -> Tensor:
        """Return the penalties [c, p], and those without the further lags if there are any."""
        return torch.cat([penalties + added for added in self._added])

    def _available(self, waves: Sequence[float]) -> list[float]:
        return [penalty for penalty in waves if penalty in self._eliminated]


def _family(fits: Sequence[Tensor]) -> Family:
    return Family(1.0, torch.cat([fit.flatten(end_dim=-3) for fit in fits]))


def extent(mask: Tensor) -> tuple[int, int]:
    """Return the first sample that counts for any client, and the end after the last such sample.

    mask: [K, n, H]. If none counts, the first sample is returned, because a part cannot be empty.
    """
    places = mask.amax(dim=(0, 2)).nonzero().flatten().tolist() or [0]
    return places[0], places[-1] + 1


def random_features(settings: Settings, layout: WindowLayout) -> RandomFeatureForecaster:
    """Return the model. Every process draws the same features."""
    draws = torch_stream(settings.seed, "random features")
    width = settings.method_table(KindredSettings).features
    data = settings.data
    periodic = data.periodic_distances
    return RandomFeatureForecaster(
        layout,
        width,
        draws,
        courses=data.learns_weeks and layout.horizon > 1,
        further=[place for place, lag in enumerate(data.distances) if lag not in periodic],
    )
