"""Tables that compare the figures of two sides, with the significance of the difference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from benchmarks.cross_check.methods import ROWS, Judged, Row
from benchmarks.pages import Lines

_ROUNDED = 1e-4  # fluke rounds accuracies to five places; one image more or less is 0.02

# By seed, then by client: accuracies between 0 and 1.
Figures = Mapping[tuple[str, Judged], Sequence[Sequence[float]]]


@dataclass(frozen=True)
class Paired:
    """Differences of pairs. std: the sample standard deviation. limit: half the width of the 95%
    confidence interval of the mean (Student's t), both NaN of fewer than two pairs."""

    mean: float
    std: float
    limit: float

    @property
    def is_chance(self) -> bool:
        """Return whether 0 lies in the interval."""
        return abs(self.mean) <= self.limit


def paired(ours: Sequence[float], peers: Sequence[float]) -> Paired:
    """Return the statistics of ours − peers, for the same seeds in the same order."""
    differences = np.subtract(ours, peers)
    pairs = len(differences)
    if pairs < 2:
        return Paired(float(differences.mean()), math.nan, math.nan)
    std = float(differences.std(ddof=1))
    quantile = float(stats.t.ppf(0.975, pairs - 1))
    return Paired(float(differences.mean()), std, quantile * std / math.sqrt(pairs))


def spread_table(ours: Figures, peers: Figures, peer: str) -> Lines:
    """Return the mean accuracy over clients, then seeds, with the paired difference."""
    head = ["method", "ours %", f"{peer} %", "difference", "95% interval", "within it"]
    lines = []
    for row in _rows(ours, peers):
        key = row.method, row.judged
        means = [[float(np.mean(seed)) for seed in side[key]] for side in (ours, peers)]
        pair = paired(*means)
        lines.append(
            [
                row.title,
                *(_spread(figures) for figures in means),
                f"{100 * pair.mean:+.1f} ± {100 * pair.std:.1f}",
                f"± {100 * pair.limit:.1f}",
                "yes" if pair.is_chance else "no",
            ]
        )
    return [head, *lines]


def equality_table(ours: Figures, peers: Figures, peer: str) -> Lines:
    """Return how many clients have the same accuracy on both sides, without randomness."""
    head = ["method", "ours %", f"{peer} %", "clients equal", "largest difference of a client"]
    lines = []
    for row in _rows(ours, peers):
        key = row.method, row.judged
        sides = [np.concatenate(side[key]) for side in (ours, peers)]
        gaps = np.abs(sides[0] - sides[1])
        lines.append(
            [
                row.title,
                *(f"{100 * side.mean():.2f}" for side in sides),
                f"{int((gaps < _ROUNDED).sum())} of {len(gaps)}",
                f"{100 * gaps.max():.1f}",
            ]
        )
    return [head, *lines]


def _rows(ours: Figures, peers: Figures) -> list[Row]:
    return [row for row in ROWS if (row.method, row.judged) in ours.keys() & peers.keys()]


def _spread(means: Sequence[float]) -> str:
    if len(means) < 2:
        return f"{100 * means[0]:.1f}"
    return f"{100 * np.mean(means):.1f} ± {100 * np.std(means, ddof=1):.1f}"
