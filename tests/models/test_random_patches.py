"""Fixed filters of images: whitened patches of discs, which have the spectrum of natural images."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.fft import dctn, idctn

from fedproto_app.models.random_patches import (
    _DISCS,
    _RADII,
    RandomPatchClassifier,
    _visible_leaves,
    cosine_basis,
    leaf_patches,
    random_filters,
)
from tests.models.torch_oracle import seeded


def test_the_cosine_transform_is_orthonormal() -> None:
    torch.testing.assert_close(cosine_basis(5) @ cosine_basis(5).T, torch.eye(5))
    torch.testing.assert_close(cosine_basis(2)[1], torch.tensor([0.5**0.5, -(0.5**0.5)]))


def test_responses_to_natural_images_have_variance_1() -> None:
    # Patches whose coefficients fall as the law says: every filter's response has variance 1.
    count, patch = 40, 4
    frequency = torch.hypot(*torch.meshgrid([torch.arange(patch).float()] * 2, indexing="ij"))
    strength = 1 / frequency.clamp(min=0.5)
    basis = cosine_basis(patch)
    coefficients = torch.randn(20_000, patch, patch, generator=seeded(1)) * strength
    patches = torch.einsum("nij,ia,jb->nab", coefficients, basis, basis)
    filters = random_filters(count, 1, patch, seeded())[:, 0]
    responses = torch.einsum("kab,nab->nk", filters, patches)
    torch.testing.assert_close(responses.var(dim=0), torch.ones(count), atol=0.06, rtol=0)


def test_a_filter_is_a_patch_that_is_whitened_twice() -> None:
    patches = leaf_patches(3, 3, 4, seeded(3)).double().numpy()
    filters = random_filters(3, 3, 4, seeded(3))
    colours = np.array([[1, 1, 1], [1, 0, -1], [1, -2, 1]]) / np.sqrt([[3], [2], [6]])
    for patch, filter_of_patch in zip(patches, filters, strict=True):
        coefficients = dctn(np.tensordot(colours, patch, 1), axes=(1, 2), norm="ortho")
        for colour, row, column in np.ndindex(3, 4, 4):
            strength = [1, 0.35, 0.2][colour] / max(math.hypot(row, column), 0.5)
            coefficients[colour, row, column] /= strength
        coefficients /= np.linalg.norm(coefficients)
        for colour, row, column in np.ndindex(3, 4, 4):
            strength = [1, 0.35, 0.2][colour] / max(math.hypot(row, column), 0.5)
            coefficients[colour, row, column] /= strength
        expected = np.tensordot(colours.T, idctn(coefficients, axes=(1, 2), norm="ortho"), 1)
        np.testing.assert_allclose(filter_of_patch.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_leaves_have_the_colours_of_natural_images() -> None:
    patches = leaf_patches(4_000, 3, 2, seeded()).permute(0, 2, 3, 1)
    colours = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]])
    powers = (patches @ (colours / colours.norm(dim=1, keepdim=True)).T).square().mean((0, 1, 2))
    torch.testing.assert_close(powers.sqrt(), torch.tensor([1.0, 0.35, 0.2]), rtol=0.05, atol=0)
    assert len(patches[:, 0, 0].unique(dim=0)) == 4_000


@pytest.mark.parametrize(
    ("side", "patch"), [(1, 1), (2, 1), (4, 1), (5, 2), (8, 3), (16, 5), (17, 6), (32, 6)]
)
def test_patches_are_a_third_of_a_small_image(side: int, patch: int) -> None:
    model = RandomPatchClassifier((1, side, side + 3), 3, 2, seeded())
    assert model._filters.shape == (2, 1, patch, patch)


def test_an_edge_may_be_in_the_last_row_or_column_alone() -> None:
    patches = leaf_patches(500, 1, 3, seeded())[:, 0]
    assert ((patches[:, :2] == patches[:, :1, :1]).flatten(1).all(dim=1)).any()
    assert ((patches[:, :, :2] == patches[:, :1, :1]).flatten(1).all(dim=1)).any()


def test_patches_have_the_spectrum_of_natural_images() -> None:
    # The power falls as 1/f² from the mean, which counts as f = 1/2, to the highest frequencies.
    patches, basis = leaf_patches(4_000, 1, 6, seeded())[:, 0], cosine_basis(6)
    frequency = torch.hypot(*torch.meshgrid([torch.arange(6).float()] * 2, indexing="ij"))
    coefficients = torch.einsum("nab,ia,jb->nij", patches, basis, basis)
    whitened = (coefficients * frequency.clamp(min=0.5)).square().mean(dim=0)
    assert coefficients[:, 0, 0].square().mean() > 50 * coefficients[:, 5, 5].square().mean()
    shares = whitened / whitened.mean()
    assert shares.min() > 0.7
    assert shares.max() < 1.7


def test_a_pixel_shows_the_topmost_disc() -> None:
    # The same draws, pixel by pixel. The radii have the probabilities of 1/r³ near the patch.
    count, patch = 30, 4
    draws = seeded()
    numbers = torch.rand(count, _DISCS, generator=draws, dtype=torch.float64)
    places = torch.rand(count, _DISCS, 2, generator=draws, dtype=torch.float64)
    smallest, largest = _RADII
    grid = [smallest * (largest / smallest) ** (step / 63) for step in range(64)]
    weights = [(patch + 2 * radius) ** 2 / radius**2 for radius in grid]
    leaves = _visible_leaves(count, patch, seeded())
    for n in range(count):
        for row in range(patch):
            for column in range(patch):
                shown = _DISCS - 1
                for disc in reversed(range(_DISCS - 1)):
                    number, below = float(numbers[n, disc]) * sum(weights), 0
                    while number > sum(weights[: below + 1]):
                        below += 1
                    radius = grid[below]
                    y, x = (float(c) * (patch + 2 * radius) - radius for c in places[n, disc])
                    if (row + 0.5 - y) ** 2 + (column + 0.5 - x) ** 2 < radius**2:
                        shown = disc
                assert leaves[n, row, column] == shown


def test_every_patch_of_several_pixels_has_an_edge() -> None:
    patches = leaf_patches(300, 3, 3, seeded())
    assert patches.shape == (300, 3, 3, 3)
    assert (patches.flatten(start_dim=2).var(dim=2).sum(dim=1) > 0).all()
    assert leaf_patches(5, 3, 1, seeded()).shape == (5, 3, 1, 1)


def test_equal_seeds_draw_equal_filters() -> None:
    first, second = (random_filters(20, 3, 6, seeded(4)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, random_filters(20, 3, 6, seeded(5)))


def test_colours_that_are_weak_in_images_are_strong_in_filters() -> None:
    filters = random_filters(500, 3, 3, seeded())
    brightness = filters.sum(dim=1).square().mean()
    red_less_blue = (filters[:, 0] - filters[:, 2]).square().mean()
    assert red_less_blue > 2 * brightness


def test_by_hand() -> None:
    model = RandomPatchClassifier((1, 2, 2), 3, 1, seeded())  # one filter of one pixel
    assert model.representation_dim == 8
    filters = random_filters(1, 1, 1, seeded())
    gain = float(filters)
    pixels = torch.tensor([[2.0, -2.0], [0.1, 1.0]])
    features = model.encode({}, pixels.view(1, 1, 1, 2, 2))[0, 0]
    exceeds = (gain * pixels - 0.5).clamp(min=0).flatten()
    falls_below = (-gain * pixels - 0.5).clamp(min=0).flatten()
    torch.testing.assert_close(features, torch.cat([exceeds, falls_below]))


def test_a_mirror_image_is_the_same_where_it_is_as_good() -> None:
    images = torch.randn(1, 3, 3, 8, 9, generator=seeded(2))
    plain = RandomPatchClassifier((3, 8, 9), 10, 7, seeded())
    mirrored = RandomPatchClassifier((3, 8, 9), 10, 7, seeded(), mirrored=True)
    mean = (plain.encode({}, images) + plain.encode({}, images.flip(-1))) / 2
    torch.testing.assert_close(mirrored.encode({}, images), mean)
    torch.testing.assert_close(mirrored.encode({}, images.flip(-1)), mean)
    assert not torch.allclose(plain.encode({}, images), mean, atol=0.01)
