"""kNN-Per's neighbours by hand and beside scikit-learn, and the model with a memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor

from fedproto_app.models.image_classifier import SmallCnnClassifier
from fedproto_app.models.model import HEAD, LinearHeadModel
from fedproto_app.strategies.knn_per import (
    Memory,
    Remembering,
    kernel_weights,
    means,
    nearest,
    votes,
)

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


def memory(targets: torch.Tensor, share: float) -> Memory:
    """Return one client's memory: samples at 0 and log 3, and an uncounted one far away."""
    return Memory(
        torch.tensor([[[0.0], [math.log(3)], [1e9]]]),
        targets,
        torch.tensor([2]),
        torch.tensor([2]),
        torch.tensor([share]),
    )


def head(outputs: int) -> dict[str, torch.Tensor]:
    """A head that gives 4 for every representation."""
    return {
        HEAD + "weight": torch.zeros(1, 1, outputs),
        HEAD + "bias": torch.full((1, outputs), 4.0),
    }


class Bare(LinearHeadModel):
    """One number as it is, and a head."""

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, torch.Tensor]:
        return {}

    def encode(self, parameters: object, *inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0]


@pytest.mark.parametrize(("share", "expected"), [(0.0, 4.0), (1.0, 7.0), (0.5, 5.5)])
def test_numbers_are_mixed(share: float, expected: float) -> None:
    """At 0 the kernel is 1 and 1/3: 3/4 of 10 and 1/4 of −2 are 7."""
    model = Remembering(Bare(1, 1), 0)
    remembered = memory(torch.tensor([[[10.0], [-2.0], [99.0]]]), share)
    prediction = model.predict({**head(1), **remembered.parameters()}, torch.zeros(1, 5, 1))
    torch.testing.assert_close(prediction, torch.full((1, 5, 1), expected))


def test_of_classes_probabilities_are_mixed() -> None:
    """The neighbours say 3/4 and 1/4, the head 1/2 and 1/2."""
    model = Remembering(Bare(1, 2), 2)
    remembered = memory(torch.tensor([[0, 1, 1]]), 0.5)
    prediction = model.predict({**head(2), **remembered.parameters()}, torch.zeros(1, 5, 1))
    torch.testing.assert_close(prediction.softmax(dim=2)[0, 0], torch.tensor([5 / 8, 3 / 8]))
    torch.testing.assert_close(prediction.exp()[0, 0], torch.tensor([5 / 8, 3 / 8]))
    sure = memory(torch.tensor([[0, 0, 0]]), 1.0)
    prediction = model.predict({**head(2), **sure.parameters()}, torch.zeros(1, 1, 1))
    assert prediction.isfinite().all()


def test_what_the_head_gets_beside_the_representation_is_not_compared() -> None:
    model = Remembering(Bare(1, 1, beside=1), 0)
    remembered = memory(torch.tensor([[[10.0], [-2.0], [99.0]]]), 1.0)
    wider = {**head(1), HEAD + "weight": torch.ones(1, 2, 1), **remembered.parameters()}
    prediction = model.predict(wider, torch.tensor([[[0.0, 55.0]]]))
    assert prediction.item() == pytest.approx(7.0)


def test_without_a_memory_it_is_the_other_model() -> None:
    inner = SmallCnnClassifier((1, 8, 8), 3, 4, 6)
    model, draws = Remembering(inner, 3), torch.Generator().manual_seed(0)
    parameters = model.initial_parameters(draws)
    reference = inner.initial_parameters(torch.Generator().manual_seed(0))
    assert all(torch.equal(parameters[name], value) for name, value in reference.items())
    stacked = {name: value.unsqueeze(0) for name, value in parameters.items()}
    images = torch.randn(1, 2, 1, 8, 8, generator=draws)
    vectors = model.encode(stacked, images)
    assert torch.equal(vectors, inner.encode(stacked, images))
    assert torch.equal(model.predict(stacked, vectors), inner.predict(stacked, vectors))
    assert (model.representation_dim, model.splits) == (6, True)
