"""A linear layer, batched over clients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def linear_parameters(inputs: int, outputs: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a client's weight [inputs, outputs] and bias [outputs], as torch's: U(±1/√inputs)."""
    bound = inputs**-0.5
    return {
        "weight": torch.empty(inputs, outputs).uniform_(-bound, bound, generator=generator),
        "bias": torch.empty(outputs).uniform_(-bound, bound, generator=generator),
    }


def with_prefixes(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of all parts. Each name gets the prefix of its part."""
    return {
        part + name: value for part, tensors in parts.items() for name, value in tensors.items()
    }


def linear(parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor) -> Tensor:
    """Apply ``<prefix>weight`` and ``<prefix>bias``: [K, B, inputs] → [K, B, outputs]."""
    bias = parameters[prefix + "bias"].unsqueeze(1)
    return torch.baddbmm(bias, inputs, parameters[prefix + "weight"])
