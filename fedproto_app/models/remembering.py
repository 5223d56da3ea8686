"""A model beside a memory of samples: what their nearest say is mixed into what it says itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from fedproto_app.maths.neighbours import kernel_weights, means, nearest, votes
from fedproto_app.models.model import Model

MEMORY = "memory."
_NEVER_ZERO = 1e-12  # of a probability whose logarithm is taken


@dataclass(frozen=True)
class Memory:
    """What K clients remember, and how they use it.

    vectors: [K, M, D]; targets: labels [K, M], or numbers [K, M, H]; samples: [K], how many of the
    M places are filled; neighbours: [K], k; share: [K], λ, the neighbours' part in the answer.
    """

    vectors: Tensor
    targets: Tensor
    samples: Tensor
    neighbours: Tensor
    share: Tensor

    def named(self) -> dict[str, Tensor]:
        """As parameters of a model."""
        return {MEMORY + field.name: getattr(self, field.name) for field in fields(self)}


class Remembering(Model):
    """Another model, whose parameters may have a `Memory` with them.

    It answers λ·(what the neighbours say) + (1 − λ)·(what the model says). Of classes these are
    probabilities, and `predict` gives their logarithms. Without a memory it is the other model.
    classes: how many, or 0 where answers are numbers.
    """

    def __init__(self, model: Model, classes: int) -> None:
        self._model, self.classes = model, classes
        self.representation_dim, self.splits = model.representation_dim, model.splits
        self.sees_calendar = model.sees_calendar

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._model.encoder_parameters(generator)

    def head_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return self._model.head_parameters(generator)

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        return self._model.encode(parameters, *inputs)

    def predict(self, parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
        answer = self._model.predict(parameters, representation)
        if MEMORY + "vectors" not in parameters:
            return answer
        memory = Memory(*(parameters[MEMORY + field.name] for field in fields(Memory)))
        queries = representation[..., : self.representation_dim]  # without what the head gets more
        most = int(memory.neighbours.max())
        distances, places = nearest(queries, memory.vectors, memory.samples, most)
        said = self.said(distances, places, memory)
        return self.mixture(said, answer, memory.share).to(answer.dtype)

    def said(self, distances: Tensor, places: Tensor, memory: Memory) -> Tensor:
        """What the neighbours say, [K, B, C or H]: shares of classes, or mean numbers."""
        weights = kernel_weights(distances, memory.neighbours)
        if self.classes:
            return votes(weights, places, memory.targets, self.classes)
        return means(weights, places, memory.targets)

    def mixture(self, said: Tensor, answer: Tensor, share: Tensor) -> Tensor:
        """With the other model's answer, in which classes are logits, [K, B, C or H] float64."""
        part = share.double().view(-1, 1, 1)
        if not self.classes:
            return part * said + (1 - part) * answer.double()
        own = answer.double().softmax(dim=2)
        return (part * said + (1 - part) * own).clamp(min=_NEVER_ZERO).log()
