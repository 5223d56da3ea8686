"""The interface of a model: an encoder, whose output is the representation, and a head on it.

All parameters have a client axis in front [K, …]. The names of the encoder's parameters begin with
`ENCODER`, the names of the head's with the task's prefix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.models.linear import linear, linear_parameters, with_prefixes

ENCODER, HEAD = "encoder.", "head."


class Model(ABC):
    """The architecture of all clients' models in a run.

    representation_dim: D, the length of a representation.
    splits: whether the model has a representation. If not, the encoder is the entire model, the
        head has no parameters, and `predict` changes nothing.
    sees_beside: whether the head also reads the columns of a sample's calendar, if there are any.
        They come after the representation.
    never_negative: whether no value of a representation is ever below 0. Then no sum is either.
    """

    representation_dim: int
    splits = True
    sees_beside = False
    never_negative = False

    @abstractmethod
    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Return one client's initial encoder, without the client axis."""

    @abstractmethod
    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Return one client's initial head, without the client axis."""

    def initial_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        """Return one client's model. The head is drawn last and so does not affect the encoder."""
        return {**self.encoder_parameters(generator), **self.head_parameters(generator)}

    @abstractmethod
    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        """Return the representation [K, B, D].

        inputs: the task's batch, [K, B, …] each: windows, images, or sequences and their lengths.
        """

    @abstractmethod
    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        """Return the head's outputs for representations: [K, B, D] → [K, B, outputs]."""


class LinearHeadModel(Model):
    """A model whose head is one linear layer, D → outputs.

    beside: m, the number of columns that the head reads after the representation [K, B, D + m].
    """

    def __init__(
        self, representation_dim: int, outputs: int, head: str = HEAD, beside: int = 0
    ) -> None:
        self.representation_dim = representation_dim
        self._outputs, self._head, self._inputs = outputs, head, representation_dim + beside

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return with_prefixes(
            {self._head: linear_parameters(self._inputs, self._outputs, generator)}
        )

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        return linear(parameters, self._head, representation)
