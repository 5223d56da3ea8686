"""FUELS's contrastive losses by hand, at ordinary and at extreme temperatures."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedproto_app.strategies.fuels.learner import (
    cosine_matrix,
    inter_client_loss,
    intra_client_loss,
)

# Two rows at right angles: cos is the identity matrix.
EYE = torch.eye(2).unsqueeze(0)


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
