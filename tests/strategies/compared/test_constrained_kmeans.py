"""k-means with a smallest size of clusters, by hand and against all assignments."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fedproto_app.strategies.compared.fedgru import constrained_kmeans


def cost(points: np.ndarray, labels: np.ndarray) -> float:
    """The sum of squared distances to the means of the clusters."""
    return sum(
        float(((points[labels == label] - points[labels == label].mean(axis=0)) ** 2).sum())
        for label in set(labels.tolist())
    )


@pytest.mark.parametrize(("smallest", "labels"), [(1, [0, 0, 0, 1]), (2, [0, 0, 1, 1])])
def test_a_point_far_away_needs_company_where_sizes_ask_for_it(
    smallest: int, labels: list[int]
) -> None:
    points = np.array([[0.0], [1.0], [2.0], [10.0]])
    actual = constrained_kmeans(points, 2, smallest, np.random.default_rng(0))
    assert actual.tolist() == labels
    assert constrained_kmeans(points[::-1], 2, smallest, np.random.default_rng(0))[0] == 0


@pytest.mark.parametrize("smallest", [1, 2, 3])
def test_no_other_assignment_costs_less(smallest: int) -> None:
    points = np.random.default_rng(smallest).normal(size=(7, 2))
    points[:2] += 4
    actual = constrained_kmeans(points, 2, smallest, np.random.default_rng(0))
    assert np.bincount(actual).min() >= smallest
    assignments = (np.array(labels) for labels in product((0, 1), repeat=7))
    allowed = [
        assignment
        for assignment in assignments
        if np.bincount(assignment, minlength=2).min() >= smallest
    ]
    assert cost(points, actual) == pytest.approx(
        min(cost(points, assignment) for assignment in allowed)
    )


def test_too_few_points_are_refused() -> None:
    with pytest.raises(ValueError, match="3 points for 2 clusters of 2"):
        constrained_kmeans(np.zeros((3, 1)), 2, 2, np.random.default_rng(0))
    actual = constrained_kmeans(np.zeros((5, 1)), 2, 2, np.random.default_rng(0))
    assert np.bincount(actual).min() == 2
