"""What a task asks of a model: an encoder, whose output is the representation, and a head on it.

All parameters have a leading client axis, [K, …]. The encoder's have names that begin with
`ENCODER`, the head's begin with a prefix of the task's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.models.linear import linear, linear_parameters

ENCODER, HEAD = "encoder.", "head."


class Model(ABC):
    """The form that the models of all clients of a run have.

    representation_dim: D, the length of a representation.
    splits: whether there is a representation at all. If not, the encoder is the whole model, the
        head has no parameters, and `predict` changes nothing.
    sees_calendar: whether the head gets the columns of a sample's calendar, where there are any,
        after those of its representation.
    """

    representation_dim: int
    splits = True
    sees_calendar = False

    @abstractmethod
    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        """One client's initial encoder, without the client axis."""

    @abstractmethod
    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        """One client's initial head, without the client axis."""

    def initial_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        """One client's model. The head is drawn last, so the encoder does not depend on it."""
        return {**self.encoder_parameters(generator), **self.head_parameters(generator)}

    @abstractmethod
    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        """The representation, [K, B, D].

        inputs: the task's batch, [K, B, …] each: windows, images, or sequences and their lengths.
        """

    @abstractmethod
    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        """What the head makes of representations: [K, B, D] → [K, B, outputs]."""


class LinearHeadModel(Model):
    """A model whose head is one linear layer, D → outputs.

    beside: m, columns that the head gets after those of the representation, [K, B, D + m].
    """

    def __init__(
        self, representation_dim: int, outputs: int, head: str = HEAD, beside: int = 0
    ) -> None:
        self.representation_dim = representation_dim
        self._outputs, self._head, self._inputs = outputs, head, representation_dim + beside

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        named = linear_parameters(self._inputs, self._outputs, generator)
        return {self._head + name: value for name, value in named.items()}

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        return linear(parameters, self._head, representation)
