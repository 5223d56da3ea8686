"""Modules as users write them, and unusable modules."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


def split(encoder: nn.Module, head: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(encoder=encoder, head=head))


def linear(*, inputs: int, outputs: int) -> nn.Module:
    """Without a representation."""
    return nn.Linear(inputs, outputs)


def perceptron(*, inputs: int, outputs: int) -> nn.Module:
    return split(nn.Sequential(nn.Linear(inputs, 8), nn.Tanh()), nn.Linear(8, outputs))


def whole_perceptron(*, inputs: int, outputs: int) -> nn.Module:
    """Without a representation."""
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))


def small_convolution(*, inputs: tuple[int, int, int], outputs: int) -> nn.Module:
    channels, height, width = inputs
    encoder = nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * (height // 2) * (width // 2), 6),
    )
    return split(encoder, nn.Linear(6, outputs))


class LastState(nn.Module):
    """The state of a GRU after the last step, or wrongly after the padding."""

    def __init__(self, dimensions: int, *, uses_lengths: bool = True) -> None:
        super().__init__()
        self.gru = nn.GRU(dimensions, 7, batch_first=True)
        self.uses_lengths = uses_lengths

    def forward(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        states, last = self.gru(sequences)
        if not self.uses_lengths:
            return last[0]
        return states[torch.arange(len(states), device=states.device), lengths - 1]


class RecurrentModel(nn.Module):
    """A model with forward = head(encoder(…)), as required."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.encoder, self.head = LastState(inputs), nn.Linear(7, outputs)

    def forward(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        return self.head(self.encoder(sequences, lengths))


class LastValue(nn.Module):
    """Without a representation: a layer on the last step."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        rows = torch.arange(len(sequences), device=sequences.device)
        return self.layer(sequences[rows, lengths - 1])


def whole_convolution(*, inputs: tuple[int, int, int], outputs: int) -> nn.Module:
    """Without a representation."""
    channels, height, width = inputs
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * height * width, outputs),
    )


def blind_to_lengths(*, inputs: int, outputs: int) -> nn.Module:
    return split(LastState(inputs, uses_lengths=False), nn.Linear(7, outputs))


def with_layer(*layers: nn.Module) -> Callable[..., nn.Module]:
    def factory(*, inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 8), *layers, nn.Linear(8, outputs))

    return factory


batch_norm = with_layer(nn.BatchNorm1d(8))
instance_norm = with_layer(nn.Unflatten(1, (2, 4)), nn.InstanceNorm1d(2, track_running_stats=True))
dropout = with_layer(nn.Dropout(0.1))
no_dropout = with_layer(nn.Dropout(0.0))
lazy = with_layer(nn.LazyLinear(8))


class Functional(nn.Module):
    """A model whose last layer starts at 0, and so hides the layer before it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, 8), nn.Linear(8, outputs)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, windows: Tensor) -> Tensor:
        return self.last(self.hidden(self.first(windows)))

    def hidden(self, values: Tensor) -> Tensor:
        raise NotImplementedError


class FunctionalDropout(Functional):
    def hidden(self, values: Tensor) -> Tensor:
        return functional.dropout(values, 0.2, self.training)


class BatchStatistics(Functional):
    def hidden(self, values: Tensor) -> Tensor:
        return values - values.mean(dim=0)


class Counting(Functional):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("calls", torch.zeros(()))
        self.calls: Tensor

    def hidden(self, values: Tensor) -> Tensor:
        self.calls += 1
        return values


class Scaled(Functional):
    """A model with a constant buffer, which is harmless."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("scale", torch.rand(8))
        self.scale: Tensor

    def hidden(self, values: Tensor) -> Tensor:
        return self.scale * values


class OtherForward(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(inputs, 8), nn.Linear(8, outputs)

    def forward(self, windows: Tensor) -> Tensor:
        return self.head(self.encoder(windows)).exp()


class Stray(OtherForward):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.scale = nn.Parameter(torch.ones(1))


def tied(*, inputs: int, outputs: int) -> nn.Module:
    layer = nn.Linear(inputs, inputs)
    return split(layer, nn.Sequential(layer, nn.Linear(inputs, outputs)))


def without_head_parameters(*, inputs: int, outputs: int) -> nn.Module:
    return split(nn.Linear(inputs, outputs), nn.Identity())


def without_parameters(*, inputs: int, outputs: int) -> nn.Module:
    return nn.Identity()


def of_float64(*, inputs: int, outputs: int) -> nn.Module:
    return linear(inputs=inputs, outputs=outputs).double()


def frozen(*, inputs: int, outputs: int) -> nn.Module:
    return linear(inputs=inputs, outputs=outputs).requires_grad_(requires_grad=False)


def no_module(*, inputs: int, outputs: int) -> object:
    return [inputs, outputs]


def three_outputs(*, inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, 3)


def flat(*, inputs: int, outputs: int) -> nn.Module:
    return split(nn.Sequential(nn.Linear(inputs, 8), nn.Unflatten(1, (2, 4))), nn.Linear(4, 1))


def too_narrow(*, inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs + 1, outputs)


def of_other_keywords(width: int) -> nn.Module:
    return nn.Linear(width, 1)


def drawn_elsewhere(*, inputs: int, outputs: int) -> nn.Module:
    layer = nn.Linear(inputs, outputs)
    nn.init.constant_(layer.bias, float(np.random.default_rng().normal()))
    return layer


NO_FUNCTION = 3
