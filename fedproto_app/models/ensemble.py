"""Several models of one form as one, whose forecast is a weighted mean of theirs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.models.forecaster import DECODER
from fedproto_app.models.model import ENCODER, Model

CHOICE = "choice"  # [K, C], each member's weight: of the parameters, but not drawn here


class Ensemble(Model):
    """C members, which begin equal. Member c's parameters have its number after their prefix.

    A member with weight 0 is as if it were not there, whatever it says.
    """

    def __init__(self, member: Model, members: int) -> None:
        self._member, self.members = member, members
        self.representation_dim = members * member.representation_dim

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._for_all(self._member.encoder_parameters(generator))

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._for_all(self._member.head_parameters(generator))

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        each = range(self.members)
        made = [self._member.encode(member(parameters, one), *inputs) for one in each]
        return torch.cat(made, dim=2)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        parts = representation.chunk(self.members, dim=2)
        weights = parameters[CHOICE].T[:, :, None, None]  # (C, K, 1, 1)
        total = torch.zeros(())
        for number, (part, weight) in enumerate(zip(parts, weights, strict=True)):
            said = self._member.predict(member(parameters, number), part)
            total = total.to(said.device) + torch.where(weight == 0, 0.0, weight * said)
        return total

    def _for_all(self, drawn: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            of_member(name, one): value.clone()
            for one in range(self.members)
            for name, value in drawn.items()
        }


def of_member(name: str, number: int) -> str:
    """A parameter's name in the ensemble."""
    prefix, _, rest = name.partition(".")
    return f"{prefix}.{number}.{rest}"


def name_alone(name: str) -> str:
    """The name of a parameter of the first member, as it is called alone."""
    return name.replace(".0.", ".", 1)


def member(parameters: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """The parameters of one member, under its own names."""
    starts = tuple(f"{prefix}{number}." for prefix in (ENCODER, DECODER))
    return {
        name.replace(f".{number}.", ".", 1): value
        for name, value in parameters.items()
        if name.startswith(starts)
    }
