"""Neighbours without the matrix: divergences are the app's, recall counts the neighbours found."""

from __future__ import annotations

import numpy as np
import torch

from benchmarks.neighbours import (
    ROWS,
    WIDTH,
    divergences,
    hellinger_projection,
    made_prototypes,
    make_groups,
    mean_errors,
    scaled_halves,
)
from fedproto_app.maths.divergence import pairwise_divergence


def test_divergences_of_some_are_the_apps() -> None:
    prototypes = made_prototypes(150)
    halves, entropies = scaled_halves(prototypes)
    matrix = pairwise_divergence(torch.from_numpy(prototypes).reshape(-1, ROWS, WIDTH)).numpy()
    rows, columns = np.array([3, 140]), np.arange(10, 120)
    expected = matrix[np.ix_(rows, columns)]
    np.testing.assert_allclose(divergences(halves, entropies, rows, columns), expected, atol=1e-7)
    np.testing.assert_allclose(divergences(halves, entropies, rows), matrix[rows], atol=1e-7)


def test_groups_hold_every_client_once_and_have_their_members_mean() -> None:
    prototypes = made_prototypes(400)
    grouped = make_groups(hellinger_projection(prototypes), prototypes, 20)
    assert grouped.sizes.sum() == len(grouped.labels) == 400
    assert np.array_equal(np.bincount(grouped.labels), grouped.sizes)
    members = prototypes[grouped.labels == 7]
    np.testing.assert_allclose(grouped.means[7], members.mean(axis=0), rtol=1e-4, atol=1e-6)


def test_the_error_of_a_mean_by_hand() -> None:
    """PR of the first two is (1, 0), NR of the others (5, 0), so 4 apart. Chosen are the first
    three: (0 + 2 + 4)/3 = 2, which is 1 from PR."""
    prototypes = np.array([[0, 0], [2, 0], [4, 0], [6, 0]], np.float32)
    true = np.array([[True, True, False, False]] * 2)
    chosen = np.array([[True, True, False, False], [True, True, True, False]])
    assert mean_errors(prototypes, true, chosen).tolist() == [0, 0.25]
