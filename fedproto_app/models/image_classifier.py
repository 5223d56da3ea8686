"""The image classifiers: the small CNN or ResNet-18 as the encoder, and a linear head."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedproto_app.models.image_classifier import RESNET_WIDTH, resnet, resnet_parameters
from fedproto_app.models.model import ENCODER, LinearHeadModel
from fedproto_app.models.small_cnn import small_cnn, small_cnn_parameters


class SmallCnnClassifier(LinearHeadModel):
    """The small CNN on images [K, B, C, H, W]; width: channels of its first layer."""

    def __init__(
        self, shape: tuple[int, ...], classes: int, width: int, representation_dim: int
    ) -> None:
        super().__init__(representation_dim, classes)
        self._shape, self._width = shape, width

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        channels, height, breadth = self._shape
        named = small_cnn_parameters(
            (channels, height, breadth), self._width, self.representation_dim, generator
        )
        return {ENCODER + name: value for name, value in named.items()}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (images,) = inputs
        return small_cnn(parameters, ENCODER, images)


class ResNetClassifier(LinearHeadModel):
    """ResNet-18 on images [K, B, C, H, W]; D is always 512."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(RESNET_WIDTH, classes)
        self._shape = shape

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        named = resnet_parameters(self._shape[0], generator)
        return {ENCODER + name: value for name, value in named.items()}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (images,) = inputs
        return resnet(parameters, ENCODER, images)
