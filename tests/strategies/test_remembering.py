"""A model with a memory: what it answers, and that without one it is the other model."""

from __future__ import annotations

import math

import pytest
import torch

from fedproto_app.models.image_classifier import SmallCnnClassifier
from fedproto_app.models.model import HEAD, LinearHeadModel
from fedproto_app.strategies.knn_per import Memory, Remembering


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
