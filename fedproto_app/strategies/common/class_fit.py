"""Fit a client's classifier to its own class sums and the sums of other clients.

The classifier is a discriminant (`maths/class_gaussian.py`). Its covariance is pooled over all
clients, its class means lie between the client's own and the pooled ones, and its prior is the
client's class frequencies. A client has too few samples to choose the mixing weights and the
penalty, so the classifier is the weighted mean of many candidates' log-probabilities. Each
candidate assumes a certain difference between the client's means and the pooled ones. Its weight is
the likelihood of the client's class sums under this assumption, times the likelihood of the samples
that judge it. Samples of a client resemble each other, so both likelihoods count less than if the
samples were independent (`ETA`).

Covariances of hundreds of features, estimated from few samples, make differences of log-likelihoods
between classes too large. Such a classifier is too sure of itself, and where classes overlap it
neglects that some are more frequent at the client. So each candidate also exists with these
differences shrunk (`SHRUNK`, as the temperature of Guo et al., ICML 2017).

Clients also learn from their validation samples, whose sums are part of the totals. Candidates are
judged without these samples: a client's validation sums are subtracted from the totals, which
leaves exactly the sums of all other samples. The same candidates are then fitted to all samples and
get the weights of the judged ones. A client with few validation samples also judges by parts of its
train samples, each subtracted in the same way (cross-validation).

Clients' means of a class may differ by more than chance, as where sites use codes of their own.
Around common means, these differences would count as noise, so the covariance is then taken around
each client's own means.

What holds for all clients can still be wrong for one of them. So a client mixes in the
log-probabilities of a classifier fitted to its own sums alone, and the same samples weigh the
shares. A client with very few samples does without, because such a classifier can be sure of
anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.class_gaussian import (
    ClassSums,
    LabelledVectors,
    OwnScatter,
    around_own_means,
    class_means,
    class_sums,
    directions,
    discriminant,
    lean_evidence,
    log_loss,
    log_prior,
    means_differ,
    overall_mean,
    own_scatter,
    precision_factors,
    without,
)
from fedproto_app.maths.ridge import symmetric, triangle, triangle_size

# Each client sends these sums and gets back their totals over the clients.
GRAM, MOMENT, COUNTS = "gram", "moment", "counts"
# They also get the totals of `OwnScatter`. The server computes these from each client's sums. Where
# masks hide those sums, each client sends its own part of the totals.
SCATTER, HOLDERS = "scatter", "holders"
# With clusters, each client of a cluster gets the cluster's sums.
CLUSTER_MOMENT, CLUSTER_COUNTS = "cluster.moment", "cluster.counts"

WELL_KNOWN = (0.3, 1.0, 3.0)  # factors of the penalty where means rest on many samples
HARDLY_KNOWN = (3.0, 10.0, 30.0)  # where means rest on a client's own few samples
# Candidates: the number of samples that a pooled class mean counts as, and factors of the penalty.
LEANS = ((1.0, HARDLY_KNOWN), (3.0, HARDLY_KNOWN), (30.0, WELL_KNOWN), (1e6, WELL_KNOWN))
PENALTIES = (*WELL_KNOWN, *HARDLY_KNOWN[1:])
SHRUNK = (1.0, 0.5, 0.25)  # factors of the log-likelihoods. Each candidate exists with all of them
PSEUDO = 1.0  # pseudo-samples with the overall class frequencies, added to the client's counts
ETA = 0.3  # power of the likelihoods that weigh candidates. 1: as if samples were independent
SHARES_ALONE = (0.0, 0.1, 0.25, 0.5, 1.0)  # of the classifier fitted to the client's own sums
ODDS_ALONE = 63.0  # prior odds against a share of 1. Against a share s they are 63 to the power s
LEAST_JUDGING = 10  # by how many judging samples must outnumber classes, or else the share is 0

AT_ONCE = 12  # candidates that are judged at once, to limit the memory

# weight [K, D, C] and bias [K, C], for all clients [D, C] and [C]. The candidates of one client are
# such a pair too, with M candidates in place of K clients.
Classifier = tuple[Tensor, Tensor]


class ClassPool(NamedTuple):
    """Class sums of a group of clients. A client's class means are drawn to the group's means.

    moment, counts: the sums of each class. They are [C, D] and [C] if the group is all clients, and
    [K, C, D] and [K, C] if each client has its own group.
    """

    moment: Tensor
    counts: Tensor

    def of_client(self, row: int) -> ClassPool:
        """Return the pool of one of K clients, [C, D] and [C]."""
        return self if self.counts.dim() == 1 else ClassPool(self.moment[row], self.counts[row])


class Fold(NamedTuple):
    """Labelled samples of K clients that judge classifiers.

    in_sums: whether the clients' sums and the totals hold these samples. If so, classifiers that
    the samples judge are fitted without them.
    """

    vectors: LabelledVectors
    in_sums: bool

    def of_client(self, row: int) -> Fold:
        """Return the samples of one of K clients, [1, …]."""
        vectors = LabelledVectors(*(part[row : row + 1] for part in self.vectors))
        return self._replace(vectors=vectors)

    def removed_from(self, sums: ClassSums) -> ClassSums | None:
        """Return the samples' sums that these sums [K, …] hold, or None if they hold none."""
        if not self.in_sums or not self.vectors.present.any():
            return None
        return class_sums(self.vectors, sums.counts.shape[-1])


