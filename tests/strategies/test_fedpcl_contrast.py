"""FedPCL's contrast with prototypes by hand, and against cross-entropy of cosines."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from fedproto_app.strategies.fedpcl import class_contrast, class_likeness, prototype_contrast

# Two rows at right angles: cos is the identity matrix.
EYE = torch.eye(2).unsqueeze(0)


def test_prototype_contrast_by_hand() -> None:
    """Two phases at right angles, τ = 1: −log(e / (e + 1)); with the rows swapped 1 more."""
    swapped = EYE.flip(1)
    aligned, crossed = math.log(1 + math.e) - 1, math.log(1 + math.e)
    assert prototype_contrast(EYE, EYE, 1.0).item() == pytest.approx(aligned)  # 0.31326
    assert prototype_contrast(EYE, swapped, 1.0).item() == pytest.approx(crossed)  # 1.31326
    two_sets = prototype_contrast(EYE, torch.cat([5 * EYE, swapped]), 1.0)  # only directions count
    assert two_sets.item() == pytest.approx((aligned + crossed) / 2)


def test_prototype_contrast_is_cross_entropy_of_cosines() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    prototypes = torch.randn(2, 4, 5, generator=generator, dtype=torch.float64)
    expected = torch.zeros(3, dtype=torch.float64)
    for client in range(3):
        for prototype in prototypes:
            cosines = functional.cosine_similarity(rows[client][:, None], prototype[None], dim=2)
            expected[client] += functional.cross_entropy(cosines / 0.07, torch.arange(4)) / 2
    torch.testing.assert_close(prototype_contrast(rows, prototypes, 0.07), expected)
    zero_loss = prototype_contrast(torch.zeros(1, 4, 5), torch.zeros(1, 4, 5), 1e-3)
    assert zero_loss.item() == pytest.approx(math.log(4))


def test_class_contrast_by_hand() -> None:
    """Samples e₁, e₂ and e₁ of classes 0, 1 and 2; the prototypes of classes 0 and 1 are e₁ and e₂.
    For client 0 both exist, so its samples of classes 0 and 1 have log(1 + e⁻¹) each; client 1
    has a single class and no other to contrast with, log 1 = 0. No set has class 2: 0."""
    representation = torch.stack([torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])] * 2)
    labels, present = torch.tensor([[0, 1, 2], [0, 1, 2]]), torch.tensor([[1.0] * 3, [1.0, 0, 0]])
    first = torch.tensor([[1.0, 0.0], [0.0, 5.0], [0.0, 0.0]])
    second = torch.tensor([[4.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    aligned = math.log(1 + math.exp(-1))  # 0.31326
    first_two, only_first = torch.tensor([True, True, False]), torch.tensor([True, False, False])

    single = class_contrast(representation, labels, present, first[None], first_two[None], 1.0)
    torch.testing.assert_close(single, torch.tensor([2 * aligned / 3, aligned]))
    # Both sets have class 0, and their mean counts; only the first has class 1.
    sets, has_prototype = torch.stack([first, second]), torch.stack([first_two, only_first])
    multiple = class_contrast(representation, labels, present, sets, has_prototype, 1.0)
    torch.testing.assert_close(multiple, torch.tensor([1.5 * aligned / 3, aligned / 2]))


def test_class_contrast_of_phases_is_the_contrast_of_series() -> None:
    rng = torch.Generator().manual_seed(0)
    rows, sets = torch.randn(3, 4, 5, generator=rng), torch.randn(2, 4, 5, generator=rng)
    labels = torch.arange(4).expand(3, 4)
    actual = class_contrast(rows, labels, torch.ones(3, 4), sets, torch.ones(2, 4).bool(), 0.07)
    torch.testing.assert_close(actual, prototype_contrast(rows, sets, 0.07))


def test_class_contrast_has_finite_gradients_where_a_class_is_unknown() -> None:
    rows = torch.ones(1, 2, 3, requires_grad=True)
    has_prototype = torch.tensor([[True, False], [False, True]])
    loss = class_contrast(
        rows, torch.zeros(1, 2).long(), torch.ones(1, 2), torch.ones(2, 2, 3), has_prototype, 1e-3
    )
    (slope,) = torch.autograd.grad(loss.sum(), rows)
    assert loss.tolist() == [0]
    assert slope.isfinite().all()


def test_the_most_similar_prototype_of_a_class_counts() -> None:
    sets = torch.tensor(
        [[[3.0, 4.0], [0.0, 1.0], [0.0, 0.0]], [[9.0, 0.0], [0.0, 0.0], [0.0, 0.0]]]
    )
    has_prototype = torch.tensor([[True, True, False], [True, False, False]])
    actual = class_likeness(torch.tensor([[[2.0, 0.0], [0.0, 1.0]]]), sets, has_prototype)
    torch.testing.assert_close(
        actual, torch.tensor([[[1.0, 0.0, -math.inf], [0.8, 1.0, -math.inf]]])
    )
