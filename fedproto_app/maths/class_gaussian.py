"""Classes as Gaussians with one covariance: a closed-form classifier from additive sums.

This is Fisher's linear discriminant. For vectors x of classes c it needs only Σ x xᵀ, Σ_c x and
n_c. Adding these over clients and stages gives the sums over all samples, so nothing is forgotten.
The class frequencies are kept apart from the classes' means and covariance, so that any prior can
be set afterwards. Everything is float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from fedproto_app.maths.ridge import definite

SMOOTHING = 3.0  # chosen on validation parts: digits, CIFAR-10, PenDigits, JapaneseVowels, writing
UNKNOWN_CLASS = -1e4  # replaces log 0 for a class that no client has
_FLOOR = 1e-3  # least relative variance within classes, because a class may have one sample
_SLACK = 1e-4  # relative, for each feature, because sums travel in float32
_LEAST_PENALTY = 2e-7  # · number of features · mean square, because sums travel in float32
_ROUNDING = 1e-6  # relative rounding error of a number of samples in float32
_NEXT_TO_NOTHING = 1e-6  # share of the mean square, for features that never vary


OfClasses = tuple[Tensor, Tensor]  # Σ_c x [..., C, D] and n_c [..., C]


class LabelledVectors(NamedTuple):
    """Vectors of K clients. features: [K, n, D]. labels: [K, n]. present: [K, n], 0 for none."""

    features: Tensor
    labels: Tensor
    present: Tensor


class OwnScatter(NamedTuple):
    """The scatter around each client's own class means, added up over the clients.

    scatter: W = Σ_k (G_k − Σ_c M_kc M_kcᵀ / n_kc) [..., D, D]. holders: how many clients have
    samples of each class [..., C]. If only a share of a client's samples counts, the client adds
    that share to both.
    """

    scatter: Tensor
    holders: Tensor

    def less(self, removed: OwnScatter, share: float) -> OwnScatter:
        """Return the scatter without a client's, which was added with the weight `share`."""
        return OwnScatter(*(mine - share * part for mine, part in zip(self, removed, strict=True)))


class ClassSums(NamedTuple):
    """Sums over samples: gram Σ x xᵀ [..., D, D], moment Σ_c x [..., C, D], counts n_c [..., C]."""

    gram: Tensor
    moment: Tensor
    counts: Tensor

    def plus(self, added: ClassSums) -> ClassSums:
        """Return the sums over the samples of both together."""
        return ClassSums(*(mine + added_sum for mine, added_sum in zip(self, added, strict=True)))

    def less(self, removed: ClassSums, share: float = 1.0) -> ClassSums:
        """Return the sums without these samples, whose weight in the sums is `share`."""
        moment, counts = without((self.moment, self.counts), removed, share)
        return ClassSums(self.gram - share * removed.gram, moment, counts)

    def of_client(self, row: int) -> ClassSums:
        """Return the sums [1, …] of one of K clients."""
        return ClassSums(*(part[row : row + 1] for part in self))

    def features_from(self, first: int) -> ClassSums:
        """Return the sums of the features from `first` on."""
        return ClassSums(self.gram[..., first:, first:], self.moment[..., first:], self.counts)


def without(of_classes: OfClasses, removed: ClassSums, share: float = 1.0) -> OfClasses:
    """Return the sums of classes without these samples, whose weight in the sums is `share`.

    If a class has no other samples, its sums are set to exactly 0, without rounding errors.
    """
    moment, counts = of_classes
    remaining = counts - share * removed.counts
    has = remaining > _ROUNDING * counts
    return (moment - share * removed.moment) * has.unsqueeze(-1), remaining * has


def class_sums(vectors: LabelledVectors, classes: int) -> ClassSums:
    """Return the sums of K clients' vectors."""
    features, present = vectors.features.double(), vectors.present.double()
    members = torch.nn.functional.one_hot(vectors.labels, classes).double() * present.unsqueeze(-1)
    weighed = features * present.unsqueeze(-1)
    return ClassSums(
        weighed.transpose(-1, -2) @ features, members.transpose(-1, -2) @ features, members.sum(-2)
    )


