"""A model with a memory of samples, whose predictions are mixed with its own."""

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
    """The remembered samples of K clients, and how they use them.

    vectors: [K, M, D]; targets: labels [K, M], or numbers [K, M, H]; samples: [K], how many of the
    M places are filled; neighbours: [K], k; share: [K], λ, the neighbours' part in the answer.
    """

    vectors: Tensor
    targets: Tensor
    samples: Tensor
    neighbours: Tensor
    share: Tensor

    def parameters(self) -> dict[str, Tensor]:
        """Return the memory as parameters of a model."""
        return {MEMORY + field.name: getattr(self, field.name) for field in fields(self)}


class Remembering(Model):
    """Another model, whose parameters may include a `Memory`.

    It predicts λ·(neighbours' prediction) + (1 − λ)·(model's prediction). For classes these are
    probabilities, and `predict` returns their logarithms. Without a memory it is the other model.
    classes: the number of classes, or 0 if predictions are numbers.
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
        queries = representation[..., : self.representation_dim]  # without the head's extra columns
        most_neighbours = int(memory.neighbours.max())
        distances, places = nearest(queries, memory.vectors, memory.samples, most_neighbours)
        neighbour_answer = self.neighbour_answer(distances, places, memory)
        return self.mixture(neighbour_answer, answer, memory.share).to(answer.dtype)

    def neighbour_answer(self, distances: Tensor, places: Tensor, memory: Memory) -> Tensor:
        """Return the neighbours' prediction, [K, B, C or H]: class shares, or mean numbers."""
        weights = kernel_weights(distances, memory.neighbours)
        if self.classes:
            return votes(weights, places, memory.targets, self.classes)
        return means(weights, places, memory.targets)

    def mixture(self, neighbour_answer: Tensor, answer: Tensor, share: Tensor) -> Tensor:
        """Mix in the other model's answer, logits for classes: [K, B, C or H] float64."""
        part = share.double().view(-1, 1, 1)
        if not self.classes:
            return part * neighbour_answer + (1 - part) * answer.double()
        model_shares = answer.double().softmax(dim=2)
        return (part * neighbour_answer + (1 - part) * model_shares).clamp(min=_NEVER_ZERO).log()
