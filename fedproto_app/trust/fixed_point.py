"""Store sums of real numbers as sums of integers modulo 2⁶⁴, which masks can hide completely.

A real number x is stored as round(x·2ᵇ), and a negative number as its complement. Sums of these
integers are exact, so neither the order of the nodes nor the masks between them change any bit.
Each of N nodes may send values up to ±(2⁶³ − 1)/(N·2ᵇ), so that their sum cannot wrap around. A
node does not clip larger values but refuses them, and names the array. Noise is added to these
integers (`discrete_noise.py`), and there is room for twelve deviations of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.sends import Expected
from fedproto_app.trust.discrete_noise import (
    LARGEST,
    KeyStream,
    Noise,
    TooLittleNoise,
    discrete_gaussian,
)

# The counts of every sum: clients, their weights in the model's mean, and clients by class.
CLIENTS, WEIGHT, BY_CLASS = "clients", "weight", "clients-by-class"

_LARGEST = 2**63 - 1
_SAFE = 1 - 2.0**-50  # because a float64 near 2⁶³ rounds up
_EXACT_BITS = 50  # sums of doubles below 2⁵⁰ steps are exact to a fraction of a step

Vector = NDArray[np.uint64]


class OutOfRange(ValueError):
    """A value is too large for a sum. The message names its array and the limit."""


@dataclass(frozen=True)
class NoiseShare:
    """A node's share of the noise on a sum.

    totals: for each array, the noise that its total needs, None for public arrays. survivors: the
    fewest nodes that can remain in the sum. stream: the source of randomness.
    """

    totals: Mapping[str, Noise | None]
    survivors: int
    stream: KeyStream


@dataclass(frozen=True)
class Sums:
    """Sums over clients. values: real numbers, by name. counts: integers ≥ 0, by name. groups: for
    each group of nodes that has a sum of its own, this sum."""

    values: Mapping[str, NDArray[np.float64]]
    counts: Mapping[str, NDArray[np.int64]]
    groups: Mapping[str, Sums] = field(default_factory=dict)


def added_up(parts: Sequence[Sums]) -> Sums:
    """Return the total of sums that have the same layout."""
    first = parts[0]
    values = {n: np.sum([part.values[n] for part in parts], axis=0) for n in first.values}
    counts = {n: np.sum([part.counts[n] for part in parts], axis=0) for n in first.counts}
    return Sums(values, counts)


@dataclass(frozen=True)
class Layout:
    """The layout of a vector: first values, then counts, both sorted by name."""

    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @staticmethod
    def from_sums(sums: Sums) -> Layout:
        """Return the layout of these sums."""
        shapes = ({n: a.shape for n, a in group.items()} for group in (sums.values, sums.counts))
        return Layout(*shapes)

    @staticmethod
    def expected(spec: Expected) -> Layout:
        """Return the layout of sums over clients that each send these arrays."""
        by_class = {name: (spec.classes, *shape) for name, shape in spec.per_class.items()}
        counts: dict[str, tuple[int, ...]] = {CLIENTS: (), WEIGHT: ()}
        if by_class:
            counts[BY_CLASS] = (spec.classes,)
        return Layout({**spec.mean, **spec.per_client, **by_class}, counts)

    @property
    def size(self) -> int:
        """The number of elements of the vector."""
        return sum(math.prod(s) for s in (*self.values.values(), *self.counts.values()))


def largest(bits: int, nodes: int) -> float:
    """Return the largest magnitude that a node's values may have, with `bits` fractional bits."""
    return _LARGEST / nodes / 2.0**bits * _SAFE


def packed(sums: Sums, bits: int, nodes: int, noise: NoiseShare | None = None) -> Vector:
    """Return one node's sums as a vector for a sum over `nodes` nodes.

    noise: the node's share of the noise, None in a run without noise. Raises `OutOfRange` for too
    large values. In a run with noise, raises `TooLittleNoise` for an array without noise.
    """
    parts = []
    for name, values in sorted(sums.values.items()):
        if noise is None:
            parts.append(_integers(name, values, bits, nodes, largest(bits, nodes)))
        else:
            parts.append(_noised(name, values, bits, nodes, noise))
    for name, counts in sorted(sums.counts.items()):
        parts.append(_integers(name, counts.astype(np.float64), 0, nodes, largest(0, nodes)))
    return np.concatenate(parts).view(np.uint64) if parts else np.zeros(0, dtype=np.uint64)


def _noised(
    name: str, values: NDArray[np.float64], bits: int, nodes: int, noise: NoiseShare
) -> NDArray[np.int64]:
    if name not in noise.totals:
        raise TooLittleNoise(f"its {name!r} has no noise")
    of_total = noise.totals[name]
    if of_total is None:
        return _integers(name, values, bits, nodes, largest(bits, nodes))
    deviation, coarser = of_total.share(bits, noise.survivors)
    room = LARGEST * deviation * 2.0 ** (coarser - bits)
    largest_exact = 2.0 ** (_EXACT_BITS + coarser - bits)  # larger sums round by more than a step
    limit = min(largest(bits, nodes) - room, largest_exact)
    steps = _integers(name, values, bits, nodes, limit, coarser)
    return steps + discrete_gaussian(noise.stream, deviation, steps.size) << coarser


def _integers(
    name: str, values: NDArray[np.float64], bits: int, nodes: int, limit: float, coarser: int = 0
) -> NDArray[np.int64]:
    """Return the values as a flat array of integers, in steps of 2^(coarser − bits)."""
    size = np.abs(values).max(initial=0.0)
    if not size <= limit:  # NaN too
        raise OutOfRange(
            f"its {name!r} holds {size:g}; with aggregation.secure-bits = {bits} and {nodes} nodes "
            f"a masked sum takes values up to ±{limit:g}"
        )
    return np.rint(values * 2.0 ** (bits - coarser)).astype(np.int64).ravel()


def unpacked(vector: Vector, layout: Layout, bits: int) -> Sums:
    """Return the sums that a total of vectors with this layout holds."""
    flat, start = vector.view(np.int64), 0
    groups: tuple[dict[str, NDArray[np.int64]], ...] = ({}, {})
    for group, shapes in zip(groups, (layout.values, layout.counts), strict=True):
        for name, shape in sorted(shapes.items()):
            end = start + math.prod(shape)
            group[name], start = flat[start:end].reshape(shape), end
    values, counts = groups
    return Sums({name: array / 2.0**bits for name, array in values.items()}, counts)
