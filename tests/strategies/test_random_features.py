"""The features that Kindred's forecasts are linear in, on samples followed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from fedproto_app.maths.window_layout import WindowLayout
from fedproto_app.models.forecaster import COEFFICIENTS
from fedproto_app.strategies.kindred.learner import RandomFeatureForecaster

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
