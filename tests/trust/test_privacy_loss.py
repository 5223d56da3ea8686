"""Clipping by hand, noise that a key decides, and ε against three other accountants."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from scipy.stats import kstest, norm

from fedproto_app.core.errors import SettingsError
from fedproto_app.trust.privacy_loss import (
    clipped_rows,
    clipped_together,
    epsilon_of,
    gaussian_noise,
    multiplier_for,
)


def test_a_row_is_shortened_to_the_length_and_a_short_one_stays() -> None:
    """‖(3, 4)‖ = 5, so at C = 2 it becomes (1.2, 1.6)."""
    rows = np.array([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]], np.float32)
    np.testing.assert_allclose(clipped_rows(rows, 2.0), [[1.2, 1.6], [0.6, 0.8], [0, 0]], rtol=1e-6)


def test_arrays_that_are_one_vector_are_shortened_together() -> None:
    """‖(2, (2, 1))‖ = 3."""
    clipped = clipped_together({"a": np.array([2.0]), "b": np.array([2.0, 1.0])}, 1.5)
    assert clipped["a"].tolist() == [1.0]
    assert clipped["b"].tolist() == [1.0, 0.5]


def test_huge_values_are_shortened_too() -> None:
    rows = np.full((1, 4), 3e38, np.float32)
    np.testing.assert_allclose(clipped_rows(rows, 1.0), 0.5)


def test_what_is_no_number_is_nothing() -> None:
    """Its place would tell of the data, however much noise is added."""
    rows = np.array([[np.nan, 3.0, 4.0], [np.inf, 0.0, 1.0]], np.float32)
    assert clipped_rows(rows, 5.0).tolist() == [[0, 3, 4], [0, 0, 1]]
    assert clipped_together({"a": rows[0]}, 5.0)["a"].tolist() == [0, 3, 4]


def test_noise_is_standard_normal_and_of_independent_entries() -> None:
    noise = gaussian_noise(b"key", 200_000)
    assert kstest(noise, "norm").pvalue > 0.01
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.01
    half = len(noise) // 2  # what one pair of uniform numbers made
    assert abs(np.corrcoef(noise[:half] ** 2, noise[half:] ** 2)[0, 1]) < 0.01


def test_the_key_decides_the_noise() -> None:
    assert np.array_equal(gaussian_noise(b"key", 7), gaussian_noise(b"key", 7))
    other_noise = gaussian_noise(b"kez", 10_000)
    assert abs(np.corrcoef(gaussian_noise(b"key", 10_000), other_noise)[0, 1]) < 0.05


DELTA = 1e-5


def delta_of(epsilon: float, mu: float) -> float:
    """Balle & Wang (ICML 2018), Theorem 8, with µ = Δ/σ."""
    above = norm.cdf(mu / 2 - epsilon / mu)
    return float(above - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)))


def oracle(losses: float) -> float:
    mu = math.sqrt(losses)
    epsilon: float = brentq(lambda e: delta_of(e, mu) - DELTA, 0, losses / 2 + 10 * mu + 1)
    return epsilon


def test_one_release_by_hand() -> None:
    """σ = 1, ε = 1: δ = Φ(−½) − e·Φ(−1½) = 0.308538 − 2.718282 · 0.066807 = 0.126937."""
    assert delta_of(1.0, 1.0) == pytest.approx(0.126937, abs=1e-6)
    assert epsilon_of(1.0, 0.126937) == pytest.approx(1.0, abs=1e-4)
    assert epsilon_of(1.0, DELTA) == pytest.approx(4.3772, abs=1e-4)
    assert epsilon_of(0.0, DELTA) == 0
    assert epsilon_of(math.inf, DELTA) == math.inf


@pytest.mark.parametrize(("noise", "releases"), [(1.0, 1), (5.0, 1), (10.0, 40), (0.3, 4), (50, 7)])
def test_releases_compose_as_one_of_less_noise(noise: float, releases: int) -> None:
    """T releases of σ are one of σ/√T, exactly. Rényi's bound lies above, and below its closed form
    T/(2σ²) + √(2·T·ln(1/δ))/σ (Mironov, CSF 2017, Proposition 3 at its best order)."""
    losses = releases / noise**2
    epsilon = epsilon_of(losses, DELTA)
    assert epsilon == pytest.approx(oracle(losses), rel=1e-6)
    renyi = RdpAccountant().compose(GaussianDpEvent(noise), releases).get_epsilon(DELTA)
    closed = losses / 2 + math.sqrt(2 * losses * math.log(1 / DELTA))
    assert epsilon < renyi < closed


def test_a_numerical_accountant_finds_the_same() -> None:
    epsilon = PLDAccountant().compose(GaussianDpEvent(20.0), 30).get_epsilon(DELTA)
    assert epsilon_of(30 / 400, DELTA) == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.parametrize(("epsilon", "releases"), [(0.5, 1), (3.0, 40), (100.0, 7)])
def test_noise_for_an_epsilon_spends_it(epsilon: float, releases: int) -> None:
    noise = multiplier_for(epsilon, DELTA, releases)
    assert epsilon_of(releases / noise**2, DELTA) == pytest.approx(epsilon, rel=1e-6)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(SettingsError, match=r"pip install 'fedproto-app\[privacy\]'"):
        epsilon_of(1.0, DELTA)
