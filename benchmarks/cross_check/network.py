"""The networks that both sides train; they import neither side."""

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


class SmallCnn(nn.Module):
    """Two convolutions for small images. inputs: channels, height, width. outputs: classes."""

    def __init__(self, inputs: tuple[int, int, int], outputs: int) -> None:
        super().__init__()
        channels, height, width = inputs
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), 64),
            nn.ReLU(),
        )
        self.head = nn.Linear(64, outputs)
