"""Fit a client's classifier from its class sums and the sums of other clients.

The classifier is a discriminant (`maths/class_gaussian.py`). Its covariance is pooled over all
clients or within clusters, its class means lie between the client's and the pooled ones, and its
prior is the client's class frequencies. A client's validation set is too small to choose the mixing
weights and the penalty, so the classifier is the mean of many candidates' log-probabilities. A
candidate's weight is the likelihood of the client's class sums, if its means differ from the pooled
means as much as the candidate assumes, times the likelihood of the validation samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.class_gaussian import (
    ClassSums,
    LabelledVectors,
    OfClasses,
    class_means,
    directions,
    discriminant,
    lean_evidence,
    log_loss,
    log_prior,
    overall_mean,
    precision_factor,
)
from fedproto_app.maths.ridge import symmetric, triangle, triangle_size

# Each client sends these sums and gets back their totals over the clients.
GRAM, MOMENT, COUNTS = "gram", "moment", "counts"
# With clusters, clients also get the products that give the covariance within the classes of
# clusters, and each client of a cluster gets the cluster's sums.
WITHIN, CLUSTER_MOMENT, CLUSTER_COUNTS = "within", "cluster.moment", "cluster.counts"

WELL_KNOWN = (0.3, 1.0, 3.0)  # factors of the penalty for means of many samples
HARDLY_KNOWN = (3.0, 10.0, 30.0)  # and for means that rest on a client's own few samples
# Candidates: how many samples of a class the pooled mean counts for, and factors of the penalty.
LEANS = ((1.0, HARDLY_KNOWN), (3.0, HARDLY_KNOWN), (30.0, WELL_KNOWN), (1e6, WELL_KNOWN))
PSEUDO = 1.0  # pseudo-samples with the overall class frequencies, added to the client's counts
ETA = 0.3  # how much validation samples are trusted; 1: as if they were independent

Classifier = tuple[Tensor, Tensor]  # weight [K, D, C], bias [K, C]; pooled: [D, C] and [C]


class ClassPool(NamedTuple):
    """Class sums of a group of clients; a client's class means are drawn to the group's means.

    spread: sums that give the covariance. moment, counts: sums by class, [C, D] and [C] if the
    group is all clients, [K, …] if each client has its own group.
    """

    spread: ClassSums
    moment: Tensor
    counts: Tensor


def everybody(total: ClassSums) -> ClassPool:
    """Return the pool of all clients."""
    return ClassPool(total, total.moment, total.counts)


def sums_shapes(classes: int, width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a client's packed sums: D(D + 1)/2 + C·D + C values."""
    return {GRAM: (triangle_size(width),), MOMENT: (classes, width), COUNTS: (classes,)}


