"""Add noise inside masked sums: each node adds a share, so that the survivors' total has enough.

Masked sums add up integers, so the shares of noise are integers too. They are drawn from discrete
Gaussians with P(z) ∝ exp(−z² / 2s²) (Kairouz, Liu and Steinke, "The Distributed Discrete Gaussian
Mechanism for Federated Learning with Secure Aggregation", ICML 2021). If a sum needs t survivors,
each node's share has the t-th part of the variance that the total needs. With more survivors, there
is more noise.

The sum of t such shares is not itself a discrete Gaussian. But by the paper's Proposition 12, the
logarithm of the ratio of their probabilities is at most 10 (t − 1) exp(−π² s²). With s of at least
`_LEAST`, as demanded here, this is smaller than any number that a computer represents. The
accounting therefore treats the sum as one Gaussian (`privacy_loss.py`).

Samples are exact. They are drawn from random integers by comparing integers, so no rounding of a
floating-point number can reveal what was added (Mironov, CCS 2012).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_LEAST = 1000  # steps that a share's deviation must have, far more than one step
_MOST_BITS = 30  # of a share's deviation in steps, so that 2s² fits into 64 bits
LARGEST = 12.0  # deviations. A share is larger with probability 4 · 10⁻³³


class TooLittleNoise(ValueError):
    """The steps of a masked sum are too large for the noise."""


class KeyStream:
    """Uniform random numbers that are unpredictable without the seed: AES-256 in counter mode.

    A seed must be used only once.
    """

    def __init__(self, seed: bytes) -> None:
        self._cipher = Cipher(AES(seed), CTR(bytes(16))).encryptor()

    def words(self, count: int) -> Words:
        """Return the next numbers, uniform over 0 … 2⁶⁴ − 1."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)

    def below(self, limit: int, count: int) -> Words:
        """Return the next numbers, uniform over 0 … limit − 1, with limit < 2⁶³."""
        drawn = np.zeros(count, dtype=np.uint64)
        missing = np.arange(count if limit > 1 else 0)
        unused = np.uint64(64 - (limit - 1).bit_length())
        while len(missing):
            drawn[missing] = self.words(len(missing)) >> unused
            missing = missing[drawn[missing] >= limit]
        return drawn


@dataclass(frozen=True)
class Noise:
    """The noise that the total of an array needs.

    multiplier: σ, the noise's deviation divided by the most that a client can change. length: Δ,
    the most that a client can change all arrays of its release together. entries: the number of
    entries of these arrays.
    """

    multiplier: float
    length: float
    entries: int

    def share(self, bits: int, survivors: int) -> tuple[int, int]:
        """Return the deviation s of a node's share in steps of 2^(coarser − bits), and `coarser`.

        survivors: the fewest nodes that can remain in the sum. Rounding may alter each entry of a
        client's change by a step, so it may add √entries to the length of the change. Raises
        `TooLittleNoise` if the steps are too large for the noise.
        """
        part = self.multiplier / math.sqrt(survivors)
        coarser = max(0, math.ceil(math.log2(part * self.length) + bits) - _MOST_BITS + 1)
        steps = math.ceil(part * (self.length * 2.0 ** (bits - coarser) + math.sqrt(self.entries)))
        if self.length * part * 2.0**bits < _LEAST:
            raise TooLittleNoise(
                f"aggregation.secure-bits = {bits}: a node's share of the noise has a deviation of "
                f"{part * self.length:g}, less than {_LEAST} steps of a masked value"
            )
        return steps, coarser


def discrete_gaussian(stream: KeyStream, deviation: int, count: int) -> NDArray[np.int64]:
    """Return independent integers z with P(z) ∝ exp(−z² / 2s²), [count]. deviation: s, 1 … 2³⁰.

    |z| is k s + j, where P(k) ∝ exp(−k²/2) and j is uniform over 0 … s − 1. It is accepted with
    probability exp(−k j/s − j²/2s²) (Karney, "Sampling Exactly from the Normal Distribution", ACM
    TOMS 2016, algorithm D).
    """
    drawn = np.zeros(0, dtype=np.int64)
    while len(drawn) < count:
        multiples = _whole_deviations(stream, 2 * (count - len(drawn)) + 16)
        offset = stream.below(deviation, len(multiples))
        accepted = _with_exp(stream, offset * offset, 2 * deviation**2)
        for number in range(int(multiples.max(initial=0))):
            place = np.flatnonzero(accepted & (multiples > number))
            accepted[place] = _with_exp(stream, offset[place], deviation)
        size = multiples * deviation + offset.astype(np.int64)
        negative = stream.below(2, len(size)) == 1
        accepted &= ~(negative & (size == 0))  # 0 must not be drawn with both signs
        drawn = np.concatenate([drawn, np.where(negative, -size, size)[accepted]])
    return drawn[:count]


def _whole_deviations(stream: KeyStream, count: int) -> NDArray[np.int64]:
    """Return at most `count` integers k ≥ 0 with P(k) ∝ exp(−k²/2).

    k is drawn with P(k) ∝ exp(−k/2), and accepted with probability exp(−k(k − 1)/2).
    """

    def with_root(count: int) -> NDArray[np.bool_]:
        return _with_exp(stream, np.ones(count, dtype=np.uint64), 2)

    numbers = np.zeros(count, dtype=np.int64)
    growing = np.arange(count)
    while len(growing):
        growing = growing[with_root(len(growing))]
        numbers[growing] += 1
    accepted = np.ones(count, dtype=bool)
    for trial in range(int((numbers * (numbers - 1)).max(initial=0))):
        place = np.flatnonzero(accepted & (numbers * (numbers - 1) > trial))
        accepted[place] = with_root(len(place))
    return numbers[accepted]


def _with_exp(stream: KeyStream, numerators: Words, denominator: int) -> NDArray[np.bool_]:
    """Return truth values, each true with probability exp(−γ), γ = numerator/denominator ≤ 1.

    For K = 1, 2, … draw a truth value that is true with probability γ/K, until one is false. The
    result is true if this last K is odd (Canonne, Kamath and Steinke, NeurIPS 2020, algorithm 1).
    """
    result = np.zeros(len(numerators), dtype=bool)
    place, number = np.arange(len(numerators)), 1
    while len(place):
        holds = stream.below(denominator, len(place)) < numerators[place]
        holds &= stream.below(number, len(place)) == 0
        result[place[~holds]] = number % 2 == 1
        place, number = place[holds], number + 1
    return result
