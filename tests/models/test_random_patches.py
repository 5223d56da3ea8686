"""Fixed filters of images: patches of dead leaves, whitened, drawn alike everywhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedproto_app.models import random_patches
from fedproto_app.models.random_patches import (
    FAINT,
    THRESHOLD,
    WHITE,
    RandomPatchClassifier,
    dead_leaves,
    leaf_filters,
    patch_side,
)
from tests.models.torch_oracle import seeded


@pytest.mark.parametrize(("image", "patch"), [(1, 1), (2, 2), (8, 4), (16, 5), (28, 6), (99, 6)])
def test_patches_are_smaller_in_smaller_images(image: int, patch: int) -> None:
    assert patch_side(image) == patch


def test_leaves_have_edges_and_little_colour() -> None:
    patches = dead_leaves(2000, 3, 6, seeded())
    covered = (patches != 0).any(dim=1).float().mean()
    equal = (patches[..., 1:] == patches[..., :-1]).all(dim=1).float().mean()
    assert 0.85 < covered < 0.95
    assert 0.5 < equal < 0.9  # most neighbours are of one leaf
    brightness, red_less_blue = patches.sum(dim=1).var(), (patches[:, 0] - patches[:, 2]).var()
    # Along unit vectors the deviations are as 1 to 0.35.
    torch.testing.assert_close(
        (red_less_blue / 2) / (brightness / 3), torch.tensor(0.35**2), rtol=0.2, atol=0
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_filters_answer_whitened_patches(channels: int) -> None:
    # The definition, with the square root of the covariance's inverse.
    patches = dead_leaves(random_patches.PATCHES, channels, 3, seeded()).flatten(1).double()
    patches = patches - patches.mean(dim=1, keepdim=True)
    patches = patches / (patches.var(dim=1, keepdim=True, correction=0) + FAINT).sqrt()
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    whitened = patches @ (vectors / (values + WHITE).sqrt()) @ vectors.T
    codes = whitened[patches.var(dim=1) > 1e-9][:7]
    codes = codes / codes.norm(dim=1, keepdim=True)
    filters = leaf_filters(7, channels, 3, seeded()).flatten(1)
    responses = patches @ filters.double().T
    torch.testing.assert_close(responses, whitened @ codes.T, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(filters.mean(dim=1), torch.zeros(7), rtol=0, atol=1e-6)


def test_by_hand() -> None:
    model = RandomPatchClassifier((1, 2, 2), 3, 2, seeded())  # brightness, and one filter
    assert model.representation_dim == 16
    gain = leaf_filters(1, 1, 2, seeded()).flatten()
    pixels = torch.tensor([2.0, -1.0, 0.1, 2.0])
    features = model.encode({}, pixels.view(1, 1, 1, 2, 2))[0, 0]
    response = gain @ pixels / (pixels.var(correction=0) + FAINT).sqrt()
    both = torch.stack([pixels.mean(), response])
    excess = [(sign * both - THRESHOLD).clamp(min=0).repeat_interleave(4) for sign in (1, -1)]
    torch.testing.assert_close(features, torch.cat(excess))
    assert (features > 0).sum() == 8


def test_brightness_has_its_own_filter_and_a_strong_contrast_hardly_counts() -> None:
    images = torch.randn(1, 5, 3, 8, 8, generator=seeded(3))
    model = RandomPatchClassifier((3, 8, 8), 10, 20, seeded())

    def encoded(images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of the brightness, and those of the other filters."""
        by_filter = model.encode({}, images).view(5, 2, 20, 4)
        return by_filter[:, :, 0], by_filter[:, :, 1:]

    contrasts = encoded(images)[1]
    torch.testing.assert_close(encoded(images + 1)[1], contrasts, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(encoded(3 * images)[1], contrasts, rtol=0, atol=0.15)
    brightness, contrasts = encoded(torch.full((1, 5, 3, 8, 8), 2.0))
    torch.testing.assert_close(brightness[:, 0], torch.full((5, 4), 2 - THRESHOLD))
    assert contrasts.max() == 0  # in spite of rounding


def test_a_mirror_image_is_the_same_where_it_is_as_good() -> None:
    images = torch.randn(1, 3, 3, 8, 9, generator=seeded(2))
    plain = RandomPatchClassifier((3, 8, 9), 10, 7, seeded())
    mirrored = RandomPatchClassifier((3, 8, 9), 10, 7, seeded(), mirrored=True)
    mean = (plain.encode({}, images) + plain.encode({}, images.flip(-1))) / 2
    torch.testing.assert_close(mirrored.encode({}, images), mean)
    torch.testing.assert_close(mirrored.encode({}, images.flip(-1)), mean)
    assert not torch.allclose(plain.encode({}, images), mean, atol=0.01)
