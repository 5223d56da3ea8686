"""Clusters of clients by the meaning of their classes: by hand, and against slower methods."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from fedproto_app.maths.class_gaussian import ClassSums, LabelledVectors, class_sums
from fedproto_app.strategies.analytic.classes_strategy import (
    class_clusters,
    evidence,
    merged,
    within_clusters,
)

CLASSES, WIDTH = 4, 12
Shape = tuple[int, int, int]  # classes, clients, samples of each


def test_evidence_by_hand() -> None:
    # One sample at 2, means with variance 3: ½·4·3/4 − ½·ln 4. No sample of a class says nothing.
    points = torch.tensor([[[2.0], [0.0]]]).double()
    actual = evidence(points, torch.tensor([[1.0, 0.0]]).double(), torch.tensor([3.0]).double())
    assert actual.tolist() == [[pytest.approx(1.5 - math.log(4) / 2), 0]]


def test_evidence_is_the_ratio_of_two_normal_densities() -> None:
    samples = np.array([0.3, -1.2, 2.0])
    ours = evidence(
        torch.tensor([[samples.sum()]]), torch.tensor([3.0]).double(), torch.tensor([0.7]).double()
    )
    common = np.eye(3) + 0.7 * np.ones((3, 3))  # of samples that share a drawn mean
    reference = multivariate_normal(cov=common).logpdf(samples) - multivariate_normal(
        cov=np.eye(3)
    ).logpdf(samples)
    assert float(ours) == pytest.approx(reference)


def best_pair_by_pair(points: Tensor, counts: Tensor, variances: Tensor) -> list[set[int]]:
    """The slow way: look at all pairs after each merge."""
    groups = [{row} for row in range(len(points))]

    def score(group: set[int]) -> float:
        rows = sorted(group)
        log_evidence = evidence(points[rows].sum(0), counts[rows].sum(0), variances)
        return float(log_evidence.sum()) + math.lgamma(len(rows))

    while len(groups) > 1:
        gain, first, second = max(
            (score(a | b) - score(a) - score(b), i, j)
            for i, a in enumerate(groups)
            for j, b in enumerate(groups[:i])
        )
        if gain < 0:
            break
        groups[second] |= groups.pop(first)
    return groups


@pytest.mark.parametrize("seed", range(6))
def test_merging_finds_what_looking_at_all_pairs_finds(seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(3, CLASSES, 2, generator=draws).double()
    counts = torch.randint(0, 9, (14, CLASSES), generator=draws).double()
    noise = torch.randn(14, CLASSES, 2, generator=draws).double() * counts.sqrt().unsqueeze(-1)
    points = centres[torch.arange(14) % 3] * counts.unsqueeze(-1) + noise
    variances = torch.tensor([4.0, 1.0]).double()
    labels = merged(points, counts, variances)
    clusters = {
        frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())
    }
    assert clusters == set(map(frozenset, best_pair_by_pair(points, counts, variances)))


def with_conventions(
    clients: int, conventions: int, samples: int, classes: int = CLASSES, of_a_client: int = 0
) -> LabelledVectors:
    """Client k calls the classes as k modulo `conventions` others do: each a step further on.

    of_a_client: how many classes it has, 0 for all.
    """
    draws = torch.Generator().manual_seed(classes + clients)
    shapes = 3 * torch.randn(classes, WIDTH, generator=draws)
    first = torch.arange(clients).unsqueeze(1) if of_a_client else 0
    true = (
        first + torch.randint(0, of_a_client or classes, (clients, samples), generator=draws)
    ) % classes
    features = shapes[true] + torch.randn(clients, samples, WIDTH, generator=draws)
    called = (true + (torch.arange(clients) % conventions).unsqueeze(1)) % classes
    return LabelledVectors(features, called, torch.ones(clients, samples))


def clusters_of(vectors: LabelledVectors, classes: int = CLASSES) -> list[int]:
    sums = class_sums(vectors, classes)
    return class_clusters(sums.gram.sum(0), sums.moment, sums.counts, 1.0).tolist()


SHAPES = [(4, 12, 10), (3, 60, 50), (10, 30, 20), (10, 30, 12)]
CASES = [(shape, conventions) for shape in SHAPES for conventions in (1, 2, 3)]
CASES += [(shape, names) for shape in [(2, 30, 21), (2, 100, 51)] for names in (1, 2)]


@pytest.mark.parametrize(("shape", "conventions"), CASES)
def test_it_finds_who_calls_the_classes_alike(shape: Shape, conventions: int) -> None:
    """Two classes have two names or one."""
    classes, clients, samples = shape
    labels = clusters_of(with_conventions(clients, conventions, samples, classes), classes)
    assert labels == [client % conventions for client in range(clients)]


@pytest.mark.parametrize("of_a_client", [1, 2])
def test_clients_of_other_classes_are_not_parted_by_that(of_a_client: int) -> None:
    assert not any(clusters_of(with_conventions(30, 1, 20, 10, of_a_client), 10))


def test_the_covariance_is_that_around_the_means_of_each_clusters_classes() -> None:
    vectors = with_conventions(6, 2, 30)
    sums = class_sums(vectors, CLASSES)
    total = ClassSums(*(part.sum(dim=0) for part in sums))
    clusters = [slice(0, None, 2), slice(1, None, 2)]
    moments = torch.stack([sums.moment[rows].sum(0) for rows in clusters])
    counts = torch.stack([sums.counts[rows].sum(0) for rows in clusters])
    adjusted = within_clusters(total, moments, counts)
    ours = adjusted.gram - (total.moment / total.counts.unsqueeze(1)).T @ total.moment
    reference = torch.zeros(WIDTH, WIDTH).double()
    for rows in clusters:
        features, labels = vectors.features[rows].double(), vectors.labels[rows]
        for label in range(CLASSES):
            class_features = features[labels == label]
            reference += (class_features - class_features.mean(0)).T @ (
                class_features - class_features.mean(0)
            )
    torch.testing.assert_close(ours, reference)


def test_a_liar_is_alone_and_parts_nobody_else() -> None:
    """Its classes lie where nobody's do, each in a direction of its own."""
    sums = class_sums(with_conventions(9, 1, 20), CLASSES)
    counts, moment = sums.counts.clone(), sums.moment.clone()
    counts[0] = 50
    moment[0] = 50 * 30 * torch.eye(CLASSES, WIDTH).double()
    gram = sums.gram[1:].sum(0) + 50 * 900 * CLASSES * torch.eye(WIDTH).double()
    assert class_clusters(gram, moment, counts, 1.0).tolist() == [0] + [1] * 8


@pytest.mark.parametrize(
    "counts", [torch.zeros(3, CLASSES), torch.eye(CLASSES)[:1], torch.eye(CLASSES)]
)
def test_what_does_not_differ_is_one(counts: Tensor) -> None:
    """No samples, one client's, and equal samples to which each client gives another label."""
    moments = counts.unsqueeze(-1) * torch.ones(WIDTH)
    gram = counts.sum() * torch.ones(WIDTH, WIDTH)
    labels = class_clusters(gram.double(), moments.double(), counts.double(), 1.0)
    assert not labels.any()


def test_sums_that_no_samples_have_part_nobody() -> None:
    sums = class_sums(with_conventions(6, 2, 10), CLASSES)
    gram = torch.zeros(WIDTH, WIDTH).double()
    assert not class_clusters(gram, sums.moment, sums.counts, 1.0).any()
