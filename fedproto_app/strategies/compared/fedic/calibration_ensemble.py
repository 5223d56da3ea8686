"""FEDIC's teacher (Shang, Lu, Cheung, Wang, "FEDIC: Federated learning on non-IID and long-tailed
data via calibrated distillation", ICME 2022), its maths.

K models give logits z_k and features of the same n images; one more model, fine-tuned on balanced
data, gives logits too. C classes, features of width d.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

# The calibration's parameters, [1, …] each: a and a₀, g and h, v and v₀.
SCORE, SCORE_BIAS, SCALE, SHIFT, GATE, GATE_BIAS = (
    *("score", "score-bias", "scale", "shift", "gate", "gate-bias"),
)


def neutral(classes: int, width: int) -> dict[str, Tensor]:
    """The calibration that weighs all models alike, changes no logit, and takes the mean of both
    teachers."""
    return {
        SCORE: torch.zeros(1, classes),
        SCORE_BIAS: torch.zeros(1),
        SCALE: torch.ones(1, classes),
        SHIFT: torch.zeros(1, classes),
        GATE: torch.zeros(1, width),
        GATE_BIAS: torch.zeros(1),
    }


def model_weights(net: Mapping[str, Tensor], logits: Tensor) -> Tensor:
    """π_k = s_k / Σ s, s_k = σ(aᵀz_k + a₀), of each image: logits [K, n, C] → [K, n]."""
    scores = logits @ net[SCORE][0] + net[SCORE_BIAS]
    return functional.logsigmoid(scores).softmax(dim=0)  # s may be too small for its own sum


def teacher(
    net: Mapping[str, Tensor], logits: Tensor, features: Tensor, fine_tuned: Tensor
) -> Tensor:
    """z_T = γ·ẑ + (1 − γ)·z of the fine-tuned model, ẑ = g ⊙ Σ π_k z_k + h.

    γ = σ(vᵀ·mean feature + v₀). logits: [K, n, C]; features: [K, n, d]; fine_tuned: [n, C].
    Returns [n, C].
    """
    mean = (model_weights(net, logits).unsqueeze(2) * logits).sum(dim=0)
    calibrated = net[SCALE] * mean + net[SHIFT]
    share = torch.sigmoid(features.mean(dim=0) @ net[GATE][0] + net[GATE_BIAS]).unsqueeze(1)
    return share * calibrated + (1 - share) * fine_tuned


def distillation(target: Tensor, student: Tensor, temperature: float) -> Tensor:
    """KL(softmax(z_T / T) ‖ softmax(z_S / T)), mean over images; the target has no gradient.

    target, student: logits [n, C]. Not times T², as the authors' code has it.
    """
    wanted = (target.detach() / temperature).log_softmax(dim=1)
    found = (student / temperature).log_softmax(dim=1)
    return (wanted.exp() * (wanted - found)).sum(dim=1).mean()
