"""FEDIC's teacher on two models and two classes, worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from fedproto_compared.fedic.strategy import (
    GATE,
    GATE_BIAS,
    SCALE,
    SCORE,
    SCORE_BIAS,
    SHIFT,
    distillation,
    model_weights,
    neutral,
    teacher,
)

LOGITS = torch.tensor([[[2.0, 0.0]], [[0.0, 0.0]]])  # [K, n, C] = [2, 1, 2]
FEATURES = torch.tensor([[[1.0, 3.0, 0.0]], [[3.0, 1.0, 0.0]]])
FINE_TUNED = torch.tensor([[0.0, 1.0]])


def net(**changes: list[float]) -> dict[str, torch.Tensor]:
    """a = (1, 1), a₀ = 0, g = 1, h = 0, v = 0, v₀ = 0."""
    letters = {SCORE: "a", SCORE_BIAS: "a0", SCALE: "g", SHIFT: "h", GATE: "v", GATE_BIAS: "v0"}
    values = {"a": [1.0, 1.0], **changes}
    calibration = neutral(2, 3)
    for name, letter in letters.items():
        if letter in values:
            calibration[name] = torch.tensor(values[letter]).reshape(calibration[name].shape)
    return calibration


def test_models_weigh_by_their_scores() -> None:
    """s = (σ(2), σ(0)) = (0.8808, 0.5)."""
    weights = model_weights(net(), LOGITS)[:, 0]
    assert weights.tolist() == pytest.approx([0.6379, 0.3621], abs=1e-4)
    assert model_weights(neutral(2, 3), LOGITS)[:, 0].tolist() == [0.5, 0.5]


def test_scores_too_small_for_their_sum_still_weigh() -> None:
    """σ(−2000) is 0 in any float; the other model's score is e² times as small."""
    weights = model_weights(net(a=[-1.0, 0.0], a0=[-2000.0]), LOGITS)[:, 0]
    assert weights.tolist() == pytest.approx([0.1192, 0.8808], abs=1e-4)


def test_the_teacher_by_hand() -> None:
    """z̄ = (1.2758, 0); γ = ½."""
    actual = teacher(net(), LOGITS, FEATURES, FINE_TUNED)
    assert actual[0].tolist() == pytest.approx([0.6379, 0.5], abs=1e-4)


def test_the_teacher_scales_shifts_and_gates() -> None:
    """ẑ = (2·1.2758 + 1, −3); the mean feature is (2, 2, 0), so γ = σ(2·½ − 2·1 + 0.5) = 0.3775."""
    changes = {"g": [2.0, 5.0], "h": [1.0, -3.0], "v": [0.5, -1.0, 9.0], "v0": [0.5]}
    actual = teacher(net(**changes), LOGITS, FEATURES, FINE_TUNED)
    share = 0.37754
    expected = [share * 3.5516, -3 * share + (1 - share)]
    assert actual[0].tolist() == pytest.approx(expected, abs=1e-3)


def test_the_student_learns_from_the_teacher_and_not_the_reverse() -> None:
    torch.manual_seed(0)
    target = torch.randn(5, 4, requires_grad=True)
    student = torch.randn(5, 4, requires_grad=True)
    loss = distillation(target, student, 2.0)
    expected = functional.kl_div(
        (student / 2).log_softmax(dim=1), (target / 2).softmax(dim=1), reduction="batchmean"
    )
    torch.testing.assert_close(loss, expected)
    loss.backward()  # type: ignore[no-untyped-call]
    assert target.grad is None
    assert student.grad is not None
    assert distillation(target, target, 2.0).item() == pytest.approx(0, abs=1e-6)
