"""Find what a run may not handle well in a series: outliers, no scale, a shifted test part."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import lookback, make_windows, train_values
from fedproto_app.settings import DataSettings

FARTHEST = 10  # robust deviations; normal values are farther with probability 10⁻²³
LARGEST_SHIFT = 1.0  # of the mean, in train deviations: adds 1 to the MSE
LARGEST_RATIO = 2.0  # of deviations, either way
LARGEST_SCALED = 1e15  # in train deviations: its square is the largest error that servers accept
_NORMAL = 1.4826  # deviation of normal values over the median distance from their median

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Outliers:
    """The outliers of a series.

    count: their number. place, size, distance: the index and value of the farthest outlier, and its
    distance from the median in robust deviations.
    """

    count: int
    place: int
    size: float
    distance: float

    @property
    def words(self) -> str:
        """Their number, with the noun."""
        return f"{self.count} outlier{'s' * (self.count > 1)}"


@dataclass(frozen=True)
class Oddities:
    """The oddities of one client, as a run with its settings would split and standardise it.

    constant: whether the train part is constant. largest: the largest distance from the train mean,
    in train deviations, infinite if it overflows. shift: test mean minus train mean, in train
    deviations. ratio: the test part's deviation over the train part's. With a constant train part,
    shift has no meaning and ratio is NaN.
    """

    outliers: Outliers | None
    constant: bool
    largest: float
    shift: float
    ratio: float

    @property
    def is_too_large(self) -> bool:
        """Whether a server may refuse the client's errors for their size."""
        return self.largest > LARGEST_SCALED

    @property
    def is_shifted(self) -> bool:
        """Whether the test part has a different level."""
        if self.constant or self.is_too_large:
            return False
        return abs(self.shift) > LARGEST_SHIFT

    @property
    def is_spread(self) -> bool:
        """Whether the test part varies much more, or much less, than the train part."""
        if self.constant or self.is_too_large:
            return False
        return not 1 / LARGEST_RATIO <= self.ratio <= LARGEST_RATIO

    @property
    def notes(self) -> str:
        """All oddities in a few words, "" if there are none."""
        conditions = {
            self.outliers.words if self.outliers else "": self.outliers is not None,
            "train part constant": self.constant,
            "too large": self.is_too_large,
            f"test mean {self.shift:+.1f}": self.is_shifted,
            f"test spread ×{self.ratio:.2g}": self.is_spread,
        }
        return ", ".join(words for words, apply in conditions.items() if apply)


def oddities_of(series: ClientSeries, settings: DataSettings) -> Oddities:
    """Return the oddities of a client that a run with these settings would accept."""
    with np.errstate(all="ignore"):  # values of any size may overflow here
        windows = make_windows(series, settings)
        train = train_values(series, settings)
        test = series.values[lookback(settings) + windows.validation_end :]
        scaled = np.abs(series.values[np.isfinite(series.values)] - windows.mean) / windows.std
        largest = float(scaled.max()) if np.isfinite(windows.std) else np.inf
        constant = bool(np.nanmax(train) == np.nanmin(train))
        return Oddities(
            outliers=outliers_of(series.values, settings.period),
            constant=constant,
            largest=largest if np.isfinite(largest) else np.inf,
            shift=float(np.nanmean(test) - windows.mean) / windows.std,
            ratio=np.nan if constant else float(np.nanstd(test)) / windows.std,
        )


def outliers_of(values: Values, period: int) -> Outliers | None:
    """Return the outliers among values [T], None if there are none.

    An outlier lies more than `FARTHEST` robust deviations from the median, and from the values one
    period before and after, so a peak that repeats is not an outlier. The robust deviation is
    1.4826 times the median distance from the median, or the standard deviation if that is 0
    because more than half of the values are equal. Missing values are NaN.
    """
    distances = np.abs(values - np.nanmedian(values))
    deviation = _NORMAL * float(np.nanmedian(distances)) or float(np.nanstd(values))
    limit = FARTHEST * deviation
    far = distances > limit
    seasonal = np.abs(values[period:] - values[:-period])
    far[period:] &= ~(seasonal <= limit)
    far[:-period] &= ~(seasonal <= limit)
    if not far.any():
        return None
    place = int(np.argmax(np.where(far, distances, -1.0)))
    return Outliers(
        int(far.sum()), place, float(values[place]), float(distances[place] / deviation)
    )