def shortened(features: Tensor, length: float) -> Tensor:
    """Return the features [..., D] with no row longer than `length`."""
    norms = features.norm(dim=-1, keepdim=True)
    factor: Tensor = (length / norms.clamp(min=1e-30)).clamp(max=1.0)
    return features * factor


def without_noise(sums: ClassSums, deviation: float) -> ClassSums:
    """Return usable sums from sums with independent Gaussian noise on every entry.

    A class is treated as absent if its number of samples is at most two standard deviations of the
    noise. For the other classes the products are corrected so that the covariance within classes is
    positive definite.
    """
    exists = sums.counts > 2 * deviation
    moment, counts = sums.moment * exists.unsqueeze(-1), sums.counts * exists
    means = class_means(moment, counts)
    between = means.transpose(-1, -2) @ moment
    return ClassSums(definite(sums.gram - between, deviation) + between, moment, counts)


def own_scatter(sums: ClassSums, share: Tensor | float = 1.0) -> OwnScatter:
    """Return the scatter around the class means, from the sums of one client or of each of K.

    share: the weight of each sample in the sums.
    """
    means = class_means(sums.moment, sums.counts)
    scatter = sums.gram - means.transpose(-1, -2) @ sums.moment
    return OwnScatter(scatter, (sums.counts > 0) * share)


def means_differ(total: ClassSums, own: OwnScatter) -> bool:
    """Return whether the clients' means of a class differ by more than chance.

    This is an analysis of variance. If clients mean the same by a class, the variance between their
    means of it, times their numbers of samples, has the same expectation as the variance within.
    The means differ if two separate variances are likelier than a single one by more than an extra
    parameter costs (Schwarz, 1978). Each degree of freedom counts once for each of the
    `directions` that features vary in.
    """
    common, means = own_scatter(total), float(own.holders.sum())
    free_within = float(total.counts.sum()) - means  # degrees of freedom
    free_between = means - float(common.holders.sum())
    within = float(_mean_diagonal(own.scatter))
    between = float(_mean_diagonal(common.scatter)) - within
    if min(free_within, free_between, within) <= 0 or between / free_between < within / free_within:
        return False
    free, count = free_within + free_between, float(directions(total))
    gain = free * math.log((within + between) / free)
    gain -= free_within * math.log(within / free_within)
    gain -= free_between * math.log(between / free_between)
    return count * gain > math.log(count * free_between)


def around_own_means(total: ClassSums, own: OwnScatter) -> ClassSums:
    """Return sums that give the class means of the total and the covariance W / (n − Σ_k C_k).

    Their number of samples is n − Σ_k C_k, because fewer degrees of freedom need more smoothing.
    """
    samples = total.counts.sum(dim=-1, keepdim=True)
    factor = (samples - own.holders.sum(dim=-1, keepdim=True)) / samples
    moment, counts = factor.unsqueeze(-1) * total.moment, factor * total.counts
    between = class_means(moment, counts).transpose(-1, -2) @ moment
    return ClassSums(own.scatter + between, moment, counts)


def class_means(moment: Tensor, counts: Tensor) -> Tensor:
    """Return µ_c [..., C, D] from moment [..., C, D] and counts [..., C], 0 for an empty class."""
    return moment / counts.clamp(min=1e-9).unsqueeze(-1)


def precision_factors(sums: ClassSums, penalties: Iterable[float]) -> list[Tensor]:
    """Return the Cholesky factor [..., D, D] of S_λ = S + λ·s·diag(V) for each penalty.

    It is NaN if S_λ has none.

    S is the covariance within classes. V_j is the geometric mean of T_j, the variance of feature j
    over all samples, and of the mean of all T. The penalty thus lies between two others: with equal
    penalties for all features images are classified best, and with penalties in proportion to T_j
    sequences are.

    s is the mean of S_jj / V_j, at least 0.001, and λ = 3 · penalty · r / n. This is as if there
    were 3 · penalty · r more samples whose features vary independently. r is the number of
    `directions` of the features divided by √V_j, because n must be large compared with r and not
    with D (as in the shrinkage of Chen et al. 2010, OAS). A penalty is at least 2e-7 · D times the
    mean square of all features, because the sums are rounded to float32.
    """
    within, _ = _within(sums)
    variances = _variances(sums)
    variances = (variances * variances.mean(dim=-1, keepdim=True)).sqrt()
    deviations = variances.sqrt()
    relative = within / (deviations.unsqueeze(-1) * deviations.unsqueeze(-2))
    strength = SMOOTHING * _directions(relative) / _samples(sums)
    strength = strength * _mean_diagonal(relative).clamp(min=_FLOOR)
    least = _LEAST_PENALTY * within.shape[-1] * _squares(sums).mean(dim=-1, keepdim=True)
    factors = []
    for penalty in penalties:
        ridge = (penalty * strength.unsqueeze(-1) * variances).maximum(least)
        penalised = within.clone()
        penalised.diagonal(dim1=-2, dim2=-1).add_(ridge)
        factor, failed = torch.linalg.cholesky_ex(penalised)
        factors.append(factor.masked_fill_((failed > 0)[..., None, None], torch.nan))
    return factors


