"""Clusters of two views: where both agree, where one knows more, and points that are equal."""

from __future__ import annotations

import numpy as np

from fedproto_app.strategies.compared.fedda.strategy import (
    centroids,
    nearest,
    two_view_clusters,
)

THREE = np.repeat([0, 1, 2], 4)
NOISE = np.random.default_rng(0).normal(scale=0.1, size=(12, 5))
PATTERNS = NOISE + 10 * np.eye(3, 5)[THREE]


def test_separate_patterns_are_found_with_and_without_places() -> None:
    places = np.array([[0.0, 0.0], [0.0, 50.0], [50.0, 0.0]])[THREE] + NOISE[:, :2]
    for where in (None, places):
        assert two_view_clusters(PATTERNS, where, 3).tolist() == THREE.tolist()
    mixed = np.random.default_rng(1).permutation(12)
    repeated = two_view_clusters(PATTERNS[mixed], None, 3)
    for label in range(3):
        assert len(set(THREE[mixed][repeated == label])) == 1


def test_labels_are_those_of_the_patterns_after_a_turn_through_the_places() -> None:
    """Patterns on a line, cut anywhere by themselves; the places put the cut in the middle."""
    patterns = np.arange(8.0)[:, None]
    places = np.array([[0.0, 0.0]] * 4 + [[9.0, 9.0]] * 4) + 0.01 * np.arange(8)[:, None]
    assert two_view_clusters(patterns, places, 2).tolist() == [0] * 4 + [1] * 4


def test_equal_points_leave_fewer_clusters() -> None:
    assert two_view_clusters(np.ones((4, 2)), np.ones((4, 2)), 3).tolist() == [0] * 4
    twice = np.repeat(np.eye(2), 2, axis=0)
    assert two_view_clusters(twice, np.ones((4, 2)), 2).tolist() == [0] * 4
    assert two_view_clusters(np.ones((1, 2)), None, 1).tolist() == [0]


def test_newcomers_go_to_the_nearest_centroid() -> None:
    centres = centroids(PATTERNS, THREE)
    np.testing.assert_allclose(centres[1], PATTERNS[4:8].mean(axis=0))
    assert nearest(PATTERNS + 0.5, centres).tolist() == THREE.tolist()
