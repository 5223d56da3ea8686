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
    assert set(get_args(Noise)) == set(ADDED) == set(allowed) - {"none"}


@pytest.mark.parametrize("kind", ADDED)
def test_the_noise_has_the_distribution_of_its_name(kind: Noise) -> None:
    noise = noisy(torch.zeros(200, 24, 8), kind, SCALE, seeded()).flatten().double().numpy()
    expected = DISTRIBUTIONS[kind]
    standard_error = expected.std() / math.sqrt(noise.size)
    assert noise.mean() == pytest.approx(expected.mean(), abs=4 * standard_error)
    assert noise.std() == pytest.approx(expected.std(), rel=0.05)
    assert stats.kstest(noise, expected.cdf).pvalue > 0.01


@pytest.mark.parametrize("kind", ADDED)
def test_the_generator_alone_decides_what_is_added(kind: Noise) -> None:
    zeros = torch.zeros(4, 24, 32)
    noise = noisy(zeros, kind, SCALE, seeded())
    prototype = torch.randn(4, 24, 32, generator=seeded(1))
    before = prototype.clone()
    torch.manual_seed(1)
    assert torch.equal(noisy(prototype, kind, SCALE, seeded()), prototype + noise)
    assert torch.equal(prototype, before)
    assert torch.equal(noisy(zeros, kind, 4 * SCALE, seeded()), 4 * noise)
    assert not torch.equal(noisy(zeros, kind, SCALE, seeded(8)), noise)
    # Independent values, nothing broadcast.
    assert len(set(noise.flatten().tolist())) > 0.99 * noise.numel()
