"""Bounds on finite values that no training exceeds.

The server refuses values beyond these bounds; if it sees only a masked sum, nodes check their own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

LARGEST_VALUE = 1e15  # so many squares as a model has values still add up in float32
MOST_GROWTH = 100.0  # of a model's root mean square in one round


def root_mean_square(arrays: Collection[NDArray[np.float32]]) -> float:
    """Return the root mean square of all values together; 0 without any."""
    count = sum(array.size for array in arrays)
    squares = sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays)
    return float(np.sqrt(squares / count)) if count else 0.0


def growth_fault(model: Mapping[str, NDArray[np.float32]], before: float) -> str | None:
    """Return why these arrays cannot be a node's or client's model after a round, or None.

    before: the root mean square of the model that the round began with; values below 1 count as 1,
    because a model may begin at 0.
    """
    size, limit = root_mean_square(model.values()), MOST_GROWTH * max(before, 1.0)
    if size > limit:
        return f"its model has a root mean square of {size:g}; at most {limit:g} is accepted"
    return None


def value_fault(name: str, values: NDArray[np.float32]) -> str | None:
    """Return why these values are invalid, or None."""
    if not np.isfinite(values).all():
        return f"its {name!r} holds NaN or infinite values"
    if values.size and np.abs(values).max() > LARGEST_VALUE:
        return f"its {name!r} holds values beyond ±{LARGEST_VALUE:g}"
    return None
