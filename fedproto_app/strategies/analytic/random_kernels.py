"""Features of sequences from fixed, random convolution kernels, which are neither learned nor sent.

For random kernels of many widths, the maximum of the response and the share of steps with a
positive response are strong features (ROCKET: Dempster, Petitjean and Webb 2020). The kernels are
drawn from the run's seed, so all clients have the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproto_app.models.model import LinearHeadModel

ENCODED_AT_ONCE = 512  # sequences of all clients together; responses are many times their size
_LENGTHS = (3, 5, 7, 9)  # taps of a kernel


class RandomKernelClassifier(LinearHeadModel):
    """A linear head on the responses to `kernels` random kernels.

    Sequences are [K, B, T, d] with lengths [K, B]. A kernel uses about half of the dimensions and,
    with its dilation, spans up to `steps` steps. D = 2 · kernels. The encoder has no parameters.
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
        # Kernels of the same length and dilation share a convolution.
        self._kernels = {form: torch.stack(kernels) for form, kernels in drawn.items()}
        biases = 2 * torch.rand(kernels, generator=generator) - 1
        sizes = [len(kernels) for kernels in self._kernels.values()]
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
        """Return the responses to sequences [n, T, d], [n, D]."""
        flat = sequences.transpose(1, 2)
        steps = torch.arange(flat.shape[2], device=flat.device)
        inside = (steps < lengths.unsqueeze(1)).unsqueeze(1)  # (n, 1, T)
        shares, maxima = [], []
        for ((length, dilation), kernels), bias in zip(
            self._kernels.items(), self._biases, strict=True
        ):
            reach = (length - 1) * dilation // 2  # zeros beyond either end
            response = F.conv1d(flat, kernels.to(flat), padding=reach, dilation=dilation)
            response = response + bias.to(flat)[:, None]
            positive = ((response > 0) & inside).sum(dim=2) / inside.sum(dim=2)
            shares.append(2 * positive - 1)
            maxima.append(response.masked_fill(~inside, -math.inf).amax(dim=2))
        return torch.cat([*shares, *maxima], dim=1)


def _kernel(dimensions: int, length: int, generator: torch.Generator) -> Tensor:
    """Return a kernel [dimensions, length] of mean 0 over the steps and norm 1; unused dimensions
    are 0."""
    weights = torch.randn(dimensions, length, generator=generator)
    weights = weights - weights.mean(dim=1, keepdim=True)
    used = torch.rand(dimensions, generator=generator) < 0.5
    used[torch.randint(dimensions, (), generator=generator)] = True
    weights = weights * used.unsqueeze(1)
    unit: Tensor = weights / torch.linalg.vector_norm(weights)
    return unit
