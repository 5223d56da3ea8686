"""Similarities, clusters and their numbers by hand, and scipy's and sklearn's answers."""

from __future__ import annotations

from itertools import permutations
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform
from sklearn.metrics import silhouette_score
from sklearn.metrics.pairwise import cosine_similarity

from fedproto_app.maths import clustering
from fedproto_app.maths.clustering import (
    ABSENT,
    HeadSimilarity,
    agglomerate,
    agglomerate_by_silhouette,
    closeness,
    clusters_of_before,
    head_similarity,
    match_labels,
    similarity,
)

# Clients 0 and 2 against clients 1, 3 and 4.
TWO_GROUPS = np.array(
    [
        [1.0, 0.1, 0.9, 0.2, 0.0],
        [0.1, 1.0, 0.1, 0.8, 0.7],
        [0.9, 0.1, 1.0, 0.1, 0.1],
        [0.2, 0.8, 0.1, 1.0, 0.6],
        [0.0, 0.7, 0.1, 0.6, 1.0],
    ],
    np.float32,
)


def grouped_heads(sizes: list[int], spread: float = 0.5) -> NDArray[np.float32]:
    """Heads [N, 30] around one random centre a group, the groups' clients mixed."""
    generator = np.random.default_rng(0)
    centres = np.repeat(generator.normal(size=(len(sizes), 30)), sizes, axis=0)
    heads = centres + spread * generator.normal(size=centres.shape)
    return generator.permutation(heads).astype(np.float32)


def test_cosines_by_hand() -> None:
    heads = np.array([[3, 0], [0, 2], [-1, 0], [1, 1]], np.float32)
    half = np.sqrt(0.5)
    expected = [[1, 0, -1, half], [0, 1, 0, half], [-1, 0, 1, -half], [half, half, -half, 1]]
    np.testing.assert_allclose(similarity(heads, "cosine"), expected, rtol=1e-7)
    zeros = np.array([[0, 0], [1, 2], [0, 0]], np.float32)  # a head of zeros is only like itself
    assert similarity(zeros, "cosine").tolist() == np.eye(3).tolist()


def test_centred_cosines_are_those_of_the_deviations_from_the_mean_head() -> None:
    """Deviations from (100, 101): (1, 0), (−1, 0), (0, 2), (0, −2)."""
    heads = np.array([[101, 101], [99, 101], [100, 103], [100, 99]], np.float32)
    expected = [[1, -1, 0, 0], [-1, 1, 0, 0], [0, 0, 1, -1], [0, 0, -1, 1]]
    np.testing.assert_allclose(similarity(heads, "centred-cosine"), expected, atol=1e-7)
    assert similarity(heads, "cosine").min() > 0.99


@pytest.mark.parametrize("heads", [np.full((3, 4), 0.1), np.ones((1, 4))])
def test_equal_heads_have_no_deviation_to_compare(heads: NDArray[np.float64]) -> None:
    centred = similarity(heads.astype(np.float32), "centred-cosine")
    assert centred.tolist() == np.eye(len(heads)).tolist()


