"""The models of sequences against torch's own modules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedproto_app.models.causal_cnn import CausalCnnSize, causal_cnn
from fedproto_app.models.model import Model
from fedproto_app.models.sequence_model import CausalCnnModel, LstmModel
from tests.strategies.tiny_sequences import with_clients

LENGTHS = torch.tensor([[5, 2, 1], [3, 3, 1]])
LSTM = LstmModel(2, 3, embedding_dim=3, hidden_dim=5)
CNN = CausalCnnModel(2, 3, CausalCnnSize(blocks=3, channels=4, reduced_dim=6, output_dim=4))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def two_clients(model: Model) -> tuple[dict[str, Tensor], Tensor]:
    """The parameters of two clients, and their padded sequences [2, 3, 5, 2]."""
    inputs = torch.randn(2, 3, 5, 2, generator=seeded(2))
    inputs[torch.arange(5) >= LENGTHS.unsqueeze(2)] = 0
    return with_clients(model.initial_parameters(seeded()), 2), inputs


@pytest.mark.parametrize(("model", "width"), [(LSTM, 5), (CNN, 4)])
def test_parameters_are_drawn_from_the_generator(model: Model, width: int) -> None:
    first, repeated, other_seed = (model.encoder_parameters(seeded(s)) for s in (0, 0, 1))
    assert all(name.startswith("encoder.") for name in first)
    assert all(torch.equal(value, repeated[name]) for name, value in first.items())
    assert any(not torch.equal(value, other_seed[name]) for name, value in first.items())
    head = model.head_parameters(seeded())
    assert {n: tuple(v.shape) for n, v in head.items()} == {
        "head.weight": (width, 3),
        "head.bias": (3,),
    }
    assert model.representation_dim == width


def test_the_lstm_encoder_is_torchs_linear_and_lstm() -> None:
    parameters, inputs = two_clients(LSTM)
    ours = LSTM.encode(parameters, inputs, LENGTHS)
    for client in range(2):
        client_parameters = {n.removeprefix("encoder."): v[client] for n, v in parameters.items()}
        embedding, lstm = nn.Linear(2, 3), nn.LSTM(3, 5, batch_first=True)
        with torch.no_grad():
            embedding.weight.copy_(client_parameters["embedding.weight"].T)
            embedding.bias.copy_(client_parameters["embedding.bias"])
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                value = client_parameters["lstm." + name]
                getattr(lstm, name + "_l0").copy_(value.T if value.dim() == 2 else value)
        for row in range(3):
            length = int(LENGTHS[client, row])
            _, (last, _) = lstm(embedding(inputs[client, row, :length]))
            torch.testing.assert_close(ours[client, row], last[0], atol=1e-6, rtol=1e-5)


def test_the_cnn_encoder_is_the_causal_cnn() -> None:
    parameters, inputs = two_clients(CNN)
    ours = CNN.encode(parameters, inputs, LENGTHS)
    assert ours.shape == (2, 3, 4)
    assert torch.equal(ours, causal_cnn(parameters, "encoder.", inputs, LENGTHS))


@pytest.mark.parametrize("model", [LSTM, CNN])
def test_every_parameter_of_each_client_has_a_part(model: Model) -> None:
    parameters, inputs = two_clients(model)
    leaves = {name: value.requires_grad_() for name, value in parameters.items()}
    outputs = model.predict(leaves, model.encode(leaves, inputs, LENGTHS))
    gradients = torch.autograd.grad(outputs.square().sum(), list(leaves.values()))
    for name, gradient in zip(leaves, gradients, strict=True):
        assert gradient.flatten(start_dim=1).any(dim=1).all(), name


def test_the_head_by_hand() -> None:
    parameters = {
        "head.weight": torch.tensor([[[1.0, 0.0], [2.0, -1.0]]]),
        "head.bias": torch.tensor([[0.5, 3.0]]),
    }
    outputs = LSTM.predict(parameters, torch.tensor([[[1.0, 1.0], [0.0, 2.0]]]))
    assert outputs.tolist() == [[[3.5, 2.0], [4.5, 1.0]]]
