"""The standard scale of a client's series, and what a kept model needs to forecast later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import Clock

if TYPE_CHECKING:
    from torch import Tensor

Vector = NDArray[np.float64]
Numbers = TypeVar("Numbers", float, Vector, "Tensor")

_FEWEST_CHANGES = 0.05  # for MASE, at least this share of pairs a period apart must differ


@dataclass(frozen=True)
class Scale:
    """The scale of a client's original series, computed from its train part.

    Errors and intervals are on this scale, whatever is subtracted from the series before it is
    forecast.

    mean, std: over the train part, in the data's units. On the standard scale they are 0 and 1.
    seasonal_difference: the divisor of MASE, see `seasonal_difference`. is_negative: whether any
    value up to the last train target is below 0.
    """

    mean: float
    std: float
    seasonal_difference: float
    is_negative: bool

    @classmethod
    def of_series(cls, trained: Vector, earlier: Vector, period: int) -> Scale:
        """Return the scale of a series.

        trained: [n], the values of the train part. earlier: [m], all values up to the last train
        target. They include values older than a limited history, so that errors of runs with
        different histories are measured alike. period: in steps.
        """
        deviation = float(np.nanstd(trained))
        return cls(
            mean=float(np.nanmean(trained)),
            std=deviation if deviation > _rounding(trained) else 1.0,  # else the series is constant
            seasonal_difference=seasonal_difference(earlier, period),
            is_negative=bool((earlier < 0).any()),
        )

    def standardised(self, values: Numbers) -> Numbers:
        """Convert values from the data's units to the standard scale."""
        return (values - self.mean) / self.std

    def original(self, values: Numbers) -> Numbers:
        """Convert values from the standard scale to the data's units."""
        return values * self.std + self.mean

    def original_size(self, sizes: Numbers) -> Numbers:
        """Convert sizes, such as errors and widths, from the standard scale to the data's units."""
        return sizes * self.std

    def floor(self, values: Vector) -> float:
        """Return the least possible value after these values [n], in the same units.

        It is 0 if neither the train part nor these values are ever negative, else -inf.
        """
        return -np.inf if self.is_negative or np.nanmin(values) < 0 else 0.0


@dataclass(frozen=True)
class TrainedSeries:
    """What a kept model must know of the series it was trained on, in addition to its tensors.

    end: the position after the last value. clock: the clock of the positions, or None.
    """

    scale: Scale
    end: int
    clock: Clock | None = None

    def numbers(self) -> dict[str, float]:
        """Return this as numbers by name, which `read` reads."""
        numbers = {**asdict(self.scale), "end": self.end}
        if self.clock is not None:
            numbers |= {f"clock-{n}": number for n, number in enumerate(self.clock.numbers())}
        return {name: float(value) for name, value in numbers.items()}

    @classmethod
    def read(cls, numbers: Mapping[str, float], client: str) -> TrainedSeries:
        """Read what `numbers` returned. If a number is missing, a `DataError` names the client."""
        try:
            scale = Scale(
                numbers["mean"],
                numbers["std"],
                numbers["seasonal_difference"],
                bool(numbers["is_negative"]),
            )
            of_clock = [value for name, value in numbers.items() if name.startswith("clock-")]
            clock = Clock.from_numbers(of_clock) if of_clock else None
            return cls(scale, int(numbers["end"]), clock)
        except KeyError as error:
            raise DataError(f"client {client!r}: its kept model has no number {error}") from None


def seasonal_difference(values: Vector, period: int) -> float:
    """Return the mean of |y_t − y_{t−p}| over the pairs of values [T] that are both present.

    This is the mean error of the seasonal naive forecast, the divisor of MASE (Hyndman and
    Koehler 2006). It is 0 if fewer than one pair in 20 differs by more than rounding. Otherwise the
    divisor of a series that hardly ever changes would be near 0 and its MASE meaningless.
    """
    differences = np.abs(values[period:] - values[:-period])
    differences = differences[np.isfinite(differences)]
    if not len(differences):
        return 0.0
    changes = np.count_nonzero(differences > _rounding(values))
    return float(differences.mean()) if changes >= _FEWEST_CHANGES * len(differences) else 0.0


def _rounding(values: Vector) -> float:
    """Return the largest difference between such values that may be a rounding error."""
    return 1e-9 * float(np.nanmax(np.abs(values)))
