"""The weighted mean of fits: by hand, and what each part of the weights is for."""

from __future__ import annotations

import math

import pytest
import torch

from fedproto_app.maths.candidates import TRAINING_SHARE, Candidates, Family, shares

ALIKE = torch.tensor([1.0, 1.0])


def test_two_candidates_share_by_hand() -> None:
    # exp(−0.5 · 4/2 · (2/1 − 1)) = exp(−1)
    less = math.exp(-1)
    actual = shares(torch.tensor([1.0, 2.0]), torch.tensor(4), 0.5, ALIKE)
    assert actual.tolist() == pytest.approx([1 / (1 + less), less / (1 + less)])
    actual = shares(torch.tensor([1.0, 2.0]), torch.tensor(4), 0.5, torch.tensor([1.0, 3.0]))
    assert actual.tolist() == pytest.approx([1 / (1 + 3 * less), 3 * less / (1 + 3 * less)])


@pytest.mark.parametrize("failed", [math.nan, math.inf])
def test_equal_candidates_share_equally_and_a_failed_one_gets_nothing(failed: float) -> None:
    for errors in ([0.0, 0.0, failed], [2.0, 2.0, failed]):
        actual = shares(torch.tensor(errors), torch.tensor(10), 0.3, torch.ones(3))
        assert actual.tolist() == [0.5, 0.5, 0]


def test_a_family_weighs_the_same_however_many_it_has() -> None:
    many_fits, single_fit = torch.zeros(9, 1), torch.full((1, 1), 4.0)
    candidates = Candidates([Family(1.0, many_fits), Family(3.0, single_fit)])
    assert candidates.prior.tolist() == pytest.approx([1 / 9] * 9 + [3])
    equal = torch.ones(10)
    assert candidates.mean(equal, equal, torch.tensor(50), 0.2).item() == pytest.approx(3)


def test_who_is_lucky_on_an_easy_validation_part_has_not_all_the_weight() -> None:
    candidates = Candidates([Family(1.0, torch.tensor([[0.0], [1.0]]))])
    validation, training = torch.tensor([0.005, 0.05]), torch.tensor([0.8, 0.02])
    alone = shares(validation, torch.tensor(24), 0.2, ALIKE)
    assert alone[0] > 0.999
    mean = candidates.mean(validation, training, torch.tensor(24), 0.2)
    errors = validation + TRAINING_SHARE * training
    assert mean.item() == pytest.approx(shares(errors, torch.tensor(24), 0.2, ALIKE)[1].item())
    assert mean.item() > 0.5


def test_a_fit_that_failed_does_not_spoil_the_mean() -> None:
    candidates = Candidates([Family(1.0, torch.tensor([[math.nan], [2.0]]))])
    errors = torch.tensor([math.nan, 1.0])
    assert candidates.mean(errors, errors, torch.tensor(5), 0.2).item() == 2