def directions(sums: ClassSums) -> Tensor:
    """Return r = (tr S)² / tr S² [...] for the covariance S within classes.

    r is D if features vary alike in all directions, or if S is 0. It is 1 if they vary in one
    direction only.
    """
    return _directions(_within(sums)[0])


def _directions(covariance: Tensor) -> Tensor:
    width, largest = covariance.shape[-1], covariance.abs().amax(dim=(-2, -1), keepdim=True)
    relative = covariance / largest.clamp(min=1e-300)  # squares of large entries would overflow
    trace, squares = width * _mean_diagonal(relative), relative.square().sum(dim=(-2, -1))
    count = torch.where(squares > 0, trace.square() / squares.clamp(min=1), width)
    return count.clamp(min=1, max=width)


def lean_evidence(
    local: OfClasses, reference: OfClasses, spread: ClassSums, lean: float, count: Tensor
) -> Tensor:
    """Return the log likelihood [...] of clients' class sums given the reference's class means.

    The two means of a class may differ as much as the mean of `lean` samples differs from the
    truth: µ_local − µ_reference is Gaussian with covariance v·S, where v = 1/n_local +
    1/n_reference + 1/lean. S is the covariance of `spread`, treated as `count` directions that vary
    alike. Only classes that both have are used. Terms equal for all references are left out.
    """
    within, variance = _within(spread)
    (_, own_counts), (_, other_counts) = local, reference
    shared = (own_counts > 0.5) & (other_counts > 0.5)
    apart = class_means(*local) - class_means(*reference)
    factor = 1 / own_counts.clamp(min=0.5) + 1 / other_counts.clamp(min=0.5) + 1 / lean
    trace = factor * within.shape[-1] * variance.unsqueeze(-1)  # of v·S, [..., C]
    terms = -(trace.log() + apart.square().sum(dim=-1) / trace) * shared
    return count / 2 * terms.sum(dim=-1)


def _within(sums: ClassSums) -> tuple[Tensor, Tensor]:
    """Return the covariance within classes S [..., D, D], and the mean variance [...] > 0."""
    total = _samples(sums)
    within = own_scatter(sums).scatter / total[..., None, None]
    variance, square = (_mean_diagonal(matrix) for matrix in (within, sums.gram))
    return within, torch.maximum(variance, _FLOOR * square / total).clamp(min=1e-12)


def _variances(sums: ClassSums) -> Tensor:
    """Return the variance of each feature over the samples of all classes [..., D].

    It is at least a share of the mean square of all features, because a feature that never varies
    has a sum of rounding errors.
    """
    squares = _squares(sums)
    least = _NEXT_TO_NOTHING * squares.mean(dim=-1, keepdim=True)
    return (squares - overall_mean(sums).square()).maximum(least).clamp(min=1e-12)


def _squares(sums: ClassSums) -> Tensor:
    """Return the mean square of each feature [..., D]."""
    return sums.gram.diagonal(dim1=-2, dim2=-1) / _samples(sums).unsqueeze(-1)


def _samples(sums: ClassSums) -> Tensor:
    return sums.counts.sum(dim=-1).clamp(min=1)


def overall_mean(sums: ClassSums) -> Tensor:
    """Return the mean m [..., D] of all samples, or 0 if there are none."""
    return sums.moment.sum(dim=-2) / sums.counts.sum(dim=-1, keepdim=True).clamp(min=1)


