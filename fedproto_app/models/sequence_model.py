"""The model of sequences: an encoder (an LSTM or the causal CNN) and a linear head.

All functions take a mapping of parameters with a leading client axis and know their names:
``encoder.*``, ``head.*``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.models.causal_cnn import causal_cnn, causal_cnn_parameters
from fedproto_app.models.linear import linear, linear_parameters
from fedproto_app.models.lstm import lstm_last_hidden, lstm_parameters
from fedproto_app.settings import Settings

ENCODER, HEAD = "encoder.", "head."
_EMBEDDING = ENCODER + "embedding."
_LSTM = ENCODER + "lstm."


def is_causal_cnn(settings: Settings) -> bool:
    """Whether the encoder is the causal CNN, not the LSTM."""
    return settings.model.sequence_encoder == "causal-cnn"


def sequence_width(settings: Settings) -> int:
    """D, the length of a representation."""
    return settings.encoder.output_dim if is_causal_cnn(settings) else settings.model.hidden_dim


def encoder_parameters(
    settings: Settings, dimensions: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """One client's initial encoder of sequences with d dimensions, without the client axis."""
    if is_causal_cnn(settings):
        cnn = causal_cnn_parameters(dimensions, settings.encoder, generator)
        return {ENCODER + name: value for name, value in cnn.items()}
    model = settings.model
    embedding = linear_parameters(dimensions, model.embedding_dim, generator)
    lstm = lstm_parameters(model.embedding_dim, model.hidden_dim, generator)
    return {
        prefix + name: value
        for prefix, named in ((_EMBEDDING, embedding), (_LSTM, lstm))
        for name, value in named.items()
    }


def head_parameters(
    settings: Settings, outputs: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """One client's initial linear head."""
    head = linear_parameters(sequence_width(settings), outputs, generator)
    return {HEAD + name: value for name, value in head.items()}


def encode(
    settings: Settings, parameters: Mapping[str, Tensor], inputs: Tensor, lengths: Tensor
) -> Tensor:
    """The representation: [K, B, T, d] with the real steps' numbers [K, B] → [K, B, D]."""
    if is_causal_cnn(settings):
        return causal_cnn(parameters, ENCODER, inputs, lengths)
    clients, batch, steps, dimensions = inputs.shape
    flat = inputs.reshape(clients, batch * steps, dimensions)
    embedded = linear(parameters, _EMBEDDING, flat).view(clients, batch, steps, -1)
    return lstm_last_hidden(parameters, _LSTM, embedded, lengths)


def predict(parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
    """The head's outputs: [K, B, D] → [K, B, outputs]."""
    return linear(parameters, HEAD, representation)
