"""Every loss against a hand-computed case, at ordinary and at extreme temperatures."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from fedproto_app.maths.losses import (
    class_contrast,
    class_likeness,
    cosine_matrix,
    inter_client_loss,
    intra_client_loss,
    prediction_loss,
    prototype_contrast,
    prototype_distance,
    proximal_term,
)

# Two rows at right angles: cos is the identity matrix.
EYE = torch.eye(2).unsqueeze(0)


def test_prediction_loss_counts_present_targets_only() -> None:
    prediction, target = torch.tensor([[1.0, 5.0, 2.0]]), torch.tensor([[0.0, 0.0, 4.0]])
    present = torch.tensor([[1.0, 0.0, 1.0]])
    assert prediction_loss(prediction, target, present).tolist() == [2.5]  # (1 + 4) / 2
    assert prediction_loss(prediction, target, torch.zeros(1, 3)).tolist() == [0.0]


def test_cosine_ignores_length() -> None:
    rows = torch.tensor([[[3.0, 0.0], [1.0, 1.0]]])
    expected = torch.tensor([[[1.0, 2**-0.5], [2**-0.5, 1.0]]])
    torch.testing.assert_close(cosine_matrix(rows, 7 * rows), expected)


@pytest.mark.parametrize(
    ("weight", "negatives", "expected"),
    [
        # SM = [[e, 1], [1, e]] at τ = 1; Z = SM; loss = −log(e / (e + e + 1)).
        ([[1.0, 1.0], [1.0, 1.0]], "filtered", -math.log(math.e / (2 * math.e + 1))),
        # Row 0: its diagonal is filtered out (W < 0), the other weighs 0.5: −log(e / (e + 0.5·1)).
        # Row 1: everything is filtered out: −log(e / e) = 0.
        ([[-1.0, 0.5], [0.0, -2.0]], "filtered", -math.log(math.e / (math.e + 0.5)) / 2),
        # A true negative counts with SM itself: −log(e / (e + 1)).
        ([[-1.0, 0.5], [0.0, -2.0]], "similarity", -math.log(math.e / (math.e + 1)) / 2),
    ],
)
def test_intra_loss_by_hand(weight: list[list[float]], negatives: str, expected: float) -> None:
    loss = intra_client_loss(EYE, EYE, torch.tensor([weight]), 1.0, negatives)
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def naive_intra(projected: Tensor, augmented: Tensor, weight: Tensor, tau: float) -> Tensor:
    """P, eq. 6, word by word, in float64."""
    similarity = torch.exp(cosine_matrix(projected, augmented) / tau)
    z = torch.relu(similarity * weight)
    positive = similarity.diagonal(dim1=1, dim2=2)
    return -(positive / (positive + z.sum(dim=2))).log().mean(dim=1)


def test_intra_loss_and_its_gradients_equal_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (3, 6, 4)
    projected, augmented = (
        torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
        for _ in range(2)
    )
    weight = torch.randn(3, 6, 6, dtype=torch.float64, generator=generator, requires_grad=True)
    ours = intra_client_loss(projected, augmented, weight, 0.5, "filtered")
    naive = naive_intra(projected, augmented, weight, 0.5)
    torch.testing.assert_close(ours, naive)
    inputs = (projected, augmented, weight)
    for a, b in zip(
        torch.autograd.grad(ours.sum(), inputs),
        torch.autograd.grad(naive.sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_similarity_negatives_still_teach_the_filter() -> None:
    # ∂L/∂W[b,i] = SM[b,i] / (SM[b,b] + Σ SM) / B, however small W is: the slope of Z = SM·W.
    weight = torch.full((1, 2, 2), 1e-6, requires_grad=True)
    loss = intra_client_loss(EYE, EYE, weight, 1.0, "similarity")
    (gradient,) = torch.autograd.grad(loss.sum(), weight)
    total = 2 * (2 * math.e + 1)
    expected = torch.tensor([[[math.e, 1.0], [1.0, math.e]]]) / total
    torch.testing.assert_close(gradient, expected)


def test_inter_loss_by_hand() -> None:
    positive = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    negative = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    # Row 0 is the positive: −log(e / (e + 1)); row 1 is the negative: −log(1 / (1 + e)).
    expected = (math.log(1 + math.exp(-1)) + math.log(1 + math.e)) / 2
    loss = inter_client_loss(EYE, positive, negative, torch.tensor([True]), 1.0)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert inter_client_loss(EYE, positive, negative, torch.tensor([False]), 1.0).item() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nothing_overflows_at_a_temperature_of_002(dtype: torch.dtype) -> None:
    rows = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=dtype, requires_grad=True)
    weight = torch.ones(1, 2, 2, dtype=dtype, requires_grad=True)
    # Row b's own view is its exact opposite: the worst case, loss ≈ 2/τ = 100.
    opposite = -rows.detach()
    intra = intra_client_loss(rows, opposite, weight, 0.02, "filtered")
    inter = inter_client_loss(rows, opposite, rows.detach(), torch.tensor([True]), 0.02)
    assert intra.item() == pytest.approx(100, rel=0.01)
    assert inter.item() == pytest.approx(100, rel=0.01)
    for gradient in torch.autograd.grad((intra + inter).sum(), (rows, weight)):
        assert gradient.isfinite().all()
    agreeing = intra_client_loss(rows, rows.detach(), weight, 0.02, "filtered")
    assert agreeing.item() == pytest.approx(math.log(2), rel=0.1)  # bfloat16 rounds at 50


def test_clients_losses_are_their_own() -> None:
    generator = torch.Generator().manual_seed(1)
    projected, augmented = (torch.randn(2, 4, 3, generator=generator) for _ in range(2))
    weight = torch.rand(2, 4, 4, generator=generator)
    together = intra_client_loss(projected, augmented, weight, 0.1, "filtered")
    for k, alone in enumerate(zip(projected, augmented, weight, strict=True)):
        loss = intra_client_loss(*(part[None] for part in alone), 0.1, "filtered")
        torch.testing.assert_close(together[k : k + 1], loss)


def test_prototype_distance_by_hand() -> None:
    distance = prototype_distance(torch.tensor([[[1.0, 2.0]], [[0.0, 0.0]]]), torch.zeros(1, 2))
    assert distance.tolist() == [2.5, 0.0]


def test_proximal_term_by_hand() -> None:
    parameters = {
        "a": torch.tensor([[1.0, 2.0], [0.0, 0.0]]),
        "b": torch.tensor([[[3.0]], [[0.0]]]),
    }
    anchor = {"a": torch.zeros(2), "b": torch.zeros(1, 1)}
    # ½ · 0.1 · (1 + 4 + 9)
    np.testing.assert_allclose(
        proximal_term(parameters, anchor, 0.1).tolist(), [0.7, 0.0], rtol=1e-6
    )


def test_prototype_contrast_by_hand() -> None:
    """Two phases at right angles, τ = 1: −log(e / (e + 1)); with the rows swapped 1 more."""
    swapped = EYE.flip(1)
    aligned, crossed = math.log(1 + math.e) - 1, math.log(1 + math.e)
    assert prototype_contrast(EYE, EYE, 1.0).item() == pytest.approx(aligned)  # 0.31326
    assert prototype_contrast(EYE, swapped, 1.0).item() == pytest.approx(crossed)  # 1.31326
    two_sets = prototype_contrast(EYE, torch.cat([5 * EYE, swapped]), 1.0)  # only directions count
    assert two_sets.item() == pytest.approx((aligned + crossed) / 2)


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
