"""The model of sequences against torch's own modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedproto_app.models.causal_cnn import causal_cnn
from fedproto_app.models.sequence_model import (
    encode,
    encoder_parameters,
    head_parameters,
    is_causal_cnn,
    predict,
    sequence_width,
)
from fedproto_app.settings import Settings
from tests.learners.tiny_sequences import WIDTH, sequence_settings, sequence_task, with_clients

LENGTHS = torch.tensor([[5, 2, 1], [3, 3, 1]])
CNN = {"model.sequence-encoder": "causal-cnn"}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made(**changes: Any) -> tuple[Settings, dict[str, Tensor], Tensor]:
    """Settings, the parameters of two clients, and their padded sequences [2, 3, 5, 2]."""
    settings = sequence_settings(method="fedavg", **changes)
    own = encoder_parameters(settings, 2, seeded()) | head_parameters(settings, 3, seeded(1))
    inputs = torch.randn(2, 3, 5, 2, generator=seeded(2))
    inputs[torch.arange(5) >= LENGTHS.unsqueeze(2)] = 0
    return settings, with_clients(own, 2), inputs


@pytest.mark.parametrize(
    ("method", "encoder", "cnn", "width"),
    [
        ("fedavg", "lstm", False, 5),
        ("fedavg", "causal-cnn", True, WIDTH),
        ("fed-react", "lstm", True, WIDTH),
        ("ifca", "lstm", True, WIDTH),
        ("flsc", "causal-cnn", True, WIDTH),
    ],
)
def test_methods_that_learn_their_encoder_first_take_the_cnn(
    method: str, encoder: str, cnn: bool, width: int
) -> None:
    task = sequence_task(method, **{"model.sequence-encoder": encoder})
    assert is_causal_cnn(task.settings) == cnn
    assert task.representation_dim == width
    names = task.initial_encoder()
    assert all(name.startswith("encoder.") for name in names)
    assert any("lstm" in name for name in names) != cnn
    assert any("blocks" in name for name in names) == cnn


@pytest.mark.parametrize("changes", [{}, CNN])
def test_parameters_are_drawn_from_the_generator(changes: dict[str, str]) -> None:
    settings = sequence_settings(method="fedavg", **changes)
    first, again, other = (encoder_parameters(settings, 2, seeded(s)) for s in (0, 0, 1))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert any(not torch.equal(value, other[name]) for name, value in first.items())
    head = head_parameters(settings, 3, seeded())
    assert {n: tuple(v.shape) for n, v in head.items()} == {
        "head.weight": (sequence_width(settings), 3),
        "head.bias": (3,),
    }


def test_the_lstm_encoder_is_torchs_linear_and_lstm() -> None:
    settings, parameters, inputs = made()
    ours = encode(settings, parameters, inputs, LENGTHS)
    for client in range(2):
        own = {n.removeprefix("encoder."): v[client] for n, v in parameters.items()}
        embedding, lstm = nn.Linear(2, 3), nn.LSTM(3, 5, batch_first=True)
        with torch.no_grad():
            embedding.weight.copy_(own["embedding.weight"].T)
            embedding.bias.copy_(own["embedding.bias"])
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                value = own["lstm." + name]
                getattr(lstm, name + "_l0").copy_(value.T if value.dim() == 2 else value)
        for row in range(3):
            length = int(LENGTHS[client, row])
            _, (last, _) = lstm(embedding(inputs[client, row, :length]))
            torch.testing.assert_close(ours[client, row], last[0], atol=1e-6, rtol=1e-5)


def test_the_cnn_encoder_is_the_causal_cnn() -> None:
    settings, parameters, inputs = made(**CNN)
    ours = encode(settings, parameters, inputs, LENGTHS)
    assert ours.shape == (2, 3, WIDTH)
    assert torch.equal(ours, causal_cnn(parameters, "encoder.", inputs, LENGTHS))


@pytest.mark.parametrize("changes", [{}, CNN])
def test_every_parameter_of_each_client_has_a_part(changes: dict[str, str]) -> None:
    settings, parameters, inputs = made(**changes)
    leaves = {name: value.requires_grad_() for name, value in parameters.items()}
    outputs = predict(leaves, encode(settings, leaves, inputs, LENGTHS))
    gradients = torch.autograd.grad(outputs.square().sum(), list(leaves.values()))
    for name, gradient in zip(leaves, gradients, strict=True):
        assert gradient.flatten(start_dim=1).any(dim=1).all(), name


def test_the_head_by_hand() -> None:
    parameters = {
        "head.weight": torch.tensor([[[1.0, 0.0], [2.0, -1.0]]]),
        "head.bias": torch.tensor([[0.5, 3.0]]),
    }
    outputs = predict(parameters, torch.tensor([[[1.0, 1.0], [0.0, 2.0]]]))
    assert outputs.tolist() == [[[3.5, 2.0], [4.5, 1.0]]]
