"""The supervised loss of series, by hand."""

from __future__ import annotations

import torch

from fedproto_app.maths.losses import prediction_loss


def test_prediction_loss_counts_present_targets_only() -> None:
    prediction, target = torch.tensor([[1.0, 5.0, 2.0]]), torch.tensor([[0.0, 0.0, 4.0]])
    present = torch.tensor([[1.0, 0.0, 1.0]])
    assert prediction_loss(prediction, target, present).tolist() == [2.5]  # (1 + 4) / 2
    assert prediction_loss(prediction, target, torch.zeros(1, 3)).tolist() == [0.0]
