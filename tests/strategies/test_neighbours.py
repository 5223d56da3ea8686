"""The nearest remembered samples and what they say, worked by hand and beside scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from fedproto_app.strategies.knn_per import kernel_weights, means, nearest, votes

# One client remembers 0, 1 and 3, another 10 alone; both are asked at 1.25.
MEMORY = torch.tensor([[[0.0], [1.0], [3.0]], [[10.0], [0.0], [0.0]]])
COUNTS = torch.tensor([3, 1])
QUERY = torch.tensor([[[1.25]], [[1.25]]])


def test_the_nearest_of_what_each_client_remembers() -> None:
    distances, places = nearest(QUERY, MEMORY, COUNTS, 2)
    assert distances.tolist() == [[[0.25, 1.25]], [[8.75, math.inf]]]
    assert places[0, 0].tolist() == [1, 0]
    assert places[1, 0, 0] == 0
    assert nearest(QUERY, MEMORY, COUNTS, 9)[0].shape == (2, 1, 3)


def test_a_neighbour_counts_by_its_distance() -> None:
    """Weights e⁻¹ᐟ⁴ and e⁻⁵ᐟ⁴, of one in all 1 / (1 + e⁻¹); the third is beyond k = 2."""
    distances, places = nearest(QUERY, MEMORY, COUNTS, 3)
    weights = kernel_weights(distances, torch.tensor([2, 2]))
    first = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(
        weights, torch.tensor([[[first, 1 - first, 0]], [[1, 0, 0]]], dtype=torch.float64)
    )
    labels = torch.tensor([[2, 0, 0], [1, 0, 0]])
    shares = votes(weights, places, labels, 3)
    torch.testing.assert_close(
        shares, torch.tensor([[[first, 0, 1 - first]], [[0, 1, 0]]], dtype=torch.float64)
    )
    targets = torch.tensor([[[4.0, 0.0], [8.0, 1.0], [0.0, 0.0]], [[7.0, 5.0]] * 3])
    numbers = means(weights, places, targets)
    expected = [[[8 * first + 4 * (1 - first), first]], [[7.0, 5.0]]]
    torch.testing.assert_close(numbers, torch.tensor(expected, dtype=torch.float64))


def test_who_remembers_nothing_says_nothing() -> None:
    distances, places = nearest(QUERY, MEMORY, torch.tensor([0, 1]), 2)
    weights = kernel_weights(distances, torch.tensor([2, 2]))
    assert weights[0].tolist() == [[0.0, 0.0]]
    assert votes(weights, places, torch.zeros(2, 3, dtype=torch.int64), 2)[0].tolist() == [[0, 0]]


def test_scikit_learn_says_the_same() -> None:
    """More queries than are looked up at once."""
    rng = np.random.default_rng(0)
    vectors, queries = rng.normal(size=(60, 5)), rng.normal(size=(300, 5))
    labels, targets = rng.integers(0, 4, size=60), rng.normal(size=(60, 2))
    distances, places = nearest(
        *(torch.from_numpy(array)[None] for array in (queries, vectors)), torch.tensor([60]), 20
    )
    weights = kernel_weights(distances, torch.tensor([10]))

    def kernel(far: np.ndarray) -> np.ndarray:
        return np.exp(-far)

    classifier = KNeighborsClassifier(10, weights=kernel).fit(vectors, labels)
    shares = votes(weights, places, torch.from_numpy(labels)[None], 4)[0]
    np.testing.assert_allclose(shares, classifier.predict_proba(queries), atol=1e-9)
    regressor = KNeighborsRegressor(10, weights=kernel).fit(vectors, targets)
    numbers = means(weights, places, torch.from_numpy(targets)[None])[0]
    np.testing.assert_allclose(numbers, regressor.predict(queries), atol=1e-9)
