"""The image classifier: names, sizes, what is drawn when, and K clients as one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedproto_app.errors import SettingsError
from fedproto_app.models.image_classifier import (
    ENCODER,
    HEAD,
    classifier_parameters,
    classify,
    encode,
    representation_width,
)


def one_client(image_encoder: str, classes: int = 3, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return classifier_parameters(image_encoder, (1, 8, 8), classes, 4, 6, generator)


@pytest.mark.parametrize(("image_encoder", "width"), [("small-cnn", 6), ("resnet18", 512)])
def test_clients_are_classified_as_if_alone(image_encoder: str, width: int) -> None:
    assert representation_width(image_encoder, 6) == width
    each = [one_client(image_encoder, seed=k) for k in range(2)]
    stacked = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    inputs = torch.randn(2, 5, 1, 8, 8, generator=torch.Generator().manual_seed(9))
    representation = encode(image_encoder, stacked, inputs)
    logits = classify(stacked, representation)
    assert representation.shape == (2, 5, width)
    assert logits.shape == (2, 5, 3)
    for k, one in enumerate(each):
        alone = {name: value.unsqueeze(0) for name, value in one.items()}
        expected = encode(image_encoder, alone, inputs[k : k + 1])
        torch.testing.assert_close(representation[k], expected[0], rtol=1e-5, atol=1e-5)
        by_hand = expected[0] @ one["head.weight"] + one["head.bias"]
        torch.testing.assert_close(logits[k], by_hand, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("image_encoder", ["small-cnn", "resnet18"])
def test_the_head_is_drawn_last(image_encoder: str) -> None:
    few, many = one_client(image_encoder, 3), one_client(image_encoder, 7)
    assert all(name.startswith((ENCODER, HEAD)) for name in few)
    assert many["head.bias"].shape == (7,)
    for name, value in few.items():
        if name.startswith(ENCODER):
            assert torch.equal(value, many[name])


def test_seed_decides_the_parameters() -> None:
    first, again, other = (one_client("small-cnn", seed=seed) for seed in (0, 0, 1))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not torch.equal(first["encoder.linear.weight"], other["encoder.linear.weight"])


def test_an_unknown_encoder_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"model\.image-encoder = 'vgg'.*small-cnn.*resnet18"):
        one_client("vgg")
