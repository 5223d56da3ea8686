"""Image classifiers: the small CNN or ResNet-18 as the encoder, and a linear head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedproto_app.models.convolution import (
    conv2d,
    conv_parameters,
    each_client,
    group_norm,
    max_pool2d,
    norm_parameters,
)
from fedproto_app.models.linear import linear, linear_parameters, with_prefixes
from fedproto_app.models.model import ENCODER, LinearHeadModel

# A small CNN for small images, batched over clients.
#
# Three blocks of 3×3 convolution (width, 2·width, 4·width channels), group normalisation, ReLU and
# 2×2 max pooling, then a linear layer and ReLU. Any image size works, because pooling includes an
# odd edge.

CNN_BLOCKS = 3
CNN_GROUPS = 4  # groups of every norm, so widths are multiples of 4
BLOCK, LINEAR = ENCODER + "blocks.", ENCODER + "linear."


class SmallCnnClassifier(LinearHeadModel):
    """The small CNN for images [K, B, C, H, W]. width: the channels of its first layer."""

    never_negative = True

    def __init__(
        self, shape: tuple[int, ...], classes: int, width: int, representation_dim: int
    ) -> None:
        super().__init__(representation_dim, classes)
        self._shape, self._width = shape, width

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        inputs, height, breadth = self._shape
        parts = {}
        for block in range(CNN_BLOCKS):
            outputs = self._width * 2**block
            parts[f"{BLOCK}{block}.conv."] = conv_parameters(inputs, outputs, 3, generator)
            parts[f"{BLOCK}{block}.norm."] = norm_parameters(outputs)
            inputs, height, breadth = outputs, -(-height // 2), -(-breadth // 2)
        pixels = inputs * height * breadth
        parts[LINEAR] = linear_parameters(pixels, self.representation_dim, generator)
        return with_prefixes(parts)

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (images,) = inputs
        if images.device.type != "cpu":  # with one client at a time, the GPU would be mostly idle
            features = _cnn_features(parameters, BLOCK, images)
        else:
            features = each_client(_cnn_features, parameters, BLOCK, images)
        return torch.relu(linear(parameters, LINEAR, features))


def _cnn_features(parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor) -> Tensor:
    """Apply the blocks: [K, B, C, H, W] → [K, B, F]."""
    features = inputs
    for block in range(CNN_BLOCKS):
        conv, norm = f"{prefix}{block}.conv.", f"{prefix}{block}.norm."
        features = conv2d(parameters[conv + "weight"], features, padding=1)
        features = group_norm(
            features, parameters[norm + "weight"], parameters[norm + "bias"], CNN_GROUPS
        )
        # ReLU and maximum commute. After pooling only a quarter of the values is left for ReLU.
        features = torch.relu(max_pool2d(features))
    return features.flatten(2)


# ResNet-18 for small images (He et al. 2016), batched over clients.
#
# The stem is one 3×3 convolution without pooling. Its stride is 2 if the image's shorter side has
# 64 pixels or more, so that 64×64 costs no more than 32×32. Otherwise the stride is 1. Four stages
# of two basic blocks follow, then the mean over all pixels. The stages have D/8, D/4, D/2 and D
# channels, if D is the length of the representation. He et al. have D = 512.
#
# Group normalisation replaces batch normalisation, whose running statistics describe one client's
# classes and mislead when they are averaged with other clients' (Hsieh et al. 2020, section 5). It
# has no buffers, so a model consists of its parameters alone, and a batch of one image works.
#
# Names are torchvision's, but with ``norm`` for ``bn``: ``layer1.0.conv1.weight``.

RESNET_STAGES = 4
RESNET_BLOCKS = 2  # blocks per stage
RESNET_GROUPS = 32  # groups of a norm, as in Wu and He 2018, if each group has two channels or more
RESNET_MULTIPLE = 16  # D must be a multiple of it, so that the first stage has an even number
FEWEST_NORMALISED = 4  # values in a group of the last norm. Of two, only the order would remain
LARGE = 64  # if the shorter side has at least so many pixels, the stem has stride 2


class ResNetClassifier(LinearHeadModel):
    """ResNet-18 for images [K, B, C, H, W]. D is a multiple of `RESNET_MULTIPLE`.

    With three channels and D = 512, the encoder has 11,168,832 values.
    """

    never_negative = True

    def __init__(self, shape: tuple[int, ...], classes: int, representation_dim: int) -> None:
        super().__init__(representation_dim, classes)
        self._channels = shape[0]

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        parts: dict[str, dict[str, Tensor]] = {}

        def add(conv: str, norm: str, inputs: int, outputs: int, kernel: int) -> None:
            parts[f"{ENCODER}{conv}."] = conv_parameters(inputs, outputs, kernel, generator)
            parts[f"{ENCODER}{norm}."] = norm_parameters(outputs)

        inputs = self.representation_dim // 2 ** (RESNET_STAGES - 1)
        add("conv1", "norm1", self._channels, inputs, 3)
        for stage in range(1, RESNET_STAGES + 1):
            outputs = self.representation_dim // 2 ** (RESNET_STAGES - stage)
            for block in range(RESNET_BLOCKS):
                name = f"layer{stage}.{block}."
                add(name + "conv1", name + "norm1", inputs, outputs, 3)
                add(name + "conv2", name + "norm2", outputs, outputs, 3)
                if inputs != outputs:
                    add(name + "downsample.0", name + "downsample.1", inputs, outputs, 1)
                inputs = outputs
        return with_prefixes(parts)

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (images,) = inputs
        return each_client(_resnet, parameters, ENCODER, images)


def resnet_dim(shape: tuple[int, ...], at_least: int) -> int:
    """Return the smallest usable D of ResNet-18 from a number on, for images of shape (C, H, W)."""
    _, *sides = shape
    reduction = _stem_stride(sides) * 2 ** (RESNET_STAGES - 1)
    pixels = math.prod(-(-side // reduction) for side in sides)
    dim = RESNET_MULTIPLE * math.ceil(at_least / RESNET_MULTIPLE)
    while pixels * dim < FEWEST_NORMALISED * _groups(dim):
        dim += RESNET_MULTIPLE
    return dim


def _groups(channels: int) -> int:
    return math.gcd(RESNET_GROUPS, channels // 2)


def _stem_stride(sides: Sequence[int]) -> int:
    return 2 if min(sides) >= LARGE else 1


def _resnet(parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor) -> Tensor:
    """Return the representation: [K, B, C, H, W] → [K, B, D]."""

    def conv_norm(conv: str, norm: str, features: Tensor, stride: int, padding: int) -> Tensor:
        weight = parameters[f"{prefix}{conv}.weight"]
        scale, shift = parameters[f"{prefix}{norm}.weight"], parameters[f"{prefix}{norm}.bias"]
        features = conv2d(weight, features, stride=stride, padding=padding)
        return group_norm(features, scale, shift, _groups(features.shape[2]))

    features = torch.relu(conv_norm("conv1", "norm1", inputs, _stem_stride(inputs.shape[-2:]), 1))
    for stage in range(1, RESNET_STAGES + 1):
        for block in range(RESNET_BLOCKS):
            name = f"layer{stage}.{block}."
            stride = 2 if stage > 1 and block == 0 else 1
            inner = torch.relu(conv_norm(name + "conv1", name + "norm1", features, stride, 1))
            inner = conv_norm(name + "conv2", name + "norm2", inner, 1, 1)
            if stride > 1:
                down = name + "downsample."
                features = conv_norm(down + "0", down + "1", features, stride, 0)
            features = torch.relu(features + inner)
    return features.mean(dim=(3, 4))
