"""Images as pooled responses of fixed filters: nothing to learn, nothing to send.

Filters that are patches of natural images tell classes apart better than noise does, if patches are
whitened and brought to one contrast (Coates, Ng and Lee, AISTATS 2011). In place of photographs we
draw dead leaves (Lee, Mumford and Huang, IJCV 2001): ellipses of all sizes that hide each other
have the edges and the spectrum of natural images. They come from the run's seed, so every process
has the same filters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproto_app.models.model import LinearHeadModel

LARGEST_PATCH = 6
POOLED = 2  # regions a side, over which responses are averaged
ENCODED_AT_ONCE = 32  # images, of all clients together: their responses then stay in the cache

# The following were chosen on CIFAR-100, in colour, in grey and at 16 × 16, and on digits.
THRESHOLD = 0.5  # of a response
FAINT = 0.1  # variance of a patch below which its contrast is not raised. Pixels lie in −2 … 2
WHITE = 0.3  # added to the variance in every direction, so that noise is not amplified

PATCHES = 1000  # of dead leaves, whose covariance whitens
LEAVES = 200  # around each patch, which cover nine tenths of it
RADII = (1.0, 12.0)  # pixels of the smallest and the largest leaf

# Brightness, red against blue, green against both: the strength that each has in natural images.
_COLOURS = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))
_STRENGTHS = (1.0, 0.35, 0.2)


class RandomPatchClassifier(LinearHeadModel):
    """A linear head on the pooled responses to `filters` filters.

    Images are [K, B, channels, H, W]. The first filter gives the brightness of a patch, the mean of
    its pixels. The responses of the others are divided by the deviation of these pixels. For each
    of 2 × 2 regions a filter gives the mean excess over the threshold, and the mean excess below
    its negative: D = 8 · filters. The encoder has no parameters.

    mirrored: whether mirroring keeps an image's class. Then the features are the mean over the
        image and its mirror image, so that both have the same.
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
        side = patch_side(min(height, width))
        brightness = torch.full((1, channels, side, side), 1 / (channels * side**2))
        self._filters = torch.cat(
            [brightness, leaf_filters(filters - 1, channels, side, generator)]
        )

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
        side = self._filters.shape[-1]
        responses = F.conv2d(images, self._filters.to(images))
        mean, contrasts = responses[:, :1], responses[:, 1:]
        square = F.avg_pool2d(images.square(), side, stride=1).mean(dim=1, keepdim=True)
        variance = (square - mean.square()).clamp(min=0)
        responses = torch.cat([mean, contrasts * (variance + FAINT).rsqrt()], dim=1)
        parts = [F.relu(sign * responses - THRESHOLD) for sign in (1, -1)]
        return torch.cat(
            [F.adaptive_avg_pool2d(part, POOLED).flatten(start_dim=1) for part in parts], dim=1
        )


def patch_side(image_side: int) -> int:
    """Return the side of a patch in pixels: 4 for images of 8 × 8, 5 for 16 × 16, 6 from 24 on."""
    return min(image_side, max(2, min(LARGEST_PATCH, 3 + image_side // 8, image_side // 2)))


def leaf_filters(count: int, channels: int, side: int, generator: torch.Generator) -> Tensor:
    """Return filters [count, channels, side, side] with mean 0, from patches of dead leaves.

    C is the covariance of patches x of mean 0 and one contrast. With the whitening Q = (C +
    WHITE·I)^(−1/2), a filter's response to a patch y is the product of Qy and Qx / ‖Qx‖.
    """
    patches = dead_leaves(PATCHES, channels, side, generator).flatten(start_dim=1).double()
    patches = patches - patches.mean(dim=1, keepdim=True)
    variance = patches.square().mean(dim=1, keepdim=True)
    patches = patches / (variance + FAINT).sqrt()
    covariance = patches.T @ patches / PATCHES + WHITE * torch.eye(patches.shape[1]).double()
    within_a_leaf = variance.flatten() < 1e-9  # such patches make no filter, unless all are so
    chosen = patches[within_a_leaf.byte().argsort(stable=True)[:count]]
    filters: Tensor = torch.linalg.solve(covariance, chosen.T).T
    length = (filters * chosen).sum(dim=1, keepdim=True).sqrt()
    filters = filters / length.clamp(min=1e-6)
    return filters.float().view(count, channels, side, side)


def dead_leaves(count: int, channels: int, side: int, generator: torch.Generator) -> Tensor:
    """Draw patches [count, channels, side, side] of dead leaves, each of another image.

    Leaves fall from the front to the back. Their radii have the density 1/r³, and their colours are
    N(0, 1) times the strengths above. What no leaf covers is 0.
    """

    def uniform(least: float, most: float) -> Tensor:
        return least + (most - least) * torch.rand(count, 1, 1, generator=generator)

    colours = torch.ones(1, 1)
    if channels == len(_COLOURS):
        colours = F.normalize(torch.tensor(_COLOURS)) * torch.tensor(_STRENGTHS).unsqueeze(1)
    rows, columns = torch.meshgrid([torch.arange(side).float()] * 2, indexing="ij")
    smallest, largest = RADII
    patches = torch.zeros(count, channels, side, side)
    is_free = torch.ones(count, side, side, dtype=torch.bool)
    for _ in range(LEAVES):
        radius = uniform(largest**-2, smallest**-2).rsqrt()
        down = rows - uniform(-largest, side + largest)
        across = columns - uniform(-largest, side + largest)
        angle, narrow = uniform(0, math.pi), uniform(0.4, 1)
        along, aside = (
            across * angle.cos() + down * angle.sin(),
            down * angle.cos() - across * angle.sin(),
        )
        is_seen = is_free & (along.square() + (aside / narrow).square() < radius.square())
        colour = torch.randn(count, len(colours), generator=generator) @ colours
        patches += is_seen.unsqueeze(1) * colour[..., None, None]
        is_free &= ~is_seen
    return patches