def sums_of_classes(
    sizes: Sizes,
    when: Literal["training", "evaluated"] = "training",
    clip: Literal["", "sums"] = "",
    of_present: str = "",
    passed_on: str = "",
) -> Sends:
    """Return the declaration of a client that sends class sums."""
    return Sends(
        "sums",
        sums_shapes(sizes.classes, sizes.width),
        combine="sum",
        remember="latest",
        of_present=of_present,
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
    """Return the sums as arrays of a message, […] each; the products as a triangle."""
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


def total_in(guidance: Guidance, device: torch.device) -> ClassSums | None:
    """Return the sums over all clients; None if the guidance has none."""
    return arrived(guidance.arrays, device) if GRAM in guidance.arrays else None


def clusters_in(guidance: Guidance, names: Sequence[str], total: ClassSums) -> list[ClassPool]:
    """Return the pool of each of these clients' clusters; empty if the guidance has none.

    The total takes the place of a missing cluster, and of classes without a sample in the cluster.
    """
    if WITHIN not in guidance.arrays:
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
    within = torch.from_numpy(guidance.arrays[WITHIN]).to(total.gram)
    spread = ClassSums(symmetric(within, total.gram.shape[-1]), total.moment, total.counts)
    return [ClassPool(spread, moment, counts)]


class ClassFit:
    """Fits classifiers of class sums. penalty: λ's factor; even: whether all classes have the same
    prior.

    steady_from: the first of the features that never change. Earlier features are learned, and a
    client's older sums come from older versions of them. Such sums can differ from the total even
    if the client's classes do not, so they are not used as evidence.
    """

    def __init__(self, penalty: float, even: bool, steady_from: int = 0) -> None:
        self._penalty, self._even, self._steady_from = penalty, even, steady_from

    def of_all(self, total: ClassSums) -> Classifier | None:
        """Return the classifier of all samples: weight [D, C], bias [C].

        None if the sums cannot come from samples.
        """
        factor = precision_factor(total, self._penalty)
        means = class_means(total.moment, total.counts)
        weight, offset = discriminant(factor, overall_mean(total), means, total.counts > 0)
        classifier = weight, offset + self.prior(total.counts)
        return classifier if weight.isfinite().all() else None

    def alone(self, sums: ClassSums, validation: LabelledVectors | None) -> Classifier:
        """Return each client's classifier of its own sums alone.

        validation: weighs candidates with several penalties; None for the plain penalty alone.
        """
        means = class_means(sums.moment, sums.counts)
        if validation is None:
            [(weight, bias)] = self._candidates(sums, (1.0,), means, sums.counts)
            return weight.nan_to_num(), bias.nan_to_num()
        candidates = self._candidates(sums, WELL_KNOWN, means, sums.counts)
        none = sums.counts.new_zeros(len(sums.counts), len(candidates))
        return _mean(candidates, none, validation)

    def personal(
        self,
        moment: Tensor,
        counts: Tensor,
        pools: Sequence[ClassPool],
        validation: LabelledVectors,
        shares: Sequence[float] = (),
    ) -> Classifier:
        """Return each client's classifier of its class sums [K, C, D], [K, C] and the pools.

        The first pool holds all clients. shares: the share of each client's sums that the pools
        hold; () for all.
        """
        total = pools[0]
        frequent = frequencies(counts, total.counts)
        candidates, evidence = [], []
        for pool in pools:
            pool_means, has = class_means(pool.moment, pool.counts), (pool.counts > 0).double()
            likely = self._evidence((moment, counts), pool, total, shares)
            for lean_weight, (lean, factors) in zip(likely, LEANS, strict=True):
                weight = lean * has
                leant = moment + weight.unsqueeze(-1) * pool_means
                means = class_means(leant, counts + weight)
                candidates += self._candidates(pool.spread, factors, means, frequent)
                evidence += [lean_weight] * len(factors)
        return _mean(candidates, torch.stack(evidence, dim=1), validation)

    def _evidence(
        self, sums: OfClasses, pool: ClassPool, total: ClassPool, shares: Sequence[float]
    ) -> list[Tensor]:
        """Return the log evidence for each lean, [K]; 0 if no feature is steady."""
        first, (moment, counts) = self._steady_from, sums
        spread = pool.spread.features_from(first)
        if not spread.moment.shape[-1]:
            return [counts.new_zeros(len(counts))] * len(LEANS)
        factors = counts.new_tensor(shares or [1.0] * len(counts))[:, None]
        pooled_moment, pooled_counts = factors[..., None] * moment, factors * counts
        # A class that no other client of the cluster has is compared with the total.
        shared = pool.counts - pooled_counts > 0.5
        reference = pool.moment.where(shared.unsqueeze(-1), total.moment)
        remainder = (
            (reference - pooled_moment)[..., first:],
            pool.counts.where(shared, total.counts) - pooled_counts,
        )
        steady, count = moment[..., first:], directions(total.spread.features_from(first))
        return [
            lean_evidence((steady, counts), remainder, spread, lean, count) for lean, _ in LEANS
        ]

    def prior(self, counts: Tensor) -> Tensor:
        """Return the log prior […, C]: the shares of these counts, or equal for all classes."""
        return log_prior((counts > 0).double() if self._even else counts)

    def _candidates(
        self, spread: ClassSums, factors: Sequence[float], means: Tensor, counts: Tensor
    ) -> list[Classifier]:
        """Return a classifier for each factor of the penalty.

        spread: sums that give the covariance. means: [K, C, D]. counts: class frequencies [K, C].
        """
        prior, has, centre = self.prior(counts), counts > 0, overall_mean(spread)
        candidates = []
        for factor in factors:
            root = precision_factor(spread, factor * self._penalty)
            weight, offset = discriminant(root, centre, means, has)
            candidates.append((weight, offset + prior))
        return candidates


def frequencies(counts: Tensor, total: Tensor) -> Tensor:
    """Return clients' class counts [K, C] plus a pseudo-sample with the overall shares [C]."""
    return counts + PSEUDO * total / total.sum().clamp(min=1)


def _mean(
    candidates: Sequence[Classifier], evidence: Tensor, validation: LabelledVectors
) -> Classifier:
    """Return the candidates' mean, weighted by evidence [K, candidates] and validation likelihood.

    The evidence is logarithmic.
    """
    shares = (evidence + _likelihoods(validation, candidates)).softmax(dim=1)
    mean_weight, mean_bias = (torch.zeros_like(tensor) for tensor in candidates[0])
    for number, (weight, bias) in enumerate(candidates):
        mean_weight += shares[:, number, None, None] * weight.nan_to_num()
        mean_bias += shares[:, number, None] * bias.nan_to_num()
    return mean_weight, mean_bias


def _likelihoods(validation: LabelledVectors, candidates: Sequence[Classifier]) -> Tensor:
    """Return η times the log-likelihood of the validation samples, [K, candidates]."""
    features, labels, present = validation.features.double(), validation.labels, validation.present
    losses = [
        log_loss(features @ weight + bias.unsqueeze(1), labels, present)
        for weight, bias in candidates
    ]
    errors = torch.stack(losses, dim=1).nan_to_num(nan=1e9, posinf=1e9)
    return -ETA * present.double().sum(dim=1, keepdim=True) * errors
