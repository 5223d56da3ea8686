"""A one-layer LSTM over padded sequences of any length, batched over clients.

Every parameter has a leading client axis, [K, …]; the equations are those of `torch.nn.LSTM`
(Hochreiter and Schmidhuber 1997, with a forget gate), gates in its order input, forget, cell,
output. Matrices are stored as [in, out], the transpose of torch's, as in ``models/gru.py``.

The steps themselves are torch's own LSTM, one client after the other: it multiplies the inputs
of all steps at once and fuses the gates. Tried besides on a CPU, with 50 sequences, 128 inputs and
256 hidden, and slower: a Python loop of batched products over the steps (by 1/6 for one client,
more for ten) and packed sequences (on real digits, by 1/3).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # in torch's order


def lstm_parameters(inputs: int, hidden: int, generator: torch.Generator) -> dict[str, Tensor]:
    """One client's parameters: U(±1/√hidden), torch's own initialisation."""
    bound = hidden**-0.5
    shapes = ((inputs, 4 * hidden), (hidden, 4 * hidden), (4 * hidden,), (4 * hidden,))
    return {
        name: torch.empty(shape).uniform_(-bound, bound, generator=generator)
        for name, shape in zip(NAMES, shapes, strict=True)
    }


def lstm_last_hidden(
    parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor, lengths: Tensor
) -> Tensor:
    """The hidden state after the last real step of each sequence.

    parameters: ``<prefix>weight_ih`` [K, d, 4H], ``weight_hh`` [K, H, 4H], ``bias_ih`` and
        ``bias_hh`` [K, 4H].
    inputs: [K, B, T, d]; what stands after a sequence's end changes nothing.
    lengths: [K, B] int64, each 1 … T.
    Returns [K, B, H].
    """
    # One split a parameter: indexing client by client would give each a gradient of all K.
    clients = zip(*(parameters[prefix + name].unbind() for name in NAMES), strict=True)
    longest = lengths.amax(dim=1).tolist()
    return torch.stack(
        [
            _client_last_hidden(client, sequences[:, :steps], ends)
            for client, sequences, ends, steps in zip(
                clients, inputs.unbind(), lengths.unbind(), longest, strict=True
            )
        ]
    )


def _client_last_hidden(client: tuple[Tensor, ...], inputs: Tensor, lengths: Tensor) -> Tensor:
    """[B, T, d], [B] → [B, H] with one client's parameters in the order of NAMES."""
    weight_ih, weight_hh, bias_ih, bias_hh = client
    start = inputs.new_zeros(1, len(inputs), len(weight_hh))
    states, _, _ = torch.lstm(
        inputs,
        (start, start),
        (weight_ih.T, weight_hh.T, bias_ih, bias_hh),
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=torch.is_grad_enabled(),
        bidirectional=False,
        batch_first=True,
    )  # (B, T, H)
    return states[torch.arange(len(inputs), device=inputs.device), lengths - 1]
