"""A small CNN for small images, batched over clients.

Three blocks of 3×3 convolution (width, 2·width, 4·width channels), group normalisation, ReLU and
2×2 max pooling, then a linear layer and ReLU. Every image size works: an odd edge is pooled too.
"""

from __future__ import annotations

from collections.abc import Mapping

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
from fedproto_app.models.linear import linear, linear_parameters

BLOCKS = 3
GROUPS = 4  # of every norm: widths are multiples of 4
BLOCK, LINEAR = "blocks.", "linear."


def small_cnn_parameters(
    shape: tuple[int, int, int], width: int, representation_dim: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Return one client's parameters for images of shape (C, H, W); width is a multiple of 4."""
    inputs, height, breadth = shape
    parts = {}
    for block in range(BLOCKS):
        outputs = width * 2**block
        parts[f"{BLOCK}{block}.conv."] = conv_parameters(inputs, outputs, 3, generator)
        parts[f"{BLOCK}{block}.norm."] = norm_parameters(outputs)
        inputs, height, breadth = outputs, -(-height // 2), -(-breadth // 2)
    parts[LINEAR] = linear_parameters(inputs * height * breadth, representation_dim, generator)
    return {
        part + name: value for part, tensors in parts.items() for name, value in tensors.items()
    }


def small_cnn(parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor) -> Tensor:
    """Return the representation [K, B, C, H, W] → [K, B, D]; parameters under prefix."""
    blocks = prefix + BLOCK
    if inputs.device.type != "cpu":  # one client at a time would leave it idle
        features = _features(parameters, blocks, inputs)
    else:
        features = each_client(_features, parameters, blocks, inputs)
    return torch.relu(linear(parameters, prefix + LINEAR, features))


def _features(parameters: Mapping[str, Tensor], prefix: str, inputs: Tensor) -> Tensor:
    """Apply the blocks: [K, B, C, H, W] → [K, B, F]."""
    features = inputs
    for block in range(BLOCKS):
        conv, norm = f"{prefix}{block}.conv.", f"{prefix}{block}.norm."
        features = conv2d(parameters[conv + "weight"], features, padding=1)
        features = group_norm(
            features, parameters[norm + "weight"], parameters[norm + "bias"], GROUPS
        )
        # ReLU and maximum commute, and pooling leaves a quarter of the values.
        features = torch.relu(max_pool2d(features))
    return features.flatten(2)
