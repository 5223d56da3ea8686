"""A model for sequences: an LSTM as the encoder, and a linear head.

A batch consists of sequences [K, B, T, d] and the numbers of their real steps [K, B].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.models.gru import NAMES, recurrent_parameters
from fedproto_app.models.linear import linear, linear_parameters, with_prefixes
from fedproto_app.models.model import ENCODER, LinearHeadModel

# A one-layer LSTM over padded sequences of any length, batched over clients.
#
# Every parameter has a client axis in front [K, …]. The equations follow `torch.nn.LSTM`
# (Hochreiter and Schmidhuber 1997, with a forget gate), with the gates in its order: input, forget,
# cell, output. Matrices are stored as [in, out], the transpose of torch's, as in ``models/gru.py``.
#
# Torch's own LSTM computes the steps, for one client after the other. It multiplies the inputs of
# all steps at once and fuses the gates. On a CPU, with 50 sequences, 128 inputs and 256 hidden
# values, two alternatives were slower: a Python loop of batched products over the steps (by 1/6 for
# one client, more for ten) and packed sequences (by 1/3 on real digits).

GATES = 4


def lstm_last_hidden(
    parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor, lengths: Tensor
) -> Tensor:
    """Return the hidden state after the last real step of each sequence.

    parameters: ``<prefix>weight_ih`` [K, d, 4H], ``weight_hh`` [K, H, 4H], ``bias_ih`` and
        ``bias_hh`` [K, 4H].
    inputs: [K, B, T, d]. Values after the end of a sequence change nothing.
    lengths: [K, B] int64, each 1 … T.
    Returns [K, B, H].
    """
    # Parameters are split at once. Indexing by client would make a gradient of all K for each.
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
    """Return a client's last hidden states: [B, T, d], [B] → [B, H]. client: in NAMES' order."""
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


_EMBEDDING = ENCODER + "embedding."
_LSTM = ENCODER + "lstm."


class LstmModel(LinearHeadModel):
    """A model that embeds each step linearly. An LSTM's last state is the representation."""

    def __init__(self, dimensions: int, outputs: int, embedding_dim: int, hidden_dim: int) -> None:
        super().__init__(hidden_dim, outputs)
        self._dimensions, self._embedding_dim = dimensions, embedding_dim

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        embedding = linear_parameters(self._dimensions, self._embedding_dim, generator)
        lstm = recurrent_parameters(GATES, self._embedding_dim, self.representation_dim, generator)
        return with_prefixes({_EMBEDDING: embedding, _LSTM: lstm})

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        sequences, lengths = inputs
        clients, batch, steps, dimensions = sequences.shape
        flat = sequences.reshape(clients, batch * steps, dimensions)
        embedded = linear(parameters, _EMBEDDING, flat).view(clients, batch, steps, -1)
        return lstm_last_hidden(parameters, _LSTM, embedded, lengths)
