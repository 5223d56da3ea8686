"""A model that looks at nothing: its answer is the head's bias."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.models.model import LinearHeadModel


class ConstantModel(LinearHeadModel):
    """A representation of one value that is always 0, for inputs [K, B, …] of any kind."""

    def __init__(self, outputs: int) -> None:
        super().__init__(1, outputs)

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        return inputs[0].new_zeros(*inputs[0].shape[:2], 1)