def discriminant(
    factor: Tensor, centre: Tensor, means: Tensor, has_samples: Tensor
) -> tuple[Tensor, Tensor]:
    """Return weight [..., D, C] and offset [..., C]: log p(x | c) = x·weight + offset + common.

    factor: the Cholesky factor of S_λ, [D, D] for all clients or [K, D, D]. centre: m [D] or
    [K, D]. means: µ_c [..., C, D]. has_samples: [..., C] bool, which classes have samples.
    weight = S_λ⁻¹ (µ_c − m) and offset = −½ (µ_c + m)ᵀ S_λ⁻¹ (µ_c − m). Subtracting m drops a term
    that all classes have in common, and keeps the numbers small. Classes without samples have
    weight 0 and offset UNKNOWN_CLASS.
    """
    from_centre = means - centre.unsqueeze(-2)
    if factor.dim() < means.dim():  # one solve for all clients
        flat = from_centre.flatten(end_dim=-2)
        weight = torch.cholesky_solve(flat.T, factor).T.view_as(means)
    else:
        weight = torch.cholesky_solve(from_centre.transpose(-1, -2), factor).transpose(-1, -2)
    offset = -((means + centre.unsqueeze(-2)) * weight).sum(dim=-1) / 2
    weight = (weight * has_samples.unsqueeze(-1)).transpose(-1, -2)
    return weight, torch.where(has_samples, offset, UNKNOWN_CLASS)


def log_prior(counts: Tensor) -> Tensor:
    """Return the log of each class's share of the counts [..., C], UNKNOWN_CLASS if it is 0."""
    shares = counts / counts.sum(dim=-1, keepdim=True).clamp(min=1e-9)
    return torch.where(counts > 0, shares.clamp(min=1e-300).log(), UNKNOWN_CLASS)


def log_loss(scores: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """Return each client's mean of −log p of the true class [K], or 0 if it has no samples."""
    losses = -scores.log_softmax(dim=2).gather(2, labels.unsqueeze(2)).squeeze(2)
    weights = present.double()
    return (losses * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


def sums_fault(
    sums: ClassSums,
    samples: int,
    largest: float,
    sample_weight: float = 1.0,
    never_negative: bool = False,
) -> str | None:
    """Return why these cannot be one client's sums, or None if they can.

    The sums' gram is [D, D]. samples: the largest possible number of samples. largest: the largest
    possible mean square of a feature. sample_weight: the smallest weight of a sample. If it is
    below 1, counts need not be whole. never_negative: whether no feature is ever below 0. Only
    this check finds sums of classes that were negated.
    """
    gram, moment, counts = sums
    if never_negative and (least := min(float(gram.min()), float(moment.min()))) < -_SLACK:
        return f"its features are never negative, and a sum of them is {least:.3g}"
    whole, slack = sample_weight == 1, 0.0 if sample_weight == 1 else _SLACK
    broken = counts != counts.round() if whole else counts[counts > 0] < sample_weight * (1 - slack)
    if (counts < 0).any() or broken.any():
        return "a number of samples is not a possible number"
    total = float(counts.sum())
    if total > samples * (1 + slack):
        return f"{total:g} samples, more than the {samples} that it declared"
    squares = gram.diagonal()
    if squares.max() > total * largest * (1 + _SLACK):
        return f"a mean square is {squares.max() / max(total, 1):g}, more than {largest:g}"
    if (moment[counts == 0] != 0).any():
        return "a class without samples has a sum"
    within = own_scatter(sums).scatter
    ridge = _SLACK * squares + _SLACK * float(squares.mean()) * _NEXT_TO_NOTHING
    if torch.linalg.cholesky_ex(within + torch.diag(ridge.clamp(min=1e-30))).info.any():
        return "no samples have such sums and products"
    return None


def sizes(sums: ClassSums) -> float:
    """Return the larger mean square, either the features' or the largest class mean's."""
    width = sums.gram.shape[-1]
    squares = float(sums.gram.diagonal().sum() / (sums.counts.sum().clamp(min=1) * width))
    means = class_means(sums.moment, sums.counts).square().mean(dim=-1)
    return max(squares, float(means.max()))


def _mean_diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).mean(dim=-1)
