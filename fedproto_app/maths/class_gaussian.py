"""Classes as Gaussians with one covariance: a classifier in closed form, from sums that add up.

Fisher's linear discriminant. Of vectors x with class c it needs Σ x xᵀ, Σ_c x and n_c only. Sums
over clients and over stages are those of all samples, so nothing is forgotten. The frequencies of
the classes stand apart from their shapes: any prior can be set afterwards.
Everything is float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fedproto_app.maths.ridge import definite

SMOOTHING = 3.0  # by validation on digits, CIFAR-10, PenDigits, JapaneseVowels and air-writing
UNKNOWN_CLASS = -1e4  # in place of log 0: nobody has seen the class
_FLOOR = 1e-3  # of the mean variance within classes, in mean squares: a class may have one sample
_SLACK = 1e-4  # relative, feature by feature; sums travel in float32
_NEXT_TO_NOTHING = 1e-6  # of the mean square, for features that are always 0


OfClasses = tuple[Tensor, Tensor]  # Σ_c x [..., C, D] and n_c [..., C]


class LabelledVectors(NamedTuple):
    """features: [K, n, D]; labels: [K, n]; present: [K, n], 0 where there is no sample."""

    features: Tensor
    labels: Tensor
    present: Tensor


class ClassSums(NamedTuple):
    """gram: Σ x xᵀ [..., D, D]; moment: Σ_c x [..., C, D]; counts: n_c [..., C]."""

    gram: Tensor
    moment: Tensor
    counts: Tensor

    def plus(self, other: ClassSums) -> ClassSums:
        """The sums of both's samples."""
        return ClassSums(*(mine + its for mine, its in zip(self, other, strict=True)))

    def features_from(self, first: int) -> ClassSums:
        """Those of the features from this one on."""
        return ClassSums(self.gram[..., first:, first:], self.moment[..., first:], self.counts)


def class_sums(vectors: LabelledVectors, classes: int) -> ClassSums:
    """Of K clients' vectors."""
    features, present = vectors.features.double(), vectors.present.double()
    members = torch.nn.functional.one_hot(vectors.labels, classes).double() * present.unsqueeze(-1)
    weighed = features * present.unsqueeze(-1)
    return ClassSums(
        weighed.transpose(-1, -2) @ features, members.transpose(-1, -2) @ features, members.sum(-2)
    )


def shortened(features: Tensor, length: float) -> Tensor:
    """[..., D] with no row longer than this."""
    norms = features.norm(dim=-1, keepdim=True)
    factor: Tensor = (length / norms.clamp(min=1e-30)).clamp(max=1.0)
    return features * factor


def without_noise(sums: ClassSums, deviation: float) -> ClassSums:
    """What can be used of sums whose every entry has independent Gaussian noise.

    A class whose number of samples is within twice the noise is taken for one that nobody has; the
    products of the others become those of a positive covariance within classes.
    """
    known = sums.counts > 2 * deviation
    moment, counts = sums.moment * known.unsqueeze(-1), sums.counts * known
    means = class_means(moment, counts)
    between = means.transpose(-1, -2) @ moment
    return ClassSums(definite(sums.gram - between, deviation) + between, moment, counts)


def class_means(moment: Tensor, counts: Tensor) -> Tensor:
    """µ_c [..., C, D] of moment [..., C, D] and counts [..., C]; 0 for a class without samples."""
    return moment / counts.clamp(min=1e-9).unsqueeze(-1)


def precision_factor(sums: ClassSums, penalty: float) -> Tensor:
    """The Cholesky factor [..., D, D] of S_λ = S + λ·(mean variance)·I; NaN where there is none.

    S is the covariance within classes, λ = 3 · penalty · r / n: as if 3 · penalty · r more samples
    came whose features all vary alike. r is the number of `directions` in which features vary: n
    must be large beside r, not beside D (as in the shrinkage of Chen et al. 2010, OAS).
    """
    within, variance = _within(sums)
    ridge = SMOOTHING * penalty * directions(sums) / _samples(sums) * variance
    identity = torch.eye(within.shape[-1], dtype=within.dtype, device=within.device)
    factor, failed = torch.linalg.cholesky_ex(within + ridge[..., None, None] * identity)
    return torch.where((failed > 0)[..., None, None], torch.nan, factor)


def directions(sums: ClassSums) -> Tensor:
    """r = (tr S)² / tr S² [...] of the covariance S within classes: D where features vary alike in
    all directions, 1 where in one alone. D where S is 0."""
    within, _ = _within(sums)
    width, largest = within.shape[-1], within.abs().amax(dim=(-2, -1), keepdim=True)
    relative = within / largest.clamp(min=1e-300)  # squares of large entries would overflow
    trace, squares = width * _mean_diagonal(relative), relative.square().sum(dim=(-2, -1))
    found = torch.where(squares > 0, trace.square() / squares.clamp(min=1), width)
    return found.clamp(min=1, max=width)


