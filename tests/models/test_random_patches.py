"""Fixed random filters of images: drawn alike everywhere, white over natural images' law."""

from __future__ import annotations

import torch

from fedproto_app.models.random_patches import RandomPatchClassifier, cosine_basis, random_filters
from tests.models.torch_oracle import seeded


def test_the_cosine_transform_is_orthonormal() -> None:
    torch.testing.assert_close(cosine_basis(5) @ cosine_basis(5).T, torch.eye(5))
    torch.testing.assert_close(cosine_basis(2)[1], torch.tensor([0.5**0.5, -(0.5**0.5)]))


def test_filters_answer_images_of_the_law_with_white_noise() -> None:
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
