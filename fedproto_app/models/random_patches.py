"""Represents images by pooled responses to fixed random filters, which are not learned or sent.

Neighbouring pixels of natural images are alike. The power at spatial frequency f falls as 1/f²
(Field 1987), and most of it is in brightness, not in colour. So a filter drawn as white noise would
respond almost only to brightness. Here filters act on whitened images, with this law divided out.

The filters are whitened patches of images. Patches of photographs are better filters than noise
(Coates and Ng, ICML 2011), but somebody would have to provide photographs. Here the images are
drawn too: discs of random sizes and colours cover each other like fallen leaves (Lee, Mumford
and Huang, IJCV 2001). Such images have the edges and the power spectrum of natural images. The
draws depend on the run's seed alone, so all clients have the same filters.
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

# Discs of radius r are drawn in numbers ∝ 1/r³, so enlarged images would have the same statistics.
_RADII = (2.0, 32.0)  # the smallest and the largest, in pixels
_DISCS = 32  # of a patch. The last is the background, which few pixels of a million show


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
    """Draw filters [count, channels, patch, patch]. channels: 1 or 3.

    Their responses to images with the law above have variance 1. A filter's coefficients are those
    of a drawn patch. They belong to the cosine transform and the colours above. Each is divided by
    its strength in natural images, to whiten the patch, and once more, to whiten the image that the
    filter is applied to.
    """
    basis = cosine_basis(patch)
    frequency = torch.hypot(*torch.meshgrid([torch.arange(patch).float()] * 2, indexing="ij"))
    colours, strengths = _colours(channels)
    strength = strengths[:, None, None] / frequency.clamp(min=1 / _CONSTANT)
    patches = leaf_patches(count, channels, patch, generator)
    coefficients = torch.einsum("kdab,ia,jb,cd->kcij", patches, basis, basis, colours) / strength
    coefficients /= coefficients.flatten(start_dim=1).norm(dim=1)[:, None, None, None] * strength
    return torch.einsum("kcij,ia,jb,cd->kdab", coefficients, basis, basis, colours)


def leaf_patches(count: int, channels: int, patch: int, generator: torch.Generator) -> Tensor:
    """Draw patches [count, channels, patch, patch] of images of discs that cover each other.

    A patch of several pixels has at least one edge: other patches are drawn again.
    """
    colours, strengths = _colours(channels)
    drawn, missing = [], count
    while missing > 0:
        leaves = _visible_leaves(2 * missing, patch, generator)
        shades = torch.randn(2 * missing, _DISCS, len(strengths), generator=generator)
        pixels = ((shades * strengths) @ colours)[torch.arange(len(leaves))[:, None, None], leaves]
        if patch > 1:
            pixels = pixels[(leaves != leaves[:, :1, :1]).flatten(start_dim=1).any(dim=1)]
        drawn.append(pixels[:missing].permute(0, 3, 1, 2))
        missing -= len(drawn[-1])
    return torch.cat(drawn)


def _visible_leaves(count: int, patch: int, generator: torch.Generator) -> Tensor:
    """Draw discs, and return the number of the topmost at each pixel: [count, patch, patch].

    The last disc is the background. Numbers are float64, so rounding, which depends on the
    processor, hardly ever decides whether a disc covers a pixel.
    """

    def uniform(*shape: int) -> Tensor:
        return torch.rand(count, _DISCS, *shape, generator=generator, dtype=torch.float64)

    smallest, largest = map(math.log2, _RADII)
    radii = torch.logspace(smallest, largest, 64, base=2, dtype=torch.float64)
    # On this grid 1/r³ becomes 1/r². Large discs are near a patch more often.
    likelihood = (radii**-2 * (patch + 2 * radii) ** 2).cumsum(dim=0)
    radius = radii[torch.searchsorted(likelihood, uniform() * likelihood[-1])]
    centre = uniform(2) * (patch + 2 * radius)[..., None] - radius[..., None]
    places = torch.arange(patch, dtype=torch.float64) + 0.5
    squares = (places - centre[..., None]).square()  # [count, _DISCS, 2, patch]
    covers = squares[:, :, 0, :, None] + squares[:, :, 1, None, :] < radius[..., None, None] ** 2
    covers[:, -1] = True
    return covers.int().argmax(dim=1)


def _colours(channels: int) -> tuple[Tensor, Tensor]:
    """Return the colours [c, channels] that images are divided into, and their strengths [c]."""
    if channels != len(_COLOURS):
        return torch.ones(1, 1), torch.ones(1)
    colours = torch.tensor(_COLOURS)
    return colours / colours.norm(dim=1, keepdim=True), torch.tensor(_STRENGTHS)


def cosine_basis(size: int) -> Tensor:
    """Return the orthonormal cosine transform (DCT-II) [size, size], one row per frequency."""
    frequency, place = torch.arange(size)[:, None], torch.arange(size)[None] + 0.5
    basis = (math.pi * frequency * place / size).cos() * math.sqrt(2 / size)
    basis[0] /= math.sqrt(2)
    return basis
