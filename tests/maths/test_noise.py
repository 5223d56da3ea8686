"""The noise is of the named distribution and follows from the generator alone."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from scipy import stats

from fedproto_app.maths.noise import Noise, noisy
from fedproto_app.strategies.fuels import FuelsSettings

SCALE = 0.5
DISTRIBUTIONS = {
    "laplace": stats.laplace(scale=SCALE),
    "gaussian": stats.norm(scale=SCALE),
    "exponential": stats.expon(scale=SCALE),
}
ADDED: list[Noise] = ["laplace", "gaussian", "exponential"]


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_kind_of_the_settings_is_known() -> None:
    allowed = get_args(FuelsSettings.model_fields["noise"].annotation)
    assert set(get_args(Noise)) == {"none", *ADDED} == set(allowed)


@pytest.mark.parametrize("kind", ADDED)
def test_the_noise_has_the_distribution_of_its_name(kind: Noise) -> None:
    noise = noisy(torch.zeros(200, 24, 8), kind, SCALE, seeded()).flatten().double().numpy()
    expected = DISTRIBUTIONS[kind]
    standard_error = expected.std() / math.sqrt(noise.size)
    assert noise.mean() == pytest.approx(expected.mean(), abs=4 * standard_error)
    assert noise.std() == pytest.approx(expected.std(), rel=0.05)
    assert stats.kstest(noise, expected.cdf).pvalue > 0.01


@pytest.mark.parametrize("kind", ADDED)
def test_the_noise_is_added_to_the_prototype(kind: Noise) -> None:
    prototype = torch.arange(6.0).reshape(1, 2, 3)
    noise = noisy(torch.zeros(1, 2, 3), kind, SCALE, seeded())
    assert torch.equal(noisy(prototype, kind, SCALE, seeded()), prototype + noise)
    assert torch.equal(prototype, torch.arange(6.0).reshape(1, 2, 3))


@pytest.mark.parametrize("kind", ADDED)
def test_the_generator_alone_decides(kind: Noise) -> None:
    prototype = torch.zeros(4, 24, 32)
    first = noisy(prototype, kind, SCALE, seeded())
    torch.manual_seed(1)
    assert torch.equal(noisy(prototype, kind, SCALE, seeded()), first)
    assert not torch.equal(noisy(prototype, kind, SCALE, seeded(8)), first)
    assert (
        len(set(first.flatten().tolist())) > 0.99 * first.numel()
    )  # independent values, nothing broadcast


def test_the_scale_multiplies_the_noise() -> None:
    small = noisy(torch.zeros(24, 32), "laplace", 1.0, seeded())
    assert torch.equal(noisy(torch.zeros(24, 32), "laplace", 4.0, seeded()), 4 * small)


def test_no_noise_leaves_prototype_and_generator_alone() -> None:
    prototype, generator = torch.randn(24, 32, generator=seeded()), seeded()
    assert torch.equal(noisy(prototype, "none", SCALE, generator), prototype)
    assert torch.equal(generator.get_state(), seeded().get_state())
