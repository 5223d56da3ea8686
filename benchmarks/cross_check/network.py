"""The network that both sides train; it knows neither of them."""

from __future__ import annotations

from math import prod

from torch import nn


class SmallNetwork(nn.Module):
    """A perceptron for small images. inputs: channels, height, width. outputs: classes."""

    def __init__(self, inputs: tuple[int, int, int], outputs: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(prod(inputs), 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()
        )
        self.head = nn.Linear(32, outputs)
