"""The network that both sides train; it knows neither of them."""

from __future__ import annotations

from torch import nn


class SmallNetwork(nn.Module):
    """Two convolutions and two linear layers for images of 8 × 8 pixels, a head of one layer.

    inputs: channels, height, width, the sides divisible by 4. outputs: classes.
    """

    def __init__(self, inputs: tuple[int, int, int], outputs: int) -> None:
        super().__init__()
        channels, height, width = inputs
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * (height // 4) * (width // 4), 32),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, outputs)