def lean_evidence(
    own: OfClasses, others: OfClasses, spread: ClassSums, lean: float, count: Tensor
) -> Tensor:
    """[...] how likely clients' class sums are if their classes' means are others' but for the
    difference that `lean` samples make: a logarithm, up to what is the same for all others.

    µ_own − µ_others is Gaussian with covariance v·S, v = 1/n_own + 1/n_others + 1/lean. S is that
    of `spread`, taken as `count` directions that vary alike. Classes count that both have.
    """
    within, variance = _within(spread)
    (_, own_counts), (_, other_counts) = own, others
    both = (own_counts > 0.5) & (other_counts > 0.5)
    apart = class_means(*own) - class_means(*others)
    factor = 1 / own_counts.clamp(min=0.5) + 1 / other_counts.clamp(min=0.5) + 1 / lean
    trace = factor * within.shape[-1] * variance.unsqueeze(-1)  # of v·S, [..., C]
    each = -(trace.log() + apart.square().sum(dim=-1) / trace) * both
    return count / 2 * each.sum(dim=-1)


def _within(sums: ClassSums) -> tuple[Tensor, Tensor]:
    """S [..., D, D], the covariance within classes, and the mean variance [...], above 0."""
    gram, moment, counts = sums
    total, means = _samples(sums), class_means(moment, counts)
    within = (gram - means.transpose(-1, -2) @ moment) / total[..., None, None]
    variance, square = (_mean_diagonal(one) for one in (within, gram))
    return within, torch.maximum(variance, _FLOOR * square / total).clamp(min=1e-12)


def _samples(sums: ClassSums) -> Tensor:
    return sums.counts.sum(dim=-1).clamp(min=1)


def overall_mean(sums: ClassSums) -> Tensor:
    """m [..., D] of all samples; 0 without any."""
    return sums.moment.sum(dim=-2) / sums.counts.sum(dim=-1, keepdim=True).clamp(min=1)


def discriminant(
    factor: Tensor, centre: Tensor, means: Tensor, known: Tensor
) -> tuple[Tensor, Tensor]:
    """weight [..., D, C] and offset [..., C] of log p(x | c) = x·weight + offset + (common).

    factor: of S_λ, [D, D] for all or [K, D, D]; centre: m [D] or [K, D]; means: µ_c [..., C, D];
    known: [..., C] bool, the classes that anybody has seen. weight = S_λ⁻¹ (µ_c − m), offset =
    −½ (µ_c + m)ᵀ S_λ⁻¹ (µ_c − m): with m what is common to all classes is left out, and the
    numbers stay small. 0 and UNKNOWN_CLASS for a class that is not known.
    """
    from_centre = means - centre.unsqueeze(-2)
    if factor.dim() < means.dim():  # one solve for all clients
        flat = from_centre.flatten(end_dim=-2)
        weight = torch.cholesky_solve(flat.T, factor).T.view_as(means)
    else:
        weight = torch.cholesky_solve(from_centre.transpose(-1, -2), factor).transpose(-1, -2)
    offset = -((means + centre.unsqueeze(-2)) * weight).sum(dim=-1) / 2
    weight = (weight * known.unsqueeze(-1)).transpose(-1, -2)
    return weight, torch.where(known, offset, UNKNOWN_CLASS)


def log_prior(counts: Tensor) -> Tensor:
    """The logarithm of the classes' shares of these counts [..., C]; UNKNOWN_CLASS for 0."""
    shares = counts / counts.sum(dim=-1, keepdim=True).clamp(min=1e-9)
    return torch.where(counts > 0, shares.clamp(min=1e-300).log(), UNKNOWN_CLASS)


def log_loss(scores: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """[K] −log p of the true class, the mean over a client's samples; 0 without any."""
    each = -scores.log_softmax(dim=2).gather(2, labels.unsqueeze(2)).squeeze(2)
    weights = present.double()
    return (each * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def sums_fault(sums: ClassSums, samples: int, largest: float) -> str | None:
    """Why these cannot be sums over at most so many samples of features with mean square ≤ largest,
    or None. Of one client: gram [D, D]."""
    gram, moment, counts = sums
    if (counts < 0).any() or (counts != counts.round()).any():
        return "a number of samples is no number"
    total = float(counts.sum())
    if total > samples:
        return f"{total:g} samples, more than the {samples} that it declared"
    squares = gram.diagonal()
    if squares.max() > total * largest * (1 + _SLACK):
        return f"a mean square is {squares.max() / max(total, 1):g}, more than {largest:g}"
    if (moment[counts == 0] != 0).any():
        return "a class without samples has a sum"
    within = gram - class_means(moment, counts).T @ moment
    slack = _SLACK * squares + _SLACK * float(squares.mean()) * _NEXT_TO_NOTHING
    if torch.linalg.cholesky_ex(within + torch.diag(slack.clamp(min=1e-30))).info.any():
        return "no samples have such sums and products"
    return None


def sizes(sums: ClassSums) -> float:
    """The larger of the mean square of one client's features, and of any class's mean."""
    width = sums.gram.shape[-1]
    squares = float(sums.gram.diagonal().sum() / (sums.counts.sum().clamp(min=1) * width))
    means = class_means(sums.moment, sums.counts).square().mean(dim=-1)
    return max(squares, float(means.max()))


def _mean_diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
