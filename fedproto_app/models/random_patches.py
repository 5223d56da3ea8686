"""Represents images by pooled responses to fixed random filters, which are not learned or sent.

Neighbouring pixels of natural images are alike. The power at spatial frequency f falls as 1/f²
(Field 1987), and most of it is in brightness, not in colour. So a filter drawn as white noise would
respond almost only to brightness. Here white-noise filters act on whitened images, with this law
divided out. Whitening by measured covariances would do the same (Coates, Ng and Lee, AISTATS 2011),
but it needs data. The filters come from the run's seed, so all clients have the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproto_app.models.model import LinearHeadModel

LARGEST_PATCH = 6
POOLED = 2  # the image is divided into 2 × 2 regions, over which responses are averaged
ENCODED_AT_ONCE = 32  # images of all clients together. Their responses then stay in the cache
THRESHOLD = 0.5  # what a response must exceed. Pixels lie in −2 … 2

# Brightness, red against blue, green against both, and how strong each is in natural images.
_COLOURS = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))
_STRENGTHS = (1.0, 0.35, 0.2)
_CONSTANT = 2.0  # the strength of the patch's mean, which has f = 0


class RandomPatchClassifier(LinearHeadModel):
    """A linear head on the pooled responses to `filters` random filters.

    Images are [K, B, channels, H, W]. In each of 2 × 2 regions a filter gives two features: the
    mean excess of its responses over the threshold, and their mean excess below the negative
    threshold. So D = 8 · filters. The encoder has no parameters.

    mirrored: whether a mirrored image keeps its class. If so, the features are the mean over the
        image and its mirror image, so that both get equal features.
    """

    never_negative = True

    def __init__(
        self,
        shape: tuple[int, ...],
        classes: int,
        filters: int,
        generator: torch.Generator,
        mirrored: bool = False,
    ) -> None:
        super().__init__(2 * POOLED**2 * filters, classes)
        self._mirrored = mirrored
        channels, height, width = shape
        patch = max(1, min(LARGEST_PATCH, (min(height, width) + 1) // 3))
        self._filters = random_filters(filters, channels, patch, generator)

    def encoder_parameters(self, generator: torch.Generator) -> dict[str, Tensor]:
        return {}

    def encode(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> Tensor:
        (images,) = inputs
        parts = torch.split(images.flatten(end_dim=1), ENCODED_AT_ONCE)
        features = torch.cat([self._features(part) for part in parts])
        return features.view(*images.shape[:2], self.representation_dim)

    def _features(self, images: Tensor) -> Tensor:
        """[B, C, H, W] → [B, D]."""
        pooled = self._pooled(images)
        return (pooled + self._pooled(images.flip(-1))) / 2 if self._mirrored else pooled

    def _pooled(self, images: Tensor) -> Tensor:
        responses = F.conv2d(images, self._filters.to(images))
        parts = [F.relu(sign * responses - THRESHOLD) for sign in (1, -1)]
        return torch.cat(
            [F.adaptive_avg_pool2d(part, POOLED).flatten(start_dim=1) for part in parts], dim=1
        )


def random_filters(count: int, channels: int, patch: int, generator: torch.Generator) -> Tensor:
    """Draw filters [count, channels, patch, patch] with N(0, 1) coefficients on whitened patches.

    The coefficients belong to the cosine transform and the colours above. Each is divided by its
    strength in natural images.
    """
    basis = cosine_basis(patch)
    frequency = torch.hypot(*torch.meshgrid([torch.arange(patch).float()] * 2, indexing="ij"))
    strength = 1 / frequency.clamp(min=1 / _CONSTANT)
    colours, strengths = torch.ones(1, 1), torch.ones(1)
    if channels == len(_COLOURS):
        colours, strengths = torch.tensor(_COLOURS), torch.tensor(_STRENGTHS)
        colours = colours / colours.norm(dim=1, keepdim=True)
    drawn = torch.randn(count, len(colours), patch, patch, generator=generator)
    drawn = drawn / drawn.flatten(start_dim=1).norm(dim=1)[:, None, None, None]
    whitened = drawn / (strengths[:, None, None] * strength)
    return torch.einsum("kcij,ia,jb,cd->kdab", whitened, basis, basis, colours)


def cosine_basis(size: int) -> Tensor:
    """Return the orthonormal cosine transform (DCT-II) [size, size], one row per frequency."""
    frequency, place = torch.arange(size)[:, None], torch.arange(size)[None] + 0.5
    basis = (math.pi * frequency * place / size).cos() * math.sqrt(2 / size)
    basis[0] /= math.sqrt(2)
    return basis
