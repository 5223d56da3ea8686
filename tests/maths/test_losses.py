"""Losses that several methods have, by hand."""

from __future__ import annotations

import numpy as np
import torch

from fedproto_app.maths.losses import prediction_loss, proximal_term


def test_prediction_loss_counts_present_targets_only() -> None:
    prediction, target = torch.tensor([[1.0, 5.0, 2.0]]), torch.tensor([[0.0, 0.0, 4.0]])
    present = torch.tensor([[1.0, 0.0, 1.0]])
    assert prediction_loss(prediction, target, present).tolist() == [2.5]  # (1 + 4) / 2
    assert prediction_loss(prediction, target, torch.zeros(1, 3)).tolist() == [0.0]


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
