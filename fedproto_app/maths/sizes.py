"""Values that are finite, and of no size that training comes to.

The server refuses what is beyond these bounds; where it sees a masked sum alone, nodes hold
themselves to them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

LARGEST_VALUE = 1e15  # so many squares as a model has values still add up in float32
MOST_GROWTH = 100.0  # of a model's root mean square in one round


def root_mean_square(arrays: Collection[NDArray[np.float32]]) -> float:
    """Of all values together, 0 without any."""
    count = sum(array.size for array in arrays)
    squares = sum(float(np.square(array, dtype=np.float64).sum()) for array in arrays)
    return float(np.sqrt(squares / count)) if count else 0.0


def growth_fault(model: Mapping[str, NDArray[np.float32]], before: float) -> str | None:
    """Why these arrays cannot be a model after a round, a node's mean or one client's, or None.

    before: the root mean square of the model that the round began with. One that is below 1 may
    grow as if it were 1: it may have begun at 0.
    """
    size, limit = root_mean_square(model.values()), MOST_GROWTH * max(before, 1.0)
    if size > limit:
        return f"its model has a root mean square of {size:g}; at most {limit:g} is believed"
    return None


def value_fault(name: str, values: NDArray[np.float32]) -> str | None:
    """Why no array can hold these values, or None."""
    if not np.isfinite(values).all():
        return f"its {name!r} holds NaN or infinite values"
    if values.size and np.abs(values).max() > LARGEST_VALUE:
        return f"its {name!r} holds values beyond ±{LARGEST_VALUE:g}"
    return None