class Fits(NamedTuple):
    """final: the classifiers of K clients. judged: for each fold, the same classifiers fitted
    without its samples, so that these samples can judge them."""

    final: Classifier
    judged: Sequence[Classifier]


def sums_shapes(classes: int, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a client's packed sums: D(D + 1)/2 + C·D + C values."""
    return {GRAM: (triangle_size(width),), MOMENT: (classes, width), COUNTS: (classes,)}


def scatter_shapes(classes: int, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a client's packed `OwnScatter`: D(D + 1)/2 + C values."""
    return {SCATTER: (triangle_size(width),), HOLDERS: (classes,)}


def sums_of_classes(
    sizes: Sizes,
    when: Literal["training", "evaluated"] = "training",
    clip: Literal["", "sums"] = "",
    passed_on: str = "",
) -> Sends:
    """Return the declaration of a client that sends class sums.

    passed_on: what clients of the same cluster learn from the sums, or "" without clusters.
    """
    return Sends(
        "sums",
        sums_shapes(sizes.classes, sizes.width),
        combine="groups" if passed_on else "sum",
        remember="latest",
        of_present="the sums over the clients that take part",
        under_masks=scatter_shapes(sizes.classes, sizes.width),
        when=when,
        clip=clip,
        any_size=True,
        reveals="the sums and the number of a client's samples of each class",
        consent="tells-classes",
        passed_on=passed_on,
    )


def sample_bound(clip: float) -> float:
    """Return the largest norm that a vector of norm ≤ `clip` adds to its client's sums.

    It adds clip² to the products, clip to its class's sum and 1 to its class's count.
    """
    return math.sqrt(clip**4 + clip**2 + 1)


def packed(sums: ClassSums) -> dict[str, Tensor]:
    """Return the sums as arrays of a message, […] each, with the products as a triangle."""
    return {GRAM: triangle(sums.gram), MOMENT: sums.moment, COUNTS: sums.counts}


def unpacked(arrays: Mapping[str, Tensor]) -> ClassSums:
    """Return the sums that `packed` turned into arrays, in double precision."""
    gram, moment, counts = (arrays[name].double() for name in (GRAM, MOMENT, COUNTS))
    return ClassSums(symmetric(gram, moment.shape[-1]), moment, counts)


def arrived(arrays: Arrays, device: torch.device) -> ClassSums:
    """Return the sums in a message."""
    return unpacked(
        {name: torch.from_numpy(arrays[name]).to(device) for name in (GRAM, MOMENT, COUNTS)}
    )


def packed_scatter(own: OwnScatter) -> dict[str, Tensor]:
    """Return the scatter as arrays of a message."""
    return {SCATTER: triangle(own.scatter), HOLDERS: own.holders}


def sent_sums(sums: Mapping[str, Tensor], *, masked: bool) -> Arrays:
    """Return what clients with these packed sums send."""
    scatter = packed_scatter(own_scatter(unpacked(sums))) if masked else {}
    return {name: value.float().cpu().numpy() for name, value in {**sums, **scatter}.items()}


def scatter_in(guidance: Guidance, total: ClassSums) -> OwnScatter | None:
    """Return the scatter over all clients, or None if the guidance has none."""
    if SCATTER not in guidance.arrays:
        return None
    scatter, holders = (
        torch.from_numpy(guidance.arrays[name]).to(total.gram) for name in (SCATTER, HOLDERS)
    )
    return OwnScatter(symmetric(scatter, total.gram.shape[-1]), holders)


def total_in(guidance: Guidance, device: torch.device) -> ClassSums | None:
    """Return the sums over all clients, or None if the guidance has none."""
    return arrived(guidance.arrays, device) if GRAM in guidance.arrays else None


def clusters_in(guidance: Guidance, names: Sequence[str], total: ClassSums) -> list[ClassPool]:
    """Return the pool of each of these clients' clusters, or [] if the guidance has none.

    The total takes the place of a missing cluster, and of classes without a sample in the cluster.
    """
    if CLUSTER_MOMENT not in guidance.arrays:
        return []
    moment = total.moment.repeat(len(names), 1, 1)
    counts = total.counts.repeat(len(names), 1)
    row_of = {name: row for row, name in enumerate(guidance.clients)}
    for client, name in enumerate(names):
        if name not in row_of:
            continue
        cluster_moment, cluster_counts = (
            torch.from_numpy(guidance.arrays[array][row_of[name]]).to(total.gram)
            for array in (CLUSTER_MOMENT, CLUSTER_COUNTS)
        )
        has = cluster_counts > 0
        moment[client, has], counts[client, has] = cluster_moment[has], cluster_counts[has]
    return [ClassPool(moment, counts)]


class ClassFit:
    """Fits classifiers to class sums. penalty: the factor of λ. even: whether all classes have the
    same prior.

    steady_from: the position of the first feature that never changes. Earlier features are learned,
    so a client's older sums come from older versions of them. Such sums can differ from the total
    even if the client's classes do not, so they are not used as evidence.
    """

    def __init__(self, penalty: float, even: bool, steady_from: int = 0) -> None:
        self._penalty, self._even, self._steady_from = penalty, even, steady_from

    def of_all(self, total: ClassSums) -> Classifier | None:
        """Return the classifier fitted to all samples, with weight [D, C] and bias [C].

        Return None if the totals give no classifier.
        """
        weight, bias = self._of_all(total)
        return (weight, bias) if weight.isfinite().all() else None

    def of_all_judged(
        self, total: ClassSums, held_out: ClassSums, shares: Sequence[float]
    ) -> Classifier:
        """Return, for each client, the classifier fitted to all but the client's held-out samples.

        shares: see `personal`.
        """
        return _all_finite(
            self._of_all(total.less(held_out.of_client(row), share))
            for row, share in enumerate(_of_clients(shares, held_out))
        )

    def _of_all(self, total: ClassSums) -> Classifier:
        [factor] = precision_factors(total, [self._penalty])
        means = class_means(total.moment, total.counts)
        weight, offset = discriminant(factor, overall_mean(total), means, total.counts > 0)
        return weight, offset + self.prior(total.counts)

    def alone(self, sums: ClassSums, folds: Sequence[Fold], *, plain: bool = False) -> Fits:
        """Return, for each client, the classifier fitted to its own sums alone.

        folds: see `personal`. plain: whether to make only the candidate with the plain penalty.
        """
        return _all_clients(
            self._weighed_alone(sums.of_client(row), [fold.of_client(row) for fold in folds], plain)
            for row in range(len(sums.counts))
        )

    def _weighed_alone(self, sums: ClassSums, folds: Sequence[Fold], plain: bool) -> Fits:
        final, judged = self._alone(sums, plain), []
        for fold in folds:
            removed = fold.removed_from(sums)
            judged.append(final if removed is None else self._alone(sums.less(removed), plain))
        return _weighed(final, judged, sums.counts.new_zeros(1), folds)

    def _alone(self, sums: ClassSums, plain: bool) -> Classifier:
        factors, shrunk = ((1.0,), (1.0,)) if plain else (WELL_KNOWN, SHRUNK)
        means, roots = class_means(sums.moment, sums.counts), self._roots(sums, factors)
        return self._candidates(sums, roots, means, sums.counts, shrunk)

    def _roots(self, spread: ClassSums, factors: Sequence[float]) -> dict[float, Tensor]:
        penalties = [factor * self._penalty for factor in factors]
        return dict(zip(factors, precision_factors(spread, penalties), strict=True))

    def personal(
        self,
        sums: ClassSums,
        total: ClassSums,
        folds: Sequence[Fold],
        *,
        own: OwnScatter | None = None,
        clusters: Sequence[ClassPool] = (),
        shares: Sequence[float] = (),
    ) -> Fits:
        """Return the classifiers of K clients, fitted to their own sums and all clients' sums.

        sums: what the clients sent, which the total and the clusters hold. folds: samples of the
        clients that judge candidates, in any number of parts. own: the scatter over
        all clients around their own class means, if available. clusters: further pools, from each
        client's clusters. shares: for each client, the fraction of its sums that the total holds,
        or () if the total holds all sums.
        """
        own = own if own is not None and self._means_differ(total, own) else None
        spread = total if own is None else around_own_means(total, own)
        roots, fits = self._roots(spread, PENALTIES), []
        # All clients' candidates at once would need much memory.
        for row, share in enumerate(_of_clients(shares, sums)):
            mine, of_row = sums.of_client(row), [fold.of_client(row) for fold in folds]
            pools = [ClassPool(total.moment, total.counts), *(p.of_client(row) for p in clusters)]
            final = self._leaning(mine, spread, roots, pools)
            evidence, judged = self._evidence(mine, spread, pools, share), []
            for fold in of_row:
                removed = fold.removed_from(mine)
                judged.append(
                    final
                    if removed is None
                    else self._leaning_without(removed, mine, total, own, pools, share)
                )
            together = _weighed(final, judged, ETA * evidence, of_row)
            alone = self._weighed_alone(mine, of_row, plain=False)
            fits.append(_mixed(together, alone, mine, of_row))
        return _all_clients(fits)

    def _leaning_without(
        self,
        removed: ClassSums,
        sums: ClassSums,
        total: ClassSums,
        own: OwnScatter | None,
        pools: Sequence[ClassPool],
        share: float,
    ) -> Classifier:
        """Return one client's candidates, fitted without these samples of it."""
        remaining, spread = sums.less(removed), total.less(removed, share)
        if own is not None:
            before, after = own_scatter(sums), own_scatter(remaining)
            spread = around_own_means(spread, own.less(before, share).less(after, -share))
        reduced = [ClassPool(*without(pool, removed, share)) for pool in pools]
        return self._leaning(remaining, spread, self._roots(spread, PENALTIES), reduced)

    def _means_differ(self, total: ClassSums, own: OwnScatter) -> bool:
        """Return whether clients' means of a class differ in the features that never change."""
        first, steady = self._steady_from, total.features_from(self._steady_from)
        if not steady.moment.shape[-1]:
            return False
        return means_differ(steady, own._replace(scatter=own.scatter[..., first:, first:]))

    def _leaning(
        self,
        sums: ClassSums,
        spread: ClassSums,
        roots: Mapping[float, Tensor],
        pools: Sequence[ClassPool],
    ) -> Classifier:
        """Return one client's candidates whose class means lean to these pools.

        roots: the `precision_factors` of the spread for `PENALTIES`. The first pool holds all
        clients.
        """
        _, moment, counts = sums
        frequent, candidates = frequencies(counts, pools[0].counts), []
        for pool in pools:
            pool_means, has = class_means(pool.moment, pool.counts), (pool.counts > 0).double()
            for lean, factors in LEANS:
                weight = lean * has
                leant = moment + weight.unsqueeze(-1) * pool_means
                means = class_means(leant, counts + weight)
                some = {factor: roots[factor] for factor in factors}
                candidates.append(self._candidates(spread, some, means, frequent, SHRUNK))
        return _joined(candidates)

    def _evidence(
        self, sums: ClassSums, spread: ClassSums, pools: Sequence[ClassPool], share: float
    ) -> Tensor:
        """Return the log evidence for each of `_leaning`, which is 0 if all features can change."""
        first, (_, moment, counts) = self._steady_from, sums
        of_lean = [len(factors) * len(SHRUNK) for _, factors in LEANS]
        spread = spread.features_from(first)
        if not spread.moment.shape[-1]:
            return counts.new_zeros(len(pools) * sum(of_lean))
        pooled_moment, pooled_counts, count = share * moment, share * counts, directions(spread)
        logs = []
        for pool in pools:
            # A class that no other client of the cluster has is compared with the total instead.
            shared = pool.counts - pooled_counts > 0.5
            reference = pool.moment.where(shared.unsqueeze(-1), pools[0].moment)
            remainder = (
                (reference - pooled_moment)[..., first:],
                pool.counts.where(shared, pools[0].counts) - pooled_counts,
            )
            for (lean, _), candidates in zip(LEANS, of_lean, strict=True):
                local = moment[..., first:], counts
                log = lean_evidence(local, remainder, spread, lean, count)
                logs.append(log.expand(candidates))
        return torch.cat(logs)

    def prior(self, counts: Tensor) -> Tensor:
        """Return the log prior […, C], in proportion to these counts or equal for all classes."""
        return log_prior((counts > 0).double() if self._even else counts)

    def _candidates(
        self,
        spread: ClassSums,
        roots: Mapping[float, Tensor],
        means: Tensor,
        counts: Tensor,
        shrunk: Sequence[float],
    ) -> Classifier:
        """Return one client's classifiers, for each factor of the penalty and of log-likelihoods.

        spread: the sums that give the covariance. roots: the precision factor for each penalty
        factor. means: [1, C, D]. counts: class frequencies [1, C]. shrunk: the factors of the
        log-likelihoods.
        """
        prior, has, centre = self.prior(counts), counts > 0, overall_mean(spread)
        candidates = []
        for root in roots.values():
            weight, offset = discriminant(root, centre, means, has)
            candidates += [(factor * weight, factor * offset + prior) for factor in shrunk]
        return _joined(candidates)


def frequencies(counts: Tensor, total: Tensor) -> Tensor:
    """Return clients' class counts [K, C] plus one pseudo-sample, split as the total [C] is."""
    return counts + PSEUDO * total / total.sum().clamp(min=1)


def _of_clients(shares: Sequence[float], sums: ClassSums) -> Sequence[float]:
    return shares or [1.0] * len(sums.counts)


def _joined(classifiers: Iterable[Classifier]) -> Classifier:
    """Join classifiers along the axis of clients or candidates."""
    weight, bias = (torch.cat(parts) for parts in zip(*classifiers, strict=True))
    return weight, bias


def _all_clients(fits: Iterable[Fits]) -> Fits:
    """Join the fits of single clients along the axis of K clients."""
    finals, judged = zip(*fits, strict=True)
    return Fits(_all_finite(finals), [_all_finite(fold) for fold in zip(*judged, strict=True)])


def _all_finite(classifiers: Iterable[Classifier]) -> Classifier:
    """Join clients' classifiers, with 0 or the largest number in place of values beyond measure."""
    weight, bias = _joined(classifiers)
    return weight.nan_to_num(), bias.nan_to_num()


def _weighed(
    final: Classifier, judged: Sequence[Classifier], prior: Tensor, folds: Sequence[Fold]
) -> Fits:
    """Return the means of one client's candidates, weighed by prior and likelihood of all folds.

    judged: for each fold, the candidates fitted without its samples. prior: the logarithms of the
    weights before these samples are seen, [M].
    """
    weights = prior.expand(len(final[0]))
    for fold, candidates in zip(folds, judged, strict=True):
        weights = weights + ETA * _log_likelihoods(fold.vectors, candidates)
    weights = weights.softmax(dim=0)
    return Fits(_mean(final, weights), [_mean(candidates, weights) for candidates in judged])


def _mixed(together: Fits, alone: Fits, sums: ClassSums, folds: Sequence[Fold]) -> Fits:
    """Return the mean of one client's mixtures, with each of `SHARES_ALONE`, of its classifiers.

    sums: the client's sums. Samples of the folds weigh the mixtures.
    """
    judging = sum(float(fold.vectors.present.sum()) for fold in folds)
    if judging - float((sums.counts > 0).sum()) < LEAST_JUDGING:
        return together
    shares = sums.counts.new_tensor(SHARES_ALONE)
    weights, judged = -math.log(ODDS_ALONE) * shares, []
    for fold, first, second in zip(folds, together.judged, alone.judged, strict=True):
        removed = fold.removed_from(sums)
        remaining = sums if removed is None else sums.less(removed)
        pair = first, _completed(second, first, remaining.counts)
        judged.append(pair)
        mixtures = _joined(_mixture(*pair, share) for share in shares)
        weights = weights + ETA * _log_likelihoods(fold.vectors, mixtures)
    share = weights.softmax(dim=0) @ shares
    final = _mixture(together.final, _completed(alone.final, together.final, sums.counts), share)
    return Fits(final, [_mixture(*pair, share) for pair in judged])


def _mixture(together: Classifier, alone: Classifier, share: Tensor) -> Classifier:
    weight, bias = (torch.lerp(*parts, share) for parts in zip(together, alone, strict=True))
    return weight, bias


def _completed(alone: Classifier, together: Classifier, counts: Tensor) -> Classifier:
    """Return `alone`, with the columns of `together` for classes that the client lacks.

    counts: the class counts [1, C] that `alone` is fitted to. A classifier gives log-probabilities
    up to a constant, so `alone` is shifted until both have the same mean over the client's classes.
    """
    has, number = (counts > 0).double(), (counts > 0).sum().clamp(min=1)
    weight, bias = (
        torch.where(has > 0, mine + (has * (other - mine)).sum(-1, keepdim=True) / number, other)
        for mine, other in zip(alone, together, strict=True)
    )
    return weight, bias


def _mean(candidates: Classifier, weights: Tensor) -> Classifier:
    """Return the mean of one client's candidates with these weights [M]."""
    weight, bias = (torch.einsum("m...,m->...", part.nan_to_num(), weights) for part in candidates)
    return weight.unsqueeze(0), bias.unsqueeze(0)


def _log_likelihoods(samples: LabelledVectors, candidates: Classifier) -> Tensor:
    """Return the log-likelihood of one client's samples [1, n, D] for each of M candidates, [M]."""
    features, labels, present = samples.features[0].double(), samples.labels, samples.present
    losses = []
    for start in range(0, len(candidates[0]), AT_ONCE):
        weight, bias = (part[start : start + AT_ONCE] for part in candidates)
        scores = torch.einsum("nd,mdc->mnc", features, weight) + bias.unsqueeze(1)
        losses.append(log_loss(scores, labels.expand(len(scores), -1), present))
    return -present.double().sum() * torch.cat(losses).nan_to_num(nan=1e9, posinf=1e9)
