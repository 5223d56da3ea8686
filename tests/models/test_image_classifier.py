"""The image classifiers: names, sizes, what is drawn when, and K clients as one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedproto_app.models.image_classifier import ResNetClassifier, SmallCnnClassifier
from fedproto_app.models.model import ENCODER, HEAD, Model

MakeModel = Callable[[int], Model]  # by the number of classes
SHAPE = (1, 8, 8)


def small_cnn(classes: int) -> Model:
    return SmallCnnClassifier(SHAPE, classes, width=4, representation_dim=6)


def resnet(classes: int) -> Model:
    return ResNetClassifier(SHAPE, classes)


def one_client(model: Model, seed: int = 0) -> dict[str, Tensor]:
    return model.initial_parameters(torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("make_model", "width"), [(small_cnn, 6), (resnet, 512)])
def test_clients_are_classified_as_if_alone(make_model: MakeModel, width: int) -> None:
    model = make_model(3)
    assert model.representation_dim == width
    all_parameters = [one_client(model, seed=k) for k in range(2)]
    stacked = {
        name: torch.stack([parameters[name] for parameters in all_parameters])
        for name in all_parameters[0]
    }
    inputs = torch.randn(2, 5, *SHAPE, generator=torch.Generator().manual_seed(9))
    representation = model.encode(stacked, inputs)
    logits = model.predict(stacked, representation)
    assert representation.shape == (2, 5, width)
    assert logits.shape == (2, 5, 3)
    for k, parameters in enumerate(all_parameters):
        alone = {name: value.unsqueeze(0) for name, value in parameters.items()}
        expected = model.encode(alone, inputs[k : k + 1])
        torch.testing.assert_close(representation[k], expected[0], rtol=1e-5, atol=1e-5)
        by_hand = expected[0] @ parameters["head.weight"] + parameters["head.bias"]
        torch.testing.assert_close(logits[k], by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make_model", [small_cnn, resnet])
def test_the_head_is_drawn_last(make_model: MakeModel) -> None:
    few_classes, many_classes = one_client(make_model(3)), one_client(make_model(7))
    assert all(name.startswith((ENCODER, HEAD)) for name in few_classes)
    assert many_classes["head.bias"].shape == (7,)
    for name, value in few_classes.items():
        if name.startswith(ENCODER):
            assert torch.equal(value, many_classes[name])


def test_seed_decides_the_parameters() -> None:
    first, repeated, other_seed = (one_client(small_cnn(3), seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(value, repeated[name]) for name, value in first.items())
    assert not torch.equal(first["encoder.linear.weight"], other_seed["encoder.linear.weight"])
