"""Random noise on a prototype before it leaves the client.

Source: P = the preprint of FUELS with appendix (P, appendix D.2; P, Table 4). There the "μ and λ,
mean and standard deviation" of the noise are 0 and 1. We take λ as the distribution's usual scale.
For the Laplace distribution this makes the standard deviation √2·λ. Such noise alone does not bound
the privacy loss, because the sensitivity of a prototype is not limited.
"""

from __future__ import annotations

from typing import Literal, assert_never

import torch
from torch import Tensor

Noise = Literal["laplace", "gaussian", "exponential"]


def noisy(prototype: Tensor, kind: Noise, scale: float, generator: torch.Generator) -> Tensor:
    """Return the prototype with independent noise on every value: [..., B, d] → [..., B, d].

    kind: "laplace" is Laplace(0, scale), "gaussian" is N(0, scale²), and "exponential" is the
        exponential distribution with mean `scale`, which is never negative.
    generator: must be on the prototype's device. Its state determines the noise.
    """
    match kind:
        case "laplace":  # the difference of two exponentials
            noise = _exponential(prototype, generator) - _exponential(prototype, generator)
        case "gaussian":
            noise = torch.empty_like(prototype).normal_(generator=generator)
        case "exponential":
            noise = _exponential(prototype, generator)
        case _:
            assert_never(kind)
    return prototype + scale * noise


def _exponential(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.empty_like(like).exponential_(generator=generator)
