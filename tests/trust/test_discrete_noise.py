"""Noise inside masked sums: exact samples, enough of them at the worst loss, and what they hide."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import ZCDpEvent, get_sigma_gaussian
from dp_accounting.rdp import RdpAccountant
from scipy.stats import chisquare, norm, rankdata

from fedproto_app.trust.discrete_noise import (
    LARGEST,
    KeyStream,
    Noise,
    TooLittleNoise,
    discrete_gaussian,
)
from fedproto_app.trust.fixed_point import (
    Layout,
    NoiseShare,
    OutOfRange,
    Sums,
    largest,
    packed,
    unpacked,
)
from fedproto_app.trust.privacy_loss import epsilon_of

BITS, NODES, LEAST = 24, 7, 5  # of seven nodes five remain at a share of 0.67
DELTA = 1e-5


def stream(number: int) -> KeyStream:
    return KeyStream(number.to_bytes(32, "big"))


def share(noise: Noise, number: int) -> NoiseShare:
    return NoiseShare({"v": noise}, LEAST, stream(number))


def total_noise(noise: Noise, nodes: int, count: int) -> np.ndarray:
    """Return the noise in the total of so many nodes whose values are all 0."""
    sums = Sums({"v": np.zeros(count)}, {})
    vectors = [packed(sums, BITS, NODES, share(noise, number)) for number in range(nodes)]
    total = unpacked(np.add.reduce(vectors), Layout.from_sums(sums), BITS)
    return np.asarray(total.values["v"])


@pytest.mark.parametrize("deviation", [1, 2, 7])
def test_samples_have_the_exact_distribution(deviation: int) -> None:
    drawn = discrete_gaussian(stream(deviation), deviation, 100_000)
    values = np.arange(-3 * deviation, 3 * deviation + 1)
    weights = np.exp(-(np.arange(-20 * deviation, 20 * deviation + 1) ** 2) / 2 / deviation**2)
    expected = np.exp(-(values**2) / 2 / deviation**2) / weights.sum() * len(drawn)
    counts = np.array([(drawn == value).sum() for value in values])
    beyond = [len(drawn) - counts.sum()], [len(drawn) - expected.sum()]
    assert chisquare(np.append(counts, beyond[0]), np.append(expected, beyond[1])).pvalue > 1e-3


def test_large_samples_use_all_their_bits() -> None:
    drawn = discrete_gaussian(stream(0), 2**30 - 1, 20_000)
    assert drawn.std() / 2**30 == pytest.approx(1, rel=0.02)
    for bit in range(20):
        assert (drawn >> bit & 1).mean() == pytest.approx(0.5, abs=0.018)
    assert np.abs(np.corrcoef(drawn[::2], drawn[1::2])[0, 1]) < 0.03


@pytest.mark.parametrize("length", [1e-3, 1.0, 1e6])
def test_the_survivors_of_the_worst_loss_have_the_noise_that_is_stated(length: float) -> None:
    """σΔ = 1.5 Δ, and with all nodes √(7/5) times as much."""
    noise = Noise(1.5, length, 4)
    worst, best = (total_noise(noise, nodes, 8000).std() for nodes in (LEAST, NODES))
    assert worst / length == pytest.approx(1.5, rel=0.03)
    assert best / worst == pytest.approx(math.sqrt(NODES / LEAST), rel=0.04)


def test_a_share_is_rounded_up_and_covers_the_rounding_of_values() -> None:
    """2/√4 · (0.5 · 2¹² + √9) = 2051 steps of 2⁻¹²."""
    assert Noise(2.0, 0.5, 9).share(bits=12, survivors=4) == (2051, 0)
    steps, coarser = Noise(1.0, 1e9, 1).share(bits=24, survivors=4)
    assert 2**28 <= steps < 2**29
    assert steps * 2.0 ** (coarser - 24) == pytest.approx(5e8, rel=1e-6)


def test_noise_smaller_than_the_steps_is_refused() -> None:
    with pytest.raises(TooLittleNoise, match=r"secure-bits = 8: .* deviation of 0\.447214, less"):
        Noise(1.0, 1.0, 1).share(bits=8, survivors=LEAST)


def test_an_array_without_noise_is_refused_and_a_public_array_is_not() -> None:
    values = {"v": np.zeros(3), "w": np.arange(3.0)}
    noise = NoiseShare({"v": Noise(1.0, 1.0, 3)}, LEAST, stream(0))
    with pytest.raises(TooLittleNoise, match="its 'w' has no noise"):
        packed(Sums(values, {}), BITS, NODES, noise)
    noise = NoiseShare({"v": Noise(1.0, 1.0, 3), "w": None}, LEAST, stream(0))
    total = unpacked(
        packed(Sums(values, {}), BITS, NODES, noise), Layout({"v": (3,), "w": (3,)}), BITS
    )
    assert total.values["v"].all()
    assert total.values["w"].tolist() == [0, 1, 2]


def test_values_and_noise_do_not_wrap() -> None:
    """Values are refused that leave no room for twelve deviations of the noise."""
    noise = Noise(1.0, 1e3, 1)
    steps, coarser = noise.share(BITS, LEAST)
    room = LARGEST * steps * 2.0 ** (coarser - BITS)
    limit = min(largest(BITS, NODES) - room, 2.0 ** (50 + coarser - BITS))
    packed(Sums({"v": np.array([limit])}, {}), BITS, NODES, share(noise, 0))
    with pytest.raises(OutOfRange, match="'v' holds"):
        packed(Sums({"v": np.array([limit * 1.001])}, {}), BITS, NODES, share(noise, 0))
    assert 2 * norm.sf(LARGEST) < 4e-33


@pytest.mark.parametrize("deviation", [80, 500])  # ε = 8 and 1
def test_the_stated_epsilon_is_that_of_the_exact_distribution(deviation: int) -> None:
    """δ of the sum of five shares, from their exact probabilities, for a client that moves it by Δ,
    and Kairouz, Liu and Steinke's Theorem 1, which is a bound for any number of entries."""
    moved = 300
    loss = moved**2 / (LEAST * deviation**2)
    epsilon = epsilon_of(loss, DELTA)
    reach = 12 * deviation * LEAST
    one_noise = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / 2 / deviation**2)
    size = 2 * LEAST * reach + 1
    of_sum = np.fft.irfft(np.fft.rfft(one_noise / one_noise.sum(), size) ** LEAST, size)
    gained = (of_sum[moved:] - math.exp(epsilon) * of_sum[:-moved]).clip(min=0).sum()
    assert gained == pytest.approx(DELTA, rel=1e-3)

    entries = 10_000
    distance = 10 * sum(
        math.exp(-2 * (math.pi * deviation) ** 2 * k / (k + 1)) for k in range(1, LEAST)
    )
    assert distance * entries < 1e-300
    squared = loss + distance * entries / 2  # twice the ρ of concentrated privacy
    bound = RdpAccountant().compose(ZCDpEvent(squared / 2)).get_epsilon(DELTA)
    assert epsilon <= bound <= 1.1 * epsilon


def test_a_member_is_hardly_told_from_none() -> None:
    """ε = 1: who knows all other clients and the member's values, the best attack there is, has
    AUC Φ(µ/√2) = 0.575. Without noise it has 1."""
    sigma = get_sigma_gaussian(1.0, DELTA)
    member = np.full(16, 0.25)  # of length 1
    noise = total_noise(Noise(sigma, 1.0, 16), LEAST, 16 * 4000).reshape(-1, 16)
    without, with_it = np.split(noise, 2)
    scores = np.concatenate([without @ member, (with_it + member) @ member])
    ranks = rankdata(scores)[len(without) :]
    auc = (ranks.mean() - (len(with_it) + 1) / 2) / len(without)
    assert auc == pytest.approx(norm.cdf(1 / sigma / math.sqrt(2)), abs=0.02)
    assert auc < 0.6
