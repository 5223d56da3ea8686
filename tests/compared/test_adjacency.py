"""Weights of edges, normalisation and communities, by hand and against other libraries."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from fedproto_compared.common.adjacency import (
    communities,
    normalised,
    weights_of_places,
    weights_of_profiles,
)


def adjacency_of(edges: list[tuple[int, int]], vertices: int) -> np.ndarray:
    adjacency = np.zeros((vertices, vertices), np.float32)
    for source, target in edges:
        adjacency[source, target] = adjacency[target, source] = 1
    return adjacency


def test_places_far_apart_have_no_edge() -> None:
    """On a line at 0, 1 and 4: distances 1, 3, 4, their mean 8/3, variance 14/9."""
    weights = weights_of_places(np.array([[0.0, 0.0], [1.0, 0.0], [4.0, 0.0]]))
    assert weights[0, 1] == pytest.approx(np.exp(-9 / 14))
    assert weights[1, 2] == weights[0, 2] == 0  # exp(−81/14) is below 0.1
    assert (weights == weights.T).all()
    assert not weights.diagonal().any()


@pytest.mark.parametrize(
    ("places", "weight"), [([[0, 0], [3, 4]], np.exp(-1)), ([[1, 1], [1, 1]], 1.0)]
)
def test_distances_that_are_all_equal_are_their_own_measure(
    places: list[list[float]], weight: float
) -> None:
    weights = weights_of_places(np.array(places, dtype=np.float64))
    assert weights[0, 1] == pytest.approx(weight)
    assert weights_of_places(np.zeros((1, 2))).tolist() == [[0.0]]
    assert weights_of_places(np.zeros((0, 2))).shape == (0, 0)


def test_profiles_are_joined_with_the_most_alike() -> None:
    """Correlations with the first: 1, ½ (as of 1 2 3 and 1 3 2), −1. The last is constant."""
    profiles = np.array([[1, 2, 3], [2, 4, 6], [1, 3, 2], [3, 2, 1], [5, 5, 5]], dtype=np.float64)
    weights = weights_of_profiles(profiles, 4)
    expected = np.corrcoef(profiles[:4])
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(weights[:4, :4], np.maximum(expected, 0), atol=1e-6)
    assert weights[0, 2] == pytest.approx(0.5)
    assert not weights[4].any()
    nearest = weights_of_profiles(profiles, 1)
    assert nearest[0, 1] == pytest.approx(1)
    assert nearest[0, 2] == nearest[2, 0] == pytest.approx(0.5)  # the third chose the first
    assert nearest[1, 2] == 0


def test_neighbours_are_the_same_however_many_are_looked_at_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profiles = np.random.default_rng(0).normal(size=(23, 6))
    profiles[7] = profiles[3]
    at_once = weights_of_profiles(profiles, 4)
    monkeypatch.setattr("fedproto_compared.common.adjacency.BLOCK", 5)
    np.testing.assert_allclose(weights_of_profiles(profiles, 4), at_once, atol=1e-6)
    assert ((at_once > 0).sum(axis=1) >= 1).all()
    assert weights_of_profiles(np.ones((1, 6)), 8).tolist() == [[0.0]]


def test_the_normalised_path_of_three() -> None:
    """systems.md's check: the path a–b–c, X = (1, 0, 0) → (½, 1/√6, 0)."""
    path = normalised(adjacency_of([(0, 1), (1, 2)], 3))
    np.testing.assert_allclose(path @ [1, 0, 0], [0.5, 1 / np.sqrt(6), 0], atol=1e-6)
    assert normalised(np.zeros((1, 1), np.float32)).tolist() == [[1.0]]


def test_the_communities_of_two_triangles_joined_by_an_edge() -> None:
    edges = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5), (2, 3)]
    weights = adjacency_of(edges, 7)
    labels = communities(weights, seed=0)
    assert labels.tolist() == [0, 0, 0, 1, 1, 1, 2]  # who has no edge is alone
    graph = nx.from_numpy_array(weights[:6, :6])
    assert nx.community.modularity(graph, [{0, 1, 2}, {3, 4, 5}]) == pytest.approx(5 / 14)
    order = [5, 0, 3, 1, 4, 2]
    mixed = communities(weights[np.ix_(order, order)], seed=0)
    assert mixed.tolist() == [0, 1, 0, 1, 0, 1]
