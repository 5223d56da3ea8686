"""What is made of a sample of a series, on numbers that show where they came from."""

from __future__ import annotations

import pytest
import torch

from fedproto_app.maths.window_layout import WindowLayout


def test_regressors_of_each_target_by_hand() -> None:
    layout = WindowLayout(close=2, distances=2, horizon=3, period=4, times=2)
    sample = torch.tensor([1.0, 2, 30, 31, 32, 40, 41, 42, 2, 6])  # phase 2 of the seventh day
    assert (layout.values, layout.width) == (8, len(sample))
    blocks = layout.blocks(sample)
    assert blocks.close.tolist() == [1, 2]
    assert blocks.lagged.tolist() == [[30, 31, 32], [40, 41, 42]]
    assert blocks.times.tolist() == [2, 6]
    assert layout.regressor_width == 2 + 2 + 4 + 7
    phases = torch.eye(4)[[2, 3, 0]]  # the third target is a day later
    days = torch.eye(7)[[6, 6, 0]]
    values = torch.tensor([[1.0, 2, 30, 40], [1, 2, 31, 41], [1, 2, 32, 42]])
    expected = torch.cat([values, phases, days], dim=1)
    assert torch.equal(layout.regressors(sample), expected)
    assert torch.equal(layout.regressors(sample.expand(5, 2, 10)), expected.expand(5, 2, 3, 15))
    assert torch.equal(layout.with_beside(sample)[8:], torch.cat([phases[0], days[0]]))


def test_without_a_calendar_there_is_a_constant() -> None:
    layout = WindowLayout(close=1, distances=1, horizon=2, period=4, times=0)
    regressors = layout.regressors(torch.tensor([5.0, 6, 7]))
    assert regressors.tolist() == [[5, 6, 1], [5, 7, 1]]
    assert layout.with_beside(torch.ones(3)).tolist() == [1, 1, 1]


@pytest.mark.parametrize(("period", "phase", "column"), [(288, 0, 0), (288, 11, 0), (288, 12, 1)])
def test_a_long_period_has_24_columns(period: int, phase: int, column: int) -> None:
    layout = WindowLayout(close=1, distances=1, horizon=1, period=period, times=1)
    assert layout.beside_width == 24
    calendar = layout.blocks(torch.tensor([0.0, 0.0, phase])).beside()
    assert calendar.argmax() == column
    assert calendar.sum() == 1
