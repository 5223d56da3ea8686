"""Random noise on a prototype before it leaves the client.

Source: P = the preprint of FUELS with appendix (P, appendix D.2; P, Table 4). The noise there has
"μ and λ, mean and standard deviation" 0 and 1. We read λ as the distribution's usual scale, which
for the Laplace distribution makes the standard deviation √2·λ. Such noise alone bounds no privacy
loss, because a prototype's sensitivity is not limited.
"""

from __future__ import annotations

from typing import Literal, assert_never

import torch
from torch import Tensor

Noise = Literal["laplace", "gaussian", "exponential"]


def noisy(prototype: Tensor, kind: Noise, scale: float, generator: torch.Generator) -> Tensor:
    """The prototype plus independent noise on every value: [..., B, d] → [..., B, d].

    kind: "laplace" = Laplace(0, scale), "gaussian" = N(0, scale²), "exponential" = exponential
        with mean scale (never negative).
    generator: on the prototype's device. Its state decides the noise.
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
