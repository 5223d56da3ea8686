"""Fixed features of sequences: responses to random kernels, and shares of positive responses.

They are neither learned nor sent: everything is drawn from the run's seed, so all clients use equal
kernels. Each sequence is seen twice, once as it comes and once less its mean and divided by
its scale, so that both its level and its shape count.

ROCKET (Dempster, Petitjean and Webb, Data Mining and Knowledge Discovery 2020): the features are
the share of positive steps and the maximum of the response to a random kernel.

MiniRocket (Dempster, Schmidt and Webb, KDD 2021): there are 84 fixed kernels of nine taps, three of
weight 2 and six of weight −1, at dilations δ. A feature is the proportion of positive values

    PPV = share of the steps t with (w ∗ x)_t > b,   (w ∗ x)_t = Σ_i w_i · x_{t + (i − 4) δ},

with zeros beyond the ends. MiniRocket takes the biases b from quantiles of the responses of
training sequences. Clients could agree on these only with one more message. Our biases are
b = z · r, where z is a quantile of the standard normal distribution, and r is the root mean square
of this sequence's responses to the 84 kernels of this dilation. A random projection (Johnson and
Lindenstrauss 1984) reduces all shares to few features, because clients send the products of all
pairs of features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproto_app.models.model import LinearHeadModel

ENCODED_AT_ONCE = 64  # sequences of all clients together. Responses are many times as large
_LENGTHS = (3, 5, 7, 9)  # numbers of taps of random kernels
_TAPS = torch.full((84, 9), -1.0)
for _row, _places in enumerate(combinations(range(9), 3)):
    _TAPS[_row, list(_places)] = 2.0
_DILATIONS = (1, 2, 4, 8, 16, 32, 64)
_BIASES = 2  # biases for each kernel, dilation and view
_MOST_DIMENSIONS = 9  # how many dimensions a kernel of nine taps adds up at most
_WEIGHT = 0.1  # of a share in a projection, so that projections vary as much as other features
_VIEWS = 2


class RandomKernels:
    """A number of random `kernels` that give two features each.

    A kernel uses about half of the d dimensions. With its dilation it spans up to `steps` steps.
    """

    def __init__(
        self, dimensions: int, kernels: int, steps: int, generator: torch.Generator
    ) -> None:
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

    def features(self, sequences: Tensor, inside: Tensor) -> list[Tensor]:
        """Return features [n, …] of sequences [n, d, T]. inside: [n, 1, T] bool."""
        shares, maxima = [], []
        for ((length, dilation), kernels), bias in zip(
            self._kernels.items(), self._biases, strict=True
        ):
            reach = (length - 1) * dilation // 2  # zeros beyond either end
            response = F.conv1d(sequences, kernels.to(sequences), padding=reach, dilation=dilation)
            response = response + bias.to(sequences)[:, None]
            shares.append(2 * _share(response > 0, inside) - 1)
            maxima.append(response.masked_fill(~inside, -math.inf).amax(dim=2))
        return [*shares, *maxima]


class PositiveShares:
    """The shares of positive responses to the 84 kernels at all dilations and biases.

    The share that normally distributed responses would have is subtracted from each. This keeps
    vectors short, which suits noise for privacy."""

    def __init__(self, dimensions: int, generator: torch.Generator) -> None:
        self._parts = []
        for dilation in _DILATIONS:
            used = torch.stack([_used(dimensions, generator) for _ in _TAPS])
            quantiles = 0.05 + 0.9 * torch.rand(len(_TAPS), _BIASES, generator=generator)
            self._parts.append((dilation, used, quantiles))

    def features(self, sequences: Tensor, inside: Tensor) -> list[Tensor]:
        """Return features [n, 84] of sequences [n, d, T]. inside: [n, 1, T] bool."""
        shares = []
        for dilation, used, quantiles in self._parts:
            response = responses(sequences, used.to(sequences), dilation)
            for quantile in quantiles.to(sequences).unbind(dim=1):
                share = positive_shares(response, torch.special.ndtri(quantile), inside)
                shares.append(share - (1 - quantile))
        return shares


def responses(sequences: Tensor, used: Tensor, dilation: int) -> Tensor:
    """Return the responses [n, 84, T] of sequences [n, d, T] to the 84 kernels.

    used: [84, d]. For a dimension that a kernel adds up, it is 1 over the root of the number of
    these dimensions, else 0.
    """
    kernels = _TAPS.to(sequences)[:, None] * used[:, :, None]
    return F.conv1d(sequences, kernels, padding=4 * dilation, dilation=dilation)


def positive_shares(response: Tensor, z: Tensor, inside: Tensor) -> Tensor:
    """Return the share of each sequence's steps at which a response is above z · r [n, k].

    response: [n, k, T]. z: [k]. inside: [n, 1, T] bool, the steps of each sequence.
    """
    squares = (response * inside).square().sum(dim=(1, 2), keepdim=True)
    size = (squares / (inside.sum(dim=2, keepdim=True) * response.shape[1])).sqrt()
    return _share(response > z[:, None] * size, inside)


class SequenceKernelClassifier(LinearHeadModel):
    """A linear head on fixed features of sequences.

    Sequences are [K, B, T, d] and their lengths [K, B]. Half of the D features come from random
    kernels, which span up to `steps` steps. The encoder has no parameters.
    """

    def __init__(
        self, dimensions: int, outputs: int, features: int, steps: int, generator: torch.Generator
    ) -> None:
        super().__init__(features, outputs)
        kernels = features // (4 * _VIEWS)
        self._random = [RandomKernels(dimensions, kernels, steps, generator) for _ in range(_VIEWS)]
        self._positive = [PositiveShares(dimensions, generator) for _ in range(_VIEWS)]
        shares = _VIEWS * len(_DILATIONS) * len(_TAPS) * _BIASES
        width = features - 2 * _VIEWS * kernels
        self._projection = _WEIGHT * torch.randn(shares, width, generator=generator)

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        sequences, lengths = inputs
        parts = zip(
            torch.split(sequences.flatten(end_dim=1), ENCODED_AT_ONCE),
            torch.split(lengths.flatten(), ENCODED_AT_ONCE),
            strict=True,
        )
        encoded = torch.cat([self._features(*part) for part in parts])
        return encoded.view(*sequences.shape[:2], self.representation_dim)

    def _features(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        """Return the features of sequences: [n, T, d] → [n, D]."""
        inside = torch.arange(sequences.shape[1], device=lengths.device) < lengths.unsqueeze(1)
        views = [
            view.transpose(1, 2)
            for view in (sequences, scaled_by_themselves(sequences, inside.unsqueeze(2)))
        ]
        steps = inside.unsqueeze(1)
        random, shares = [], []
        for view, kernels, positive in zip(views, self._random, self._positive, strict=True):
            random += kernels.features(view, steps)
            shares += positive.features(view, steps)
        projected = torch.cat(shares, dim=1) @ self._projection.to(sequences)
        return torch.cat([*random, projected], dim=1)


def scaled_by_themselves(sequences: Tensor, inside: Tensor) -> Tensor:
    """Return sequences [n, T, d] minus their means over time, each divided by one scale.

    This is what ``data.sequences.scaling = "sequence"`` does. inside: [n, T, 1] bool. Constant
    sequences, and values beyond the end of a sequence, become 0.
    """
    values = sequences.double()
    count = inside.sum(dim=1, keepdim=True)
    centred = (values - (values * inside).sum(dim=1, keepdim=True) / count) * inside
    variance = centred.square().sum(dim=(1, 2), keepdim=True) / (count * values.shape[2])
    constant = ((sequences == sequences[:, :1]) | ~inside).all(dim=2).all(dim=1)
    scale = torch.where(constant[:, None, None], math.inf, variance.sqrt())
    return (centred / scale).to(sequences)


def _kernel(dimensions: int, length: int, generator: torch.Generator) -> Tensor:
    """Return a kernel [dimensions, length] with norm 1 and mean 0 over the steps. Unused dimensions
    have 0."""
    weights = torch.randn(dimensions, length, generator=generator)
    weights = weights - weights.mean(dim=1, keepdim=True)
    used = torch.rand(dimensions, generator=generator) < 0.5
    used[torch.randint(dimensions, (), generator=generator)] = True
    weights = weights * used.unsqueeze(1)
    unit: Tensor = weights / torch.linalg.vector_norm(weights)
    return unit


def _used(dimensions: int, generator: torch.Generator) -> Tensor:
    """Draw which dimensions a kernel adds up [d]. Their number is log-uniform."""
    most = min(dimensions, _MOST_DIMENSIONS)
    count = int((most + 1) ** float(torch.rand((), generator=generator)))
    used = torch.zeros(dimensions)
    used[torch.randperm(dimensions, generator=generator)[:count]] = count**-0.5
    return used


def _share(holds: Tensor, inside: Tensor) -> Tensor:
    """Return the share of each sequence's steps where `holds` is true: [n, k, T] → [n, k]."""
    return (holds & inside).sum(dim=2) / inside.sum(dim=2)
