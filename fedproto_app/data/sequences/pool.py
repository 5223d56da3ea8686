"""The result of every source of labelled sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Targets = NDArray[np.int64] | NDArray[np.float64]
UNLABELLED = -1  # the target of a sequence of unknown class
NO_CLASS = ("?", "unlabelled")  # class names that mean "unknown"


@dataclass(frozen=True)
class SequencePool:
    """All sequences of a source, as it gives them: neither scaled nor resampled.

    dimensions: the names of the d values of a step. classes: the names of the classes in the order
        of the labels, () if the target is a real number.
    sequences: [n] arrays [T_i, d] float32, T_i ≥ 1, all finite.
    targets: [n] int64, each the index of a class or UNLABELLED, or float64 without classes.
    clients: [n] the client of each sequence, None if the source has no clients. groups: the true
        group of a client, if the source knows it.
    is_test: [n] bool, the source's split into train and test, None without a split.
    """

    dimensions: tuple[str, ...]
    classes: tuple[str, ...]
    sequences: Sequence[NDArray[np.float32]]
    targets: Targets
    clients: NDArray[np.str_] | None = None
    groups: Mapping[str, str] = field(default_factory=dict)
    is_test: NDArray[np.bool_] | None = None

    @property
    def has_target(self) -> NDArray[np.bool_]:
        """Whether each sequence has a target, [n]."""
        return np.ones(len(self.targets), bool) if not self.classes else self.targets != UNLABELLED


def numbered_dimensions(dimensions: int) -> tuple[str, ...]:
    """Return names for the values of a step. Used if the source gives none."""
    return tuple(f"dimension-{number}" for number in range(1, dimensions + 1))


def float32_steps(values: NDArray[np.generic]) -> NDArray[np.float32]:
    """Return the values [T, d] as float32. If too large, they become infinite and are refused."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)