def test_similarity_is_symmetric_bounded_and_one_on_the_diagonal_over_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seven rows a block and 30 clients, heads of tiny and huge length, some of them parallel."""
    monkeypatch.setattr(clustering, "BLOCK", 7)
    heads = grouped_heads([10, 10, 10])
    heads[3], heads[20] = heads[11] * 1e15, heads[11] * -1e-15
    matrix = similarity(heads, "cosine")
    assert matrix.dtype == np.float32
    assert np.array_equal(matrix, matrix.T)
    assert (matrix.diagonal() == 1).all()
    assert np.abs(matrix).max() == 1
    assert matrix[3, 11] == 1
    assert matrix[3, 20] == -1
    np.testing.assert_allclose(matrix, cosine_similarity(heads.astype(np.float64)), atol=1e-7)


def test_merges_follow_the_average_of_the_similarities() -> None:
    """0-2 merge first, then 1-3, and 4 joins them at the average of 0.7 and 0.6 last."""
    assert agglomerate(TWO_GROUPS, 4).tolist() == [0, 1, 0, 2, 3]
    assert agglomerate(TWO_GROUPS, 3).tolist() == [0, 1, 0, 1, 2]
    assert agglomerate(TWO_GROUPS, 2).tolist() == [0, 1, 0, 1, 1]
    assert agglomerate(TWO_GROUPS[::-1, ::-1], 2).tolist() == [0, 0, 1, 0, 1]
    assert agglomerate(TWO_GROUPS, 2).dtype == np.int64


@pytest.mark.parametrize("clusters", range(1, 8))
def test_ties_still_give_exactly_the_number_of_clusters(clusters: int) -> None:
    """Seven clients all equally alike: a cut at a height could only give 1 or 7."""
    labels = agglomerate(np.full((7, 7), 0.25, np.float32), clusters)
    assert len(set(labels)) == labels.max() + 1 == clusters


@pytest.mark.parametrize(("clients", "clusters"), [(0, 3), (1, 1), (1, 3), (2, 3), (3, 3)])
def test_few_clients_are_a_cluster_each(clients: int, clusters: int) -> None:
    assert agglomerate(np.eye(clients, dtype=np.float32), clusters).tolist() == [*range(clients)]


def test_the_silhouette_finds_the_groups() -> None:
    assert agglomerate_by_silhouette(TWO_GROUPS).tolist() == [0, 1, 0, 1, 1]
    matrix = similarity(grouped_heads([6, 9, 4, 11]), "cosine")
    assert agglomerate_by_silhouette(matrix).tolist() == agglomerate(matrix, 4).tolist()


def test_the_silhouette_takes_the_best_number_up_to_the_most() -> None:
    matrix = similarity(grouped_heads([6, 9, 4, 11], spread=2), "cosine")
    distance = 1 - matrix
    scores = {
        clusters: silhouette_score(distance, agglomerate(matrix, clusters), metric="precomputed")
        for clusters in range(2, 30)
    }
    for limit in (2, 3, 29, 1000):
        best = max(range(2, min(limit, 29) + 1), key=lambda c: scores[c])
        assert agglomerate_by_silhouette(matrix, limit).max() + 1 == best


@pytest.mark.parametrize("clients", [0, 1, 2, 5])
def test_without_a_difference_there_is_one_cluster(clients: int) -> None:
    alike = np.ones((clients, clients), np.float32)
    assert agglomerate_by_silhouette(alike).tolist() == [0] * clients


def test_the_silhouette_bears_a_diagonal_and_entries_rounded_to_above_one() -> None:
    rounded = np.where(TWO_GROUPS == 1, np.float32(1 + 2e-7), TWO_GROUPS)
    rounded[0, 2] = rounded[2, 0] = 1 + 2e-7
    assert agglomerate_by_silhouette(rounded).tolist() == [0, 1, 0, 1, 1]


@pytest.mark.parametrize("kind", get_args(HeadSimilarity))
@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_a_row_of_any_size_gives_a_finite_similarity(kind: HeadSimilarity, scale: float) -> None:
    """The square of 1e30 overflows float32."""
    heads = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
    heads[2, 1] *= np.float32(scale)
    similarities = head_similarity(heads, kind, np.ones(3))
    assert np.isfinite(similarities).all()
    assert np.abs(similarities).max() <= 1


def test_class_norms_compare_which_classes_heads_know() -> None:
    """Two classes, D = 1: the same rows are large in the first two heads, whatever their signs."""
    heads = np.array(
        [[[3, 4], [0, 1]], [[-4, 3], [1, 0]], [[0, 1], [-3, 4]], [[1, 0], [4, 3]]], np.float32
    )
    together = np.kron(np.eye(2), np.ones((2, 2)))
    np.testing.assert_allclose(head_similarity(heads, "class-norms"), 2 * together - 1, atol=1e-6)
    flat = heads.reshape(4, 4)
    assert np.array_equal(head_similarity(heads, "cosine"), similarity(flat, "cosine"))


def test_predictions_compare_what_heads_make_of_the_probe() -> None:
    """At (1, 2) they make 3, 3 and 5 with other weights: distances 0, 2, 2, so W = e^(−½)."""
    heads = np.array([[[1, 1, 0]], [[3, -1, 2]], [[0, 2, 1]]], np.float32)
    far = np.exp(-0.5)
    expected = [[1, 1, far], [1, 1, far], [far, far, 1]]
    probe = np.array([1.0, 2.0])
    np.testing.assert_allclose(head_similarity(heads, "predictions", probe), expected, rtol=1e-6)
    assert head_similarity(heads[:2], "predictions", probe).tolist() == [[1, 1], [1, 1]]
    with pytest.raises(ValueError, match="probe = None: missing"):
        head_similarity(heads, "predictions")


def test_closeness_is_not_ruled_by_one_that_is_far_away() -> None:
    points = np.array([[0.0, 0], [0, 1], [3, 0], [0, 2], [4, 4], [1e6, -1e6]])
    assert np.array_equal(closeness(points), closeness(points).T)
    liar = np.concatenate([points[:-1], [[-1e30, 1e30]]])
    assert np.array_equal(closeness(points)[:5, :5], closeness(liar)[:5, :5])
    assert closeness(liar)[5].tolist() == [0, 0, 0, 0, 0, 1]


def symmetric(clients: int, seed: int, levels: int | None = None) -> NDArray[np.float32]:
    """Random similarities of so many levels, so that many are equal."""
    draw = np.random.default_rng(seed).uniform(-1, 1, (clients, clients)).astype(np.float32)
    upper = np.triu(np.round(draw * levels) / levels if levels else draw, 1).astype(np.float32)
    return upper + upper.T + np.eye(clients, dtype=np.float32)


@pytest.mark.parametrize("levels", [None, 1, 3, 16])
def test_clusters_are_those_of_scipys_average_linkage(levels: int | None) -> None:
    """Also where distances are equal, and the order of the merges decides."""
    similar = symmetric(40, 7, levels)
    apart = (1 - similar).astype(np.float64)
    groups = {client: frozenset([client]) for client in range(40)}
    for number, (first, second, *_) in enumerate(
        linkage(squareform(apart, checks=False), "average")
    ):
        groups[40 + number] = groups.pop(int(first)) | groups.pop(int(second))
        labels = agglomerate(similar, len(groups))
        clusters = [np.flatnonzero(labels == label).tolist() for label in range(len(groups))]
        assert set(map(frozenset, clusters)) == set(groups.values())


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_no_number_is_refused(broken: float) -> None:
    similar = symmetric(5, 1)
    similar[1, 2] = similar[2, 1] = broken
    with pytest.raises(ValueError, match="must contain only finite values"):
        agglomerate(similar, 2)


def match(previous: list[int], current: list[int], clusters: int) -> list[int]:
    return match_labels(np.array(previous, int), np.array(current, int), clusters).tolist()


@pytest.mark.parametrize(
    ("previous", "current", "clusters", "matched"),
    [
        # The greatest total overlap decides: the first cluster shares 3 with 0 and 2 with 1, the
        # second 2 with 0, and 2 + 2 beats 3 + 0.
        ([0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1], 2, [1, 1, 1, 1, 1, 0, 0]),
        # A client that moves does not move its cluster.
        ([0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0], 2, [0, 0, 0, 0, 1, 1]),
        # Absent clients do not vote: by those present in both rounds the first cluster is 1.
        ([1, -1, -1, 0, 0, 1], [0, 0, 0, 1, -1, -1], 2, [1, 1, 1, 0, -1, -1]),
        # The first clusters are numbered by first appearance.
        ([-1] * 4, [2, 0, 2, 1], 3, [0, 1, 0, 2]),
        # A new cluster takes a number that no client had in the last round …
        ([0, 0, 2, 2, 2, -1], [0, 0, 1, 1, 2, 2], 5, [0, 0, 2, 2, 1, 1]),
        ([0, 0, 1, 1, -1], [0, 0, 0, 0, 1], 3, [0, 0, 0, 0, 2]),
        # … and if all are taken, the number of a cluster which ended.
        ([0, 0, 1, 1, -1], [0, 0, 0, 0, 1], 2, [0, 0, 0, 0, 1]),
        ([0, 1], [-1, -1], 2, [-1, -1]),
        ([], [], 2, []),
    ],
)
def test_matching_by_hand(
    previous: list[int], current: list[int], clusters: int, matched: list[int]
) -> None:
    assert match(previous, current, clusters) == matched


def test_numbers_that_do_not_suffice_are_refused() -> None:
    with pytest.raises(ValueError, match="3 clusters"):
        match([0, 0, 0], [0, 1, 2], 2)
    with pytest.raises(ValueError, match="labels"):
        match([0, 5, 0], [0, 1, 1], 2)


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), max_size=12), st.randoms())
def test_matching_keeps_the_clusters_and_overlaps_at_most(pairs: list, random) -> None:
    previous = [first for first, _ in pairs]
    current = [second for _, second in pairs]
    matched = match(previous, current, 4)
    renamed = dict(zip(current, matched, strict=True))
    assert [renamed[label] for label in current] == matched  # one number a cluster …
    assert len(set(renamed.values())) == len(renamed)  # … and one cluster a number
    assert renamed.get(-1, -1) == -1
    assert set(matched) <= {-1, 0, 1, 2, 3}

    def overlap(labels: list[int]) -> int:
        return sum(a == b != -1 for a, b in zip(previous, labels, strict=True))

    best = max(
        overlap([names[label] if label >= 0 else -1 for label in current])
        for names in permutations(range(4))
    )
    assert overlap(matched) == best

    names = random.sample(range(4), 4)  # other numbers for the same clusters, also where they tie
    assert match(previous, [names[c] if c >= 0 else -1 for c in current], 4) == matched


def test_those_who_were_not_there_before_are_clusters_of_their_own() -> None:
    assert clusters_of_before([4, ABSENT, 2, 4, ABSENT]).tolist() == [0, 1, 2, 0, 3]
    assert clusters_of_before([ABSENT, ABSENT]).tolist() == [0, 1]
