"""Sequences as responses of fixed, random convolution kernels: nothing to learn, nothing to send.

Random kernels of many widths, and of each response the share of steps at which it is positive and
its maximum, are strong features (ROCKET: Dempster, Petitjean and Webb 2020). They come from the
run's seed, so all clients have the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproto_app.models.model import LinearHeadModel

ENCODED_AT_ONCE = 512  # sequences, of all clients together: responses are many times their size
_LENGTHS = (3, 5, 7, 9)  # of kernels, in taps


class RandomKernelClassifier(LinearHeadModel):
    """A linear head on the responses to `kernels` random kernels.

    Sequences are [K, B, T, d] with their lengths [K, B]. A kernel sees about half of the
    dimensions, and with its dilation up to `steps` steps. D = 2 · kernels. The encoder has no
    parameters.
    """

    def __init__(
        self, dimensions: int, outputs: int, kernels: int, steps: int, generator: torch.Generator
    ) -> None:
        super().__init__(2 * kernels, outputs)
        drawn: dict[tuple[int, int], list[Tensor]] = {}
        lengths = [length for length in _LENGTHS if length <= max(steps, _LENGTHS[0])]
        for number in range(kernels):
            length = lengths[number % len(lengths)]
            widest = max(1.0, (steps - 1) / (length - 1))
            dilation = int(widest ** float(torch.rand((), generator=generator)))
            kernel = _kernel(dimensions, length, generator)
            drawn.setdefault((length, dilation), []).append(kernel)
        # Kernels of one form are one convolution.
        self._kernels = {form: torch.stack(kernels) for form, kernels in drawn.items()}
        biases = 2 * torch.rand(kernels, generator=generator) - 1
        sizes = [len(some) for some in self._kernels.values()]
        self._biases = torch.split(biases, sizes)

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        sequences, lengths = inputs
        parts = zip(
            torch.split(sequences.flatten(end_dim=1), ENCODED_AT_ONCE),
            torch.split(lengths.flatten(), ENCODED_AT_ONCE),
            strict=True,
        )
        encoded = torch.cat([self._responses(*part) for part in parts])
        return encoded.view(*sequences.shape[:2], self.representation_dim)

    def _responses(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        """Of sequences [n, T, d], [n, D]."""
        flat = sequences.transpose(1, 2)
        steps = torch.arange(flat.shape[2], device=flat.device)
        there = (steps < lengths.unsqueeze(1)).unsqueeze(1)  # (n, 1, T)
        shares, maxima = [], []
        for ((length, dilation), kernels), bias in zip(
            self._kernels.items(), self._biases, strict=True
        ):
            reach = (length - 1) * dilation // 2  # beyond either end there are zeros
            response = F.conv1d(flat, kernels.to(flat), padding=reach, dilation=dilation)
            response = response + bias.to(flat)[:, None]
            positive = ((response > 0) & there).sum(dim=2) / there.sum(dim=2)
            shares.append(2 * positive - 1)
            maxima.append(response.masked_fill(~there, -math.inf).amax(dim=2))
        return torch.cat([*shares, *maxima], dim=1)


def _kernel(dimensions: int, length: int, generator: torch.Generator) -> Tensor:
    """[dimensions, length] of mean 0 over the steps and norm 1, 0 for the dimensions not seen."""
    weights = torch.randn(dimensions, length, generator=generator)
    weights = weights - weights.mean(dim=1, keepdim=True)
    seen = torch.rand(dimensions, generator=generator) < 0.5
    seen[torch.randint(dimensions, (), generator=generator)] = True
    weights = weights * seen.unsqueeze(1)
    unit: Tensor = weights / torch.linalg.vector_norm(weights)
    return unit
