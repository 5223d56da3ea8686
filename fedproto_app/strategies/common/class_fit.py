"""A client's classifier of its own sums and those of others (`maths/class_gaussian.py`).

It has the covariance of all or of clusters, class means between its own and those of all or of its
cluster, and its own class frequencies as prior. How far the means lean to whom and how strong the
penalty is, no client's few validation samples can tell, so its classifier is the mean of many
candidates' log-probabilities. Their weights are how likely the client's own class sums are if its
means differ from the others' as much as the candidate says, and the likelihood of its validation
samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from fedproto_app.core.messages import Arrays, Order
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

# What goes up from each client, and, summed over the clients, comes down.
GRAM, MOMENT, COUNTS = "gram", "moment", "counts"
# What comes down besides, where clusters were found: the products that give the covariance within
# the classes of clusters, once, and for each client of a cluster the cluster's sums.
WITHIN, CLUSTER_MOMENT, CLUSTER_COUNTS = "within", "cluster.moment", "cluster.counts"

WELL_KNOWN = (0.3, 1.0, 3.0)  # of the candidates, factors of the penalty where means are
HARDLY_KNOWN = (3.0, 10.0, 30.0)  # and where they are of a client's own few samples
# Of the candidates: samples of a class that others' means weigh beside its own, and factors.
LEANS = ((1.0, HARDLY_KNOWN), (3.0, HARDLY_KNOWN), (30.0, WELL_KNOWN), (1e6, WELL_KNOWN))
PSEUDO = 1.0  # samples with everybody's class frequencies beside the client's own
ETA = 0.3  # how much validation samples are trusted; 1: as independent ones

Classifier = tuple[Tensor, Tensor]  # weight [K, D, C], bias [K, C]; of all: [D, C] and [C]


class Others(NamedTuple):
    """Whose class means a client's lean to. spread: the sums whose covariance goes with them;
    moment, counts: their classes' sums, [C, D] and [C] for all clients or [K, …] for each."""

    spread: ClassSums
    moment: Tensor
    counts: Tensor


def everybody(total: ClassSums) -> Others:
    """The sums over all clients, for all."""
    return Others(total, total.moment, total.counts)


def sums_shapes(classes: int, width: int) -> dict[str, tuple[int, ...]]:
    """Of a client's sums as they travel: D(D + 1)/2 + C·D + C values."""
    return {GRAM: (triangle_size(width),), MOMENT: (classes, width), COUNTS: (classes,)}


def sums_of_classes(
    sizes: Sizes,
    when: Literal["training", "evaluated"] = "training",
    clip: Literal["", "sums"] = "",
    of_present: str = "",
) -> Sends:
    """What a client declares that sends such sums."""
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
    )


def sample_bound(clip: float) -> float:
    """The most length that a vector, at most `clip` long, adds to its client's sums: clip² to the
    products, clip to its class's sum, 1 to its number."""
    return math.sqrt(clip**4 + clip**2 + 1)


def packed(sums: ClassSums) -> dict[str, Tensor]:
    """[…] each, as they travel."""
    return {GRAM: triangle(sums.gram), MOMENT: sums.moment, COUNTS: sums.counts}


def unpacked(arrays: Mapping[str, Tensor]) -> ClassSums:
    """What `packed` gave, in double precision."""
    gram, moment, counts = (arrays[name].double() for name in (GRAM, MOMENT, COUNTS))
    return ClassSums(symmetric(gram, moment.shape[-1]), moment, counts)


def arrived(arrays: Arrays, device: torch.device) -> ClassSums:
    """The sums in a message."""
    return unpacked(
        {name: torch.from_numpy(arrays[name]).to(device) for name in (GRAM, MOMENT, COUNTS)}
    )


def total_in(order: Order, device: torch.device) -> ClassSums | None:
    """The sums over all clients; None where the order brings none."""
    return arrived(order.arrays, device) if GRAM in order.arrays else None


def clusters_in(order: Order, names: Sequence[str], total: ClassSums) -> list[Others]:
    """The sums of the cluster of each of these clients; none where the order brings none.

    Everybody's stand for them at a client that was told of no cluster, and in classes of which its
    cluster has no sample.
    """
    if WITHIN not in order.arrays:
        return []
    moment = total.moment.repeat(len(names), 1, 1)
    counts = total.counts.repeat(len(names), 1)
    row_of = {name: row for row, name in enumerate(order.guided)}
    for place, row in ((at, row_of[name]) for at, name in enumerate(names) if name in row_of):
        its_moment, its_counts = (
            torch.from_numpy(order.arrays[name][row]).to(total.gram)
            for name in (CLUSTER_MOMENT, CLUSTER_COUNTS)
        )
        known = its_counts > 0
        moment[place, known], counts[place, known] = its_moment[known], its_counts[known]
    within = torch.from_numpy(order.arrays[WITHIN]).to(total.gram)
    spread = ClassSums(symmetric(within, total.gram.shape[-1]), total.moment, total.counts)
    return [Others(spread, moment, counts)]


