"""The LSTM against torch's module with packed sequences, and the models of sequences."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from fedproto_app.models.causal_cnn import CausalCnnModel, CausalCnnSize
from fedproto_app.models.gru import recurrent_parameters
from fedproto_app.models.model import Model
from fedproto_app.models.sequence_model import (
    GATES,
    LstmModel,
    lstm_last_hidden,
)
from tests.helpers.tiny_sequences import with_clients
from tests.models.torch_oracle import normal, require_torchs, seeded, stacked

INPUTS, HIDDEN, ROWS = 3, 5, 4


def stacked_clients(
    clients: int, steps: int, dtype: torch.dtype = torch.float64
) -> tuple[dict[str, Tensor], Tensor]:
    """Parameters "a.*" of so many clients, different each, and their inputs [K, B, T, d]."""
    drawn = [recurrent_parameters(GATES, INPUTS, HIDDEN, seeded(seed)) for seed in range(clients)]
    inputs = normal(clients, ROWS, steps, INPUTS, seed=9, dtype=dtype)
    return stacked(drawn, "a.", dtype), inputs.requires_grad_()


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("clients", [1, 3])
def test_every_client_gets_torchs_lstm_of_its_packed_sequences(clients: int, steps: int) -> None:
    """States and gradients. The lengths differ, and no sequence of the first client is longest."""
    parameters, inputs = stacked_clients(clients, steps)
    lengths = torch.randint(1, steps + 1, (clients, ROWS), generator=seeded(1))
    lengths[0].clamp_(max=max(1, steps - 1))

    def last_hidden(lstm: nn.Module, sequences: Tensor, k: int) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            sequences, lengths[k], batch_first=True, enforce_sorted=False
        )
        return lstm(packed)[1][0][0]

    require_torchs(
        lstm_last_hidden(parameters, "a.", inputs, lengths),
        inputs,
        parameters.values(),
        lambda: nn.LSTM(INPUTS, HIDDEN, batch_first=True),
        torchs=lambda lstm: [
            lstm.get_parameter(f"{name.removeprefix('a.')}_l0") for name in parameters
        ],
        call=last_hidden,
        close=partial(torch.testing.assert_close, rtol=0, atol=1e-12),
    )


def test_the_fused_float32_kernel_gives_the_same_as_float64() -> None:
    """A CPU computes float32 by another library than float64."""
    parameters, inputs = stacked_clients(2, 20, torch.float32)
    lengths = torch.tensor([[20, 3, 1, 7], [2, 19, 20, 20]])
    ours = lstm_last_hidden(parameters, "a.", inputs, lengths)
    exact_leaves = {n: v.detach().double().requires_grad_() for n, v in parameters.items()}
    exact = lstm_last_hidden(exact_leaves, "a.", inputs.double(), lengths)
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=1e-6)
    expected = torch.autograd.grad(exact.square().sum(), list(exact_leaves.values()))
    gradients = torch.autograd.grad(ours.square().sum(), list(parameters.values()))
    for got, want in zip(gradients, expected, strict=True):
        torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("padding", [7.0, float("nan")])
def test_what_stands_after_the_end_changes_nothing(padding: float) -> None:
    parameters, inputs = stacked_clients(2, 6)
    lengths = torch.tensor([[6, 3, 1, 5], [2, 4, 1, 3]])
    after = torch.arange(6) >= lengths.unsqueeze(2)
    padded = inputs.masked_fill(after.unsqueeze(3), padding)
    ours = lstm_last_hidden(parameters, "a.", padded, lengths)
    assert torch.equal(ours, lstm_last_hidden(parameters, "a.", inputs, lengths))


def test_one_step_by_hand() -> None:
    """From state 0: σ(o)·tanh(σ(i)·tanh(g)). The forget gate and weight_hh have no part."""
    gates = {"i": 1.0, "f": 99.0, "g": -2.0, "o": 0.5}
    parameters = {
        "weight_ih": torch.tensor([[list(gates.values())]]),
        "weight_hh": torch.full((1, 1, 4), 99.0),
        "bias_ih": torch.full((1, 4), 0.25),
        "bias_hh": torch.full((1, 4), -0.25),
    }
    inputs = torch.tensor([[[[2.0]]]])
    ours = lstm_last_hidden(parameters, "", inputs, torch.tensor([[1]]))
    i, g, o = (torch.tensor(2 * gates[gate]) for gate in "igo")
    expected = o.sigmoid() * (i.sigmoid() * g.tanh()).tanh()
    torch.testing.assert_close(ours.flatten()[0], expected)


def test_initial_values_are_torchs() -> None:
    parameters = recurrent_parameters(GATES, 6, 16, seeded())
    reference = nn.LSTM(6, 16)
    shapes = {
        name.removesuffix("_l0"): value.shape[::-1] for name, value in reference.named_parameters()
    }
    assert {name: value.shape for name, value in parameters.items()} == shapes
    assert all(0.2 < value.abs().max() <= 0.25 for value in parameters.values())
    repeated = recurrent_parameters(GATES, 6, 16, seeded())
    assert all(torch.equal(value, repeated[name]) for name, value in parameters.items())


LENGTHS = torch.tensor([[5, 2, 1], [3, 3, 1]])
LSTM = LstmModel(2, 3, embedding_dim=3, hidden_dim=5)
CNN = CausalCnnModel(2, 3, CausalCnnSize(blocks=3, channels=4, reduced_dim=6, output_dim=4))


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


def test_the_lstm_encoder_is_torchs_linear_and_the_lstm() -> None:
    parameters = with_clients(LSTM.initial_parameters(seeded()), 2)
    inputs = torch.randn(2, 3, 5, 2, generator=seeded(2))
    inputs[torch.arange(5) >= LENGTHS.unsqueeze(2)] = 0
    weight, bias = (parameters[f"encoder.embedding.{part}"] for part in ("weight", "bias"))
    pairs = zip(inputs, weight, bias, strict=True)
    embedded = torch.stack([nn.functional.linear(x, w.T, b) for x, w, b in pairs])
    expected = lstm_last_hidden(parameters, "encoder.lstm.", embedded, LENGTHS)
    torch.testing.assert_close(LSTM.encode(parameters, inputs, LENGTHS), expected)
