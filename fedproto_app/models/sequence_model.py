"""The models of sequences: an LSTM or the causal CNN as the encoder, and a linear head.

A batch is sequences [K, B, T, d] and the numbers of their real steps, [K, B].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.models.causal_cnn import CausalCnnSize, causal_cnn, causal_cnn_parameters
from fedproto_app.models.linear import linear, linear_parameters
from fedproto_app.models.model import ENCODER, LinearHeadModel
from fedproto_app.models.sequence_model import lstm_last_hidden, lstm_parameters

_EMBEDDING = ENCODER + "embedding."
_LSTM = ENCODER + "lstm."


class LstmModel(LinearHeadModel):
    """A linear embedding of each step, and the state of an LSTM after the last one."""

    def __init__(self, dimensions: int, outputs: int, embedding_dim: int, hidden_dim: int) -> None:
        super().__init__(hidden_dim, outputs)
        self._dimensions, self._embedding_dim = dimensions, embedding_dim

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        embedding = linear_parameters(self._dimensions, self._embedding_dim, generator)
        lstm = lstm_parameters(self._embedding_dim, self.representation_dim, generator)
        return {
            part + name: value
            for part, named in ((_EMBEDDING, embedding), (_LSTM, lstm))
            for name, value in named.items()
        }

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        sequences, lengths = inputs
        clients, batch, steps, dimensions = sequences.shape
        flat = sequences.reshape(clients, batch * steps, dimensions)
        embedded = linear(parameters, _EMBEDDING, flat).view(clients, batch, steps, -1)
        return lstm_last_hidden(parameters, _LSTM, embedded, lengths)


class CausalCnnModel(LinearHeadModel):
    """The causal CNN, which can also learn without labels."""

    def __init__(self, dimensions: int, outputs: int, size: CausalCnnSize) -> None:
        super().__init__(size.output_dim, outputs)
        self._dimensions, self._size = dimensions, size

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        named = causal_cnn_parameters(self._dimensions, self._size, generator)
        return {ENCODER + name: value for name, value in named.items()}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        sequences, lengths = inputs
        return causal_cnn(parameters, ENCODER, sequences, lengths)
