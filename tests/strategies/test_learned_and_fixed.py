"""A learned encoder with fixed features beside it."""

from __future__ import annotations

import torch

from fedproto_app.models.image_classifier import SmallCnnClassifier
from fedproto_app.models.model import HEAD
from fedproto_app.models.random_patches import RandomPatchClassifier
from fedproto_app.strategies.census.learner import LearnedAndFixed


def draws(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_head_sees_as_many_columns_as_it_has_rows() -> None:
    learned = SmallCnnClassifier((1, 8, 8), 3, 4, 6)
    fixed = RandomPatchClassifier((1, 8, 8), 3, 2, draws())
    combined = LearnedAndFixed(learned, fixed)
    assert combined.representation_dim == 6 + 16
    parameters = {n: v.unsqueeze(0) for n, v in combined.initial_parameters(draws()).items()}
    assert parameters[HEAD + "weight"].shape == (1, 6, 3)
    images = torch.randn(1, 5, 1, 8, 8, generator=draws(1))
    vectors = combined.encode(parameters, images)
    first, second = learned.encode(parameters, images), fixed.encode({}, images)
    torch.testing.assert_close(vectors, torch.cat([first, second], dim=2))
    torch.testing.assert_close(
        combined.predict(parameters, vectors), learned.predict(parameters, first)
    )
    head = {HEAD + "weight": torch.randn(1, 22, 3), HEAD + "bias": torch.randn(1, 3)}
    expected = vectors @ head[HEAD + "weight"] + head[HEAD + "bias"]
    torch.testing.assert_close(combined.predict(head, vectors), expected)


def test_with_nothing_beside_it_is_the_learned_one() -> None:
    learned = SmallCnnClassifier((1, 8, 8), 3, 4, 6)
    alone = LearnedAndFixed(learned, None)
    parameters = {n: v.unsqueeze(0) for n, v in alone.initial_parameters(draws()).items()}
    images = torch.randn(1, 2, 1, 8, 8, generator=draws(1))
    assert alone.representation_dim == 6
    assert torch.equal(alone.encode(parameters, images), learned.encode(parameters, images))
