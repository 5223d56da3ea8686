"""Weights of other clients by how like they are, and of candidates by their errors, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import softmax

from fedproto_app.strategies.kindred.strategy import ROWS_AT_ONCE, kinship

APART = torch.tensor([[0.0, 1.0, 3.0], [1.0, 0.0, 2.0], [3.0, 2.0, 0.0]])  # their median is 2


def of_two(first: float, second: float) -> list[float]:
    """softmax(−first, −second)."""
    total = math.exp(-first) + math.exp(-second)
    return [math.exp(-first) / total, math.exp(-second) / total]


def test_three_clients_by_hand() -> None:
    weights = kinship(APART, temperature=0.5)  # divided by 0.5 · 2 = 1
    (b, c), (a, also_c), (also_a, also_b) = of_two(1, 3), of_two(1, 2), of_two(3, 2)
    assert weights[0].tolist() == pytest.approx([0, b, c])
    assert weights[1].tolist() == pytest.approx([a, 0, also_c])
    assert weights[2].tolist() == pytest.approx([also_a, also_b, 0])
    assert kinship(APART, temperature=2.0)[0].tolist() == pytest.approx([0, *of_two(0.25, 0.75)])


@pytest.mark.parametrize("temperature", [1e-3, 0.5, 10.0, math.inf])
def test_nobody_is_in_its_own_prior_and_every_row_is_a_mean(temperature: float) -> None:
    draws = torch.rand(7, 7, generator=torch.Generator().manual_seed(0))
    weights = kinship(draws + draws.T, temperature)
    assert weights.diagonal().tolist() == [0.0] * 7
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(7, dtype=torch.float64))
    assert (weights >= 0).all()


def test_without_a_difference_all_others_are_alike() -> None:
    alike = [[0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]]
    assert kinship(APART, math.inf).tolist() == alike
    assert kinship(torch.zeros(3, 3), 0.5).tolist() == alike
    assert kinship(torch.tensor([[0.0, 0.7], [0.7, 0.0]]), 0.5).tolist() == [[0, 1], [1, 0]]


def test_many_equal_clients_do_not_hide_who_is_like_whom() -> None:
    """With eight dead and three live sensors more than half of the pairs do not differ."""
    divergence = torch.zeros(11, 11)
    divergence[8:, :8] = divergence[:8, 8:] = 0.4
    divergence[8, 9] = divergence[9, 8] = 0.1
    divergence[8:10, 10] = divergence[10, 8:10] = 0.3
    weights = kinship(divergence, 0.5)
    assert weights[8, 9] > 2 * weights[8, 10] > 2 * weights[8, 0] > 0


def test_more_clients_than_rows_at_once_get_the_formulas_weights() -> None:
    clients = ROWS_AT_ONCE + 40
    draws = torch.rand(clients, clients, generator=torch.Generator().manual_seed(1))
    divergence = ((draws + draws.T) / 2).fill_diagonal_(0)
    before = divergence.clone()
    actual = kinship(divergence, 0.3)
    assert torch.equal(divergence, before)
    apart = divergence.double().numpy()
    nearness = -apart / (0.3 * np.median(apart[apart > 0]))
    np.fill_diagonal(nearness, -np.inf)
    np.testing.assert_allclose(actual, softmax(nearness, axis=1), rtol=1e-12)
