"""A small ResNet for images of 32 × 32: the network beside the closed form in `benchmarks.results`.

ResNet-9, a shallow residual network that learns CIFAR-10 in few epochs (DAWNBench, Coleman et al.
2017), with a quarter of the channels and with group normalisation, as batch normalisation describes
one client's data. 413,000 parameters.
"""

from __future__ import annotations

from torch import Tensor, nn

WIDTH = 16  # channels of the first layer
GROUPS = 8  # of every norm


class SmallResNet(nn.Module):
    """ResNet-9 for images of shape (C, H, W), with `encoder` and `head`."""

    def __init__(self, inputs: tuple[int, int, int], outputs: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            _convolution(inputs[0], WIDTH),
            _convolution(WIDTH, 2 * WIDTH, pooled=True),
            _Residual(2 * WIDTH),
            _convolution(2 * WIDTH, 4 * WIDTH, pooled=True),
            _convolution(4 * WIDTH, 8 * WIDTH, pooled=True),
            _Residual(8 * WIDTH),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Linear(8 * WIDTH, outputs)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(images))
        return logits


class _Residual(nn.Module):
    """Two convolutions, whose result is added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _convolution(channels, channels), _convolution(channels, channels)
        )

    def forward(self, features: Tensor) -> Tensor:
        result: Tensor = features + self.layers(features)
        return result


def _convolution(inputs: int, outputs: int, *, pooled: bool = False) -> nn.Sequential:
    pooling = [nn.MaxPool2d(2)] if pooled else []
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        *pooling,
        nn.GroupNorm(GROUPS, outputs),
        nn.ReLU(),
    )
