"""Dual attention, one step of it by hand and against its formula written out."""

from __future__ import annotations

import math

import pytest
import torch

from fedproto_app.strategies.compared.fedda.strategy import attended


def model(*values: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([[value] for value in values])}


def constant_model(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([value])}


def test_one_tensor_by_hand() -> None:
    """α = softmax(1, 3) = (0.1192, 0.8808), ω = 1: 0.1192 + 3·0.8808 + 0.2·2."""
    stepped = attended(model(1.0, 3.0), constant_model(0.0), constant_model(2.0), 1.0, 0.2)
    assert stepped["w"].item() == pytest.approx(3.1616, abs=1e-4)
    half = attended(model(1.0, 3.0), constant_model(0.0), constant_model(2.0), 0.5, 0.2)
    assert half["w"].item() == pytest.approx(3.1616 / 2, abs=1e-4)


def test_equal_models_without_pull_are_what_comes_out() -> None:
    assert (
        attended(model(3.0, 3.0, 3.0), constant_model(-1.0), constant_model(7.0), 1.0, 0.0)[
            "w"
        ].item()
        == 3
    )
    # Where the anchor is the quasi-global model there is nothing to be pulled to.
    assert (
        attended(model(3.0, 3.0), constant_model(-1.0), constant_model(-1.0), 1.0, 0.3)["w"].item()
        == 3
    )


def test_several_tensors_word_by_word() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (2, 3), "b": (4,)}
    anchor, quasi, *clients = (
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        for _ in range(5)
    )
    stacked = {
        name: torch.stack([client_model[name] for client_model in clients]) for name in shapes
    }
    stepped = attended(stacked, anchor, quasi, 0.7, -0.3)
    far = {name: math.exp((anchor[name] - quasi[name]).norm()) for name in shapes}
    for name in shapes:
        weights = [math.exp((anchor[name] - client_model[name]).norm()) for client_model in clients]
        expected = anchor[name].clone()
        for weight, client_model in zip(weights, clients, strict=True):
            expected -= 0.7 * weight / sum(weights) * (anchor[name] - client_model[name])
        share = far[name] / sum(far.values())
        expected -= 0.7 * -0.3 * share * (anchor[name] - quasi[name])
        torch.testing.assert_close(stepped[name], expected)
