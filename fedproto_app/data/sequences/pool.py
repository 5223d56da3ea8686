"""What every source of labelled sequences hands over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Targets = NDArray[np.int64] | NDArray[np.float64]
UNLABELLED = -1  # the target of a sequence whose class nobody has told
NO_CLASS = ("?", "unlabelled")  # what a source calls the class of such a sequence


@dataclass(frozen=True)
class SequencePool:
    """All sequences of a source, as it gives them: neither scaled nor resampled.

    dimensions: names of the d values of a step. classes: names in the order of the labels; () where
        the target is a real number.
    sequences: [n] arrays [T_i, d] float32, T_i ≥ 1, all finite.
    targets: [n] int64, each the index of a class or UNLABELLED, or float64 where there are no
        classes.
    clients: [n] whose sequence it is, where the source knows. groups: the true group of a client,
        where the source knows it.
    is_test: [n] bool, the source's own split into train and test, where it has one.
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
        """[n] which sequences are not UNLABELLED."""
        return np.ones(len(self.targets), bool) if not self.classes else self.targets != UNLABELLED


def numbered_dimensions(dimensions: int) -> tuple[str, ...]:
    """Names of the values of a step where the source has none."""
    return tuple(f"dimension-{number}" for number in range(1, dimensions + 1))


def float32_steps(values: NDArray[Any]) -> NDArray[np.float32]:
    """Numbers [T, d] as a pool holds them; what is too large becomes infinite, to be refused."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)
