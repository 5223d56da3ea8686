"""The image classifier: an encoder (the small CNN or ResNet-18) and a linear head.

All functions take a mapping of parameters with a leading client axis and know their names:
``encoder.*``, ``head.*``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.errors import SettingsError
from fedproto_app.models.linear import linear, linear_parameters
from fedproto_app.models.resnet import RESNET_WIDTH, resnet, resnet_parameters
from fedproto_app.models.small_cnn import small_cnn, small_cnn_parameters

ENCODER, HEAD = "encoder.", "head."
SMALL_CNN, RESNET18 = "small-cnn", "resnet18"


def representation_width(image_encoder: str, representation_dim: int) -> int:
    """D, the length of a representation: representation_dim, but always 512 for ResNet-18."""
    if image_encoder == RESNET18:
        return RESNET_WIDTH
    if image_encoder == SMALL_CNN:
        return representation_dim
    raise SettingsError(
        f"model.image-encoder = {image_encoder!r}: must be {SMALL_CNN!r} or {RESNET18!r}"
    )


def classifier_parameters(
    image_encoder: str,
    shape: tuple[int, int, int],
    classes: int,
    width: int,
    representation_dim: int,
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """One client's initial parameters for images of shape (C, H, W), without the client axis.

    width is the small CNN's; ResNet-18 has its own. The head is drawn last, so that an encoder
    starts the same whatever the number of classes.
    """
    head_inputs = representation_width(image_encoder, representation_dim)
    if image_encoder == RESNET18:
        encoder = resnet_parameters(shape[0], generator)
    else:
        encoder = small_cnn_parameters(shape, width, representation_dim, generator)
    head = linear_parameters(head_inputs, classes, generator)
    return {
        part + name: value
        for part, named in ((ENCODER, encoder), (HEAD, head))
        for name, value in named.items()
    }


def encode(image_encoder: str, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """The representation: [K, B, C, H, W] → [K, B, D]."""
    encoder = resnet if image_encoder == RESNET18 else small_cnn
    return encoder(parameters, ENCODER, inputs)


def classify(parameters: Mapping[str, Tensor], representation: Tensor) -> Tensor:
    """The logits: [K, B, D] → [K, B, classes]."""
    return linear(parameters, HEAD, representation)
