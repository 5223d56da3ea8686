"""FUELS's prediction model (A, section 4.1): encoder, decoder and projector.

All functions take a mapping of parameters with a leading client axis and know their names:
``encoder.close.*``, ``encoder.periodic.*``, ``decoder.*``, ``projector.*``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.models.gru import gru_last_hidden, gru_parameters
from fedproto_app.models.linear import linear, linear_parameters

ENCODER, DECODER, PROJECTOR = "encoder.", "decoder.", "projector."


def forecaster_parameters(
    representation_dim: int, generator: torch.Generator, *, prototype_dim: int = 0
) -> dict[str, Tensor]:
    """One client's initial parameters, without the client axis.

    At d_r = 256 the encoder has exactly 100,608 values (A, Table 1) and the decoder 257. A
    projector d_r → d_p is added if prototype_dim > 0; it is drawn last, so that a method with a
    projector starts from the same encoder and decoder as one without.
    """
    hidden = representation_dim // 2
    parts = {
        ENCODER + "close.": gru_parameters(hidden, generator),
        ENCODER + "periodic.": gru_parameters(hidden, generator),
        DECODER: linear_parameters(representation_dim, 1, generator),
    }
    if prototype_dim:
        parts[PROJECTOR] = linear_parameters(representation_dim, prototype_dim, generator)
    return {part + name: value for part, named in parts.items() for name, value in named.items()}


def encode(parameters: Mapping[str, Tensor], inputs: Tensor, close_window: int) -> Tensor:
    """r = concat[GRU_c(close); GRU_p(periodic)] (P, eq. 2): [K, B, c + q] → [K, B, d_r]."""
    close, periodic = inputs[..., :close_window], inputs[..., close_window:]
    return torch.cat(
        [
            gru_last_hidden(parameters, ENCODER + "close.", close),
            gru_last_hidden(parameters, ENCODER + "periodic.", periodic),
        ],
        dim=2,
    )


def decode(parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
    """The forecast: [K, B, d_r] → [K, B]."""
    return linear(parameters, DECODER, representation).squeeze(2)


def project(parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
    """r' = pr(r): [K, B, d_r] → [K, B, d_p]; without a projector r' = r (P)."""
    if PROJECTOR + "weight" not in parameters:
        return representation
    return linear(parameters, PROJECTOR, representation)