class ClassFit:
    """The ways to a classifier. penalty: λ's factor; even: whether all classes are as frequent.

    steady_from: features from this one on are the same functions at all times. Those before it may
    have been others when a client's older samples came: sums of them may differ from everybody's
    where the client means the same by a class, so that they are no evidence.
    """

    def __init__(self, penalty: float, even: bool, steady_from: int = 0) -> None:
        self._penalty, self._even, self._steady_from = penalty, even, steady_from

    def of_all(self, total: ClassSums) -> Classifier | None:
        """The classifier of all samples: weight [D, C], bias [C]; None if no samples have these."""
        factor = precision_factor(total, self._penalty)
        means = class_means(total.moment, total.counts)
        weight, offset = discriminant(factor, overall_mean(total), means, total.counts > 0)
        found = weight, offset + self.prior(total.counts)
        return found if weight.isfinite().all() else None

    def alone(self, own: ClassSums, validation: LabelledVectors | None) -> Classifier:
        """Each client's classifier of its own sums alone.

        validation: what weighs candidates of other penalties; None for the plain penalty alone.
        """
        means = class_means(own.moment, own.counts)
        if validation is None:
            [(weight, bias)] = self._candidates(own, (1.0,), means, own.counts)
            return weight.nan_to_num(), bias.nan_to_num()
        candidates = self._candidates(own, WELL_KNOWN, means, own.counts)
        none = own.counts.new_zeros(len(own.counts), len(candidates))
        return _mean(candidates, none, validation)

    def personal(
        self, moment: Tensor, counts: Tensor, others: Sequence[Others], validation: LabelledVectors
    ) -> Classifier:
        """Each client's classifier of its own class sums [K, C, D], [K, C] and those of others, of
        whom the first are all clients."""
        everyone = others[0]
        frequent = frequencies(counts, everyone.counts)
        candidates, evidence = [], []
        for some in others:
            theirs, told = class_means(some.moment, some.counts), (some.counts > 0).double()
            likely = self._evidence((moment, counts), some, everyone)
            for its, (lean, factors) in zip(likely, LEANS, strict=True):
                weight = lean * told  # to their means, where there are any
                leant = moment + weight.unsqueeze(-1) * theirs
                means = class_means(leant, counts + weight)
                candidates += self._candidates(some.spread, factors, means, frequent)
                evidence += [its] * len(factors)
        return _mean(candidates, torch.stack(evidence, dim=1), validation)

    def _evidence(self, own: OfClasses, some: Others, everyone: Others) -> list[Tensor]:
        """Of each lean [K], by the steady features; 0 if none is."""
        first, (moment, counts) = self._steady_from, own
        spread = some.spread.features_from(first)
        if not spread.moment.shape[-1]:
            return [counts.new_zeros(len(counts))] * len(LEANS)
        # A class that no other of a cluster has is compared with everybody's.
        known = some.counts - counts > 0.5
        whole = some.moment.where(known.unsqueeze(-1), everyone.moment)
        rest = (whole - moment)[..., first:], some.counts.where(known, everyone.counts) - counts
        steady, count = moment[..., first:], directions(everyone.spread.features_from(first))
        return [lean_evidence((steady, counts), rest, spread, lean, count) for lean, _ in LEANS]

    def prior(self, counts: Tensor) -> Tensor:
        """[…, C]: the shares of these counts, or the same for all classes."""
        return log_prior((counts > 0).double() if self._even else counts)

    def _candidates(
        self, spread: ClassSums, factors: Sequence[float], means: Tensor, counts: Tensor
    ) -> list[Classifier]:
        """One for each factor of the penalty.

        spread: the sums whose covariance they have. means: [K, C, D]. counts: the classes'
        frequencies [K, C].
        """
        prior, known, centre = self.prior(counts), counts > 0, overall_mean(spread)
        candidates = []
        for factor in factors:
            root = precision_factor(spread, factor * self._penalty)
            weight, offset = discriminant(root, centre, means, known)
            candidates.append((weight, offset + prior))
        return candidates


def frequencies(own: Tensor, total: Tensor) -> Tensor:
    """[K, C] clients' class counts, and a sample more that has everybody's [C]."""
    return own + PSEUDO * total / total.sum().clamp(min=1)


def _mean(
    candidates: Sequence[Classifier], evidence: Tensor, validation: LabelledVectors
) -> Classifier:
    """The mean of all, weighed by their evidence [K, candidates] and by the likelihood of the
    validation samples."""
    parts = (evidence + _likelihoods(validation, candidates)).softmax(dim=1)
    weight, bias = (torch.zeros_like(one) for one in candidates[0])
    for number, (its_weight, its_bias) in enumerate(candidates):
        weight += parts[:, number, None, None] * its_weight.nan_to_num()
        bias += parts[:, number, None] * its_bias.nan_to_num()
    return weight, bias


def _likelihoods(validation: LabelledVectors, candidates: Sequence[Classifier]) -> Tensor:
    """[K, candidates] the logarithm of that of the validation samples, as far as it is trusted."""
    features, labels, present = validation.features.double(), validation.labels, validation.present
    losses = [
        log_loss(features @ weight + bias.unsqueeze(1), labels, present)
        for weight, bias in candidates
    ]
    errors = torch.stack(losses, dim=1).nan_to_num(nan=1e9, posinf=1e9)
    return -ETA * present.double().sum(dim=1, keepdim=True) * errors
