"""The image classifiers: names, sizes, what is drawn when, and K clients as one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedproto_app.models.image_classifier import ResNetClassifier, SmallCnnClassifier
from fedproto_app.models.model import ENCODER, HEAD, Model

Made = Callable[[int], Model]  # by the number of classes
SHAPE = (1, 8, 8)


def small_cnn(classes: int) -> Model:
    return SmallCnnClassifier(SHAPE, classes, width=4, representation_dim=6)


def resnet(classes: int) -> Model:
    return ResNetClassifier(SHAPE, classes)


def one_client(model: Model, seed: int = 0) -> dict[str, Tensor]:
    return model.initial_parameters(torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("made", "width"), [(small_cnn, 6), (resnet, 512)])
def test_clients_are_classified_as_if_alone(made: Made, width: int) -> None:
    model = made(3)
    assert model.representation_dim == width
    each = [one_client(model, seed=k) for k in range(2)]
    stacked = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    inputs = torch.randn(2, 5, *SHAPE, generator=torch.Generator().manual_seed(9))
    representation = model.encode(stacked, inputs)
    logits = model.predict(stacked, representation)
    assert representation.shape == (2, 5, width)
    assert logits.shape == (2, 5, 3)
    for k, one in enumerate(each):
        alone = {name: value.unsqueeze(0) for name, value in one.items()}
        expected = model.encode(alone, inputs[k : k + 1])
        torch.testing.assert_close(representation[k], expected[0], rtol=1e-5, atol=1e-5)
        by_hand = expected[0] @ one["head.weight"] + one["head.bias"]
        torch.testing.assert_close(logits[k], by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("made", [small_cnn, resnet])
def test_the_head_is_drawn_last(made: Made) -> None:
    few, many = one_client(made(3)), one_client(made(7))
    assert all(name.startswith((ENCODER, HEAD)) for name in few)
    assert many["head.bias"].shape == (7,)
    for name, value in few.items():
        if name.startswith(ENCODER):
            assert torch.equal(value, many[name])


def test_seed_decides_the_parameters() -> None:
    first, again, other = (one_client(small_cnn(3), seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not torch.equal(first["encoder.linear.weight"], other["encoder.linear.weight"])
