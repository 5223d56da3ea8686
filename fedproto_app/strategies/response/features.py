"""φ: the features of the columns known in advance.

Every column gives 16 features. They come from its value and from its trailing means over a quarter
of a period and over a period. These three are standardised by moments that all clients share, and
cut to ±3. Each standardised v gives v, max(v + 1, 0) − 1, max(v, 0) and max(v − 1, 0). A missing
value has v = 0, where all four are 0. The value itself also gives v and max(v, 0) times the cosine
and the sine of the phase of the period, because a cold night differs from a cold noon.

A column of 0 and 1, or a harmonic of the year, is one feature as it stands. Its other 15 are 0.

Shapes: T steps, k columns, D = 16 · k features.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WIDTHS = 3  # the value, its mean over a quarter of a period, its mean over a period
FEATURES = 16  # features of a column
LARGEST = 3.0  # largest size of a standardised value
_KNOTS = (-1.0, 0.0, 1.0)
_SMALLEST_DEVIATION = 1e-9  # relative to a column's size; a column that varies less is constant


def trailing_means(known: Floats, period: int) -> Floats:
    """Return each column, and its means over the last quarter of a period and the last period,
    [T, 3, k].

    known: [T, k], without gaps. At the beginning the means are over the values so far.
    """
    steps, columns = known.shape
    sums = np.concatenate([np.zeros((1, columns)), known.cumsum(axis=0)])
    ends = np.arange(1, steps + 1)
    means = [known]
    for width in (max(1, period // 4), period):
        firsts = np.maximum(ends - width, 0)
        means.append((sums[ends] - sums[firsts]) / (ends - firsts)[:, None])
    return np.stack(means, axis=1)


def filled(known: Floats) -> Floats:
    """Return the columns [T, k] with each gap filled by the last value before it, and NaN before
    the first value."""
    rows = np.where(np.isfinite(known), np.arange(len(known))[:, None], 0)
    carried: Floats = np.take_along_axis(known, np.maximum.accumulate(rows, axis=0), axis=0)
    return carried


@dataclass(frozen=True)
class Columns:
    """What makes the features of the known columns the same for everybody.

    mean, deviation: [3, k], of each column and its trailing means, over all clients.
    is_plain: [k], the columns that are a feature as they stand. is_used: [k], False for columns
    without features.
    """

    mean: Floats
    deviation: Floats
    is_plain: NDArray[np.bool_]
    is_used: NDArray[np.bool_]

    @property
    def features(self) -> NDArray[np.bool_]:
        """Which of the D features may differ from 0, [D]."""
        used = np.broadcast_to(self.is_used & ~self.is_plain, (FEATURES, len(self.is_used))).copy()
        used[0] = self.is_used
        return used.ravel()

    def standardised(self, known: Floats, period: int) -> Floats:
        """Return v, [T, 3, k], of columns [T, k]. A missing value has the mean of all clients."""
        wide = trailing_means(np.nan_to_num(filled(known) - self.mean[0]) + self.mean[0], period)
        size = np.maximum(np.abs(self.mean), 1.0)
        varies = self.deviation > _SMALLEST_DEVIATION * size
        v = np.where(varies, (wide - self.mean) / np.where(varies, self.deviation, 1.0), 0.0)
        v[:, 0, self.is_plain] = wide[:, 0, self.is_plain]
        v[:, 1:, self.is_plain] = 0.0
        v[:, :, ~self.is_used] = 0.0
        return np.clip(v, -LARGEST, LARGEST)


def _blocks(v: Floats, positions: NDArray[np.int64], period: int) -> Iterator[Floats]:
    """Yield the parts of φ in its order, [T, some, k] each."""
    now, angle = v[:, :1], 2 * np.pi * (positions % period)[:, None, None] / period
    yield v
    for knot in _KNOTS:
        yield np.maximum(v - knot, 0.0) - max(-knot, 0.0)
    for wave in (np.cos(angle), np.sin(angle)):
        for part in (now, np.maximum(now, 0.0)):
            yield part * wave


def features(v: Floats, positions: NDArray[np.int64], period: int, columns: Columns) -> Floats:
    """Return φ, [T, D], of standardised values [T, 3, k] at positions [T] on the source's clock."""
    phi, place = np.empty((len(v), FEATURES, v.shape[2])), 0
    for block in _blocks(v, positions, period):
        phi[:, place : place + block.shape[1]] = block
        place += block.shape[1]
    flat = phi.reshape(len(v), len(columns.features))
    flat[:, ~columns.features] = 0.0
    return flat


def explained(
    v: Floats,
    positions: NDArray[np.int64],
    period: int,
    columns: Columns,
    coefficients: Floats,
) -> Floats:
    """Return θ · φ, [T, C], for the coefficients of C responses, [C, D], without storing φ."""
    theta = (coefficients * columns.features).reshape(len(coefficients), FEATURES, v.shape[2])
    total, place = np.zeros((len(v), len(theta))), 0
    for block in _blocks(v, positions, period):
        of_block = theta[:, place : place + block.shape[1]].reshape(len(theta), -1)
        total += block.reshape(len(v), of_block.shape[1]) @ of_block.T
        place += block.shape[1]
    return total


@dataclass(frozen=True)
class Part:
    """A linear function of the features, and the range that they are cut to, so that it does not
    extrapolate.

    coefficients: θ, [D]. lowest, highest: the range of the standardised values, [3, k].
    """

    coefficients: Floats
    lowest: Floats
    highest: Floats

    def cut(self, v: Floats) -> Floats:
        """Return standardised values [T, 3, k] within the range."""
        return np.clip(v, self.lowest, self.highest)


@dataclass(frozen=True)
class Response:
    """A client's response, on the standard scale of its series. One part was learned from its own
    values, the other from everybody's."""

    columns: Columns
    parts: tuple[Part, ...]

    def values(self, known: Floats, start: int, period: int) -> Floats:
        """Return θ · φ, [T], for columns [T, k] that start at this position of the clock."""
        v, positions = self.columns.standardised(known, period), start + np.arange(len(known))
        response = np.zeros(len(known))
        for part in self.parts:
            if part.coefficients.any():
                rows = part.coefficients[None]
                response += explained(part.cut(v), positions, period, self.columns, rows)[:, 0]
        return response

    def numbers(self) -> dict[str, list[Any]]:
        """Return the lists of numbers, by name, that `read` makes a response from."""
        columns = self.columns
        arrays = {
            "mean": columns.mean,
            "deviation": columns.deviation,
            "is_plain": columns.is_plain,
            "is_used": columns.is_used,
            "coefficients": np.stack([part.coefficients for part in self.parts]),
            "lowest": np.stack([part.lowest for part in self.parts]),
            "highest": np.stack([part.highest for part in self.parts]),
        }
        return {name: array.tolist() for name, array in arrays.items()}

    @classmethod
    def read(cls, numbers: dict[str, list[Any]]) -> Response:
        """Return the response whose `numbers` these are."""
        arrays = {name: np.array(value) for name, value in numbers.items()}
        columns = Columns(*(arrays.pop(n) for n in ("mean", "deviation", "is_plain", "is_used")))
        rows = zip(arrays["coefficients"], arrays["lowest"], arrays["highest"], strict=True)
        return cls(columns, tuple(Part(*row) for row in rows))
