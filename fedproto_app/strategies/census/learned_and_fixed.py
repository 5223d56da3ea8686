"""Fixed random features beside a learned representation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.models.model import HEAD, Model


class LearnedAndFixed(Model):
    """What an encoder has learned, and then what fixed functions of the same inputs say.

    learned: has the parameters, its head too, which sees its representation alone. fixed: has none;
    None for nothing beside. A head with rows for all D values sees them all.
    """

    def __init__(self, learned: Model, fixed: Model | None) -> None:
        self.learned, self._fixed = learned, fixed
        self.representation_dim = learned.representation_dim
        if fixed is not None:
            self.representation_dim += fixed.representation_dim

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self.learned.encoder_parameters(generator)

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self.learned.head_parameters(generator)

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        learned = self.learned.encode(parameters, *inputs)
        if self._fixed is None:
            return learned
        return torch.cat([learned, self._fixed.encode({}, *inputs)], dim=-1)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        rows = parameters[HEAD + "weight"].shape[1]
        return self.learned.predict(parameters, representation[..., :rows])
