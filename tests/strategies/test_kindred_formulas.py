"""Kindred's weights of other clients and the features of its forecasts, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import softmax

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import COEFFICIENTS
from fedproto_app.strategies.kindred.learner import RandomFeatureForecaster
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


# Two close values and, for each of two targets, one a period before.
SAMPLE = torch.tensor([[[10.0, 12.0, 9.0, 7.0]]])
VALUES = [-2.0, -3.0, -5.0, 12.0]  # less the newest, 12, and that itself


def forecaster(times: int = 0, width: int = 3, seed: int = 0) -> RandomFeatureForecaster:
    layout = WindowLayout(close=2, distances=1, horizon=2, period=4, times=times)
    return RandomFeatureForecaster(layout, width, torch.Generator().manual_seed(seed))


def test_plain_features_by_hand() -> None:
    for times, numbers, calendar in (
        (0, [], [1.0]),
        (1, [3.0], [0.0, 0, 0, 1]),
        (2, [1.0, 5.0], [0.0, 1, 0, 0, *(float(day == 5) for day in range(7))]),
    ):
        model = forecaster(times)
        representation = model.encode({}, torch.cat([SAMPLE, torch.tensor([[numbers]])], dim=2))
        assert model.plain_width == 4 + len(calendar)
        assert representation[0, 0, : model.plain_width].tolist() == VALUES + calendar
        assert representation[0, 0, model.newest] == 12
        assert representation.shape == (1, 1, model.representation_dim)
        assert model.representation_dim == model.plain_width + 2 * 3
    linear = forecaster(width=0)
    assert linear.encode({}, SAMPLE).tolist() == [[[*VALUES, 1.0]]]


def test_waves_are_bounded_and_of_two_scales() -> None:
    width = 2000
    model = forecaster(width=width)
    samples = 1e3 * torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(1))
    waves = model.encode({}, samples)[..., model.plain_width :]
    assert waves.abs().max() <= math.sqrt(2 / width) + 1e-7
    # Rahimi and Recht: products of waves are near the kernel exp(−σ²‖x − y‖² / 2), each scale's.
    near = torch.tensor([[[1.0, 2.0, 0.5, 1.5], [1.2, 1.5, 1.1, 1.0]]])
    first, second = model.encode({}, near)[0]
    plain = slice(0, model.newest + 1)
    distance = (first[plain] - second[plain]).square().sum() / 4
    for scale, block in ((1.0, slice(5, 5 + width)), (0.5, slice(5 + width, None))):
        kernel = math.exp(-(scale**2) * float(distance) / 2)
        assert float(first[block] @ second[block]) == pytest.approx(kernel, abs=0.06)


def test_the_seed_alone_says_which_waves() -> None:
    first, repeated, other_seed = (forecaster(seed=seed).encode({}, SAMPLE) for seed in (0, 0, 1))
    assert torch.equal(first, repeated)
    assert not torch.equal(first, other_seed)


def test_a_forecast_is_the_newest_value_and_what_the_coefficients_add() -> None:
    model = forecaster()
    [start] = model.head_parameters(torch.Generator()).values()
    assert start.shape == (2, model.representation_dim)
    representation = model.encode({}, SAMPLE)
    assert model.predict({COEFFICIENTS: start[None]}, representation).tolist() == [[[12, 12]]]
    draws = torch.randn(1, *start.shape, generator=torch.Generator().manual_seed(2))
    expected = [12 + float(representation[0, 0] @ draws[0, step]) for step in range(2)]
    prediction = model.predict({COEFFICIENTS: draws}, representation)
    assert prediction[0, 0].tolist() == pytest.approx(expected, rel=1e-5)
