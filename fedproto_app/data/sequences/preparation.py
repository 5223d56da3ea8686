"""What happens to the steps of a sequence before a model sees them: resampled, then scaled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedproto_app.settings import SequenceSettings

Steps = NDArray[np.float32]


def resampled(steps: Steps, most: int) -> Steps:
    """[T, d] → [min(T, most), d] by linear interpolation over the index; the ends stay.

    most: 0 = as it is.
    """
    if most == 0 or len(steps) <= most:
        return steps
    index, wanted = np.arange(len(steps)), np.linspace(0, len(steps) - 1, most)
    columns = [np.interp(wanted, index, column) for column in steps.T]
    return np.stack(columns, axis=1).astype(np.float32)


def scaling(train: Sequence[Steps], settings: SequenceSettings) -> Callable[[Steps], Steps]:
    """What scales a client's sequences as ``data.sequences.scaling`` says.

    train: what the client trains on, at least one sequence; "client" takes means and deviations
    from it alone.
    """
    if settings.scaling == "sequence":
        return scaled_by_itself
    if settings.scaling == "none":
        return lambda steps: steps
    return _standardisation(np.concatenate(train))


def scaled_by_itself(steps: Steps) -> Steps:
    """[T, d] minus its mean over time, over one scale for all dimensions.

    The scale is the root of the dimensions' mean variance, so a shape keeps its proportions. A
    constant sequence becomes zeros.
    """
    if (steps == steps[0]).all():
        return np.zeros_like(steps)
    centred = steps - steps.mean(axis=0, dtype=np.float64)
    return np.asarray(centred / np.sqrt(np.square(centred).mean()), dtype=np.float32)


def _standardisation(train: Steps) -> Callable[[Steps], Steps]:
    """(x − mean) / deviation of each dimension over these steps [S, d]; 0 for a constant one."""
    mean = train.mean(axis=0, dtype=np.float64)
    deviation = train.std(axis=0, dtype=np.float64)
    constant = (train == train[0]).all(axis=0)
    factor = np.where(constant, 0.0, 1 / np.where(constant, 1.0, deviation))

    def standardised(steps: Steps) -> Steps:
        return np.asarray((steps - mean) * factor, dtype=np.float32)

    return standardised
