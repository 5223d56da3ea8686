"""From one client's series to its samples, split in time and standardised.

Decisions of docs/forecasting.md, "From series to samples". With look-back L, the largest distance
of an input, and horizon H, sample k forecasts ``values[L + k]`` … ``values[L + k + H - 1]`` from
the c values before the first of them and from those at fixed distances before each of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.messages import SampleTimes
from fedproto_app.data.clock import Clock
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings

_WEEK = 7  # periods


@dataclass(frozen=True)
class ClientWindows:
    """The samples of one client, on the scale of its train part.

    n samples of H targets, of N = n + H - 1 values that are forecast.

    inputs: [n, c + Q·H + j] float32: close values oldest first, then for each distance, longest
        first, the values so far before each target, then numbers of the first target's time
        (`time_numbers`).
    targets: [n, H] float32, 0 where missing. present: [n, H] bool, False where missing.
    batches: [S, p] int64, sample numbers of the train batches, oldest batch first. Every batch
        is p consecutive samples, and its row b has phase b of the source's clock, so that row b
        of any two clients' prototypes is the same time of day.
    train_end, validation_end: of the N values, where those of validation and test begin. A sample
        belongs to the part in which all its targets lie.
    mean, std: of the train part, in the data's units.
    seasonal_difference: in the data's units, `seasonal_difference` of all values up to the last
        train target, also those older than a limited history: so errors of runs with different
        histories have one measure.
    clock: of the source, None where it only counts.
    end: on the source's clock, the position after the last value.
    """

    name: str
    group: str
    inputs: NDArray[np.float32]
    targets: NDArray[np.float32]
    present: NDArray[np.bool_]
    batches: NDArray[np.int64]
    train_end: int
    validation_end: int
    mean: float
    std: float
    missing_share: float
    clock: Clock | None = None
    seasonal_difference: float = 0.0
    end: int = 0

    @property
    def start(self) -> int:
        """On the source's clock, the position of the first sample's first target."""
        values = len(self.targets) + int(self.targets.shape[1]) - 1
        return self.end - values

    @property
    def sample_times(self) -> SampleTimes:
        """When the samples are, for methods that align clients by time."""
        clock = "" if self.clock is None else self.clock.told
        first, last = int(self.batches.min()), int(self.batches.max())
        start, samples = self.start, len(self.targets)
        return SampleTimes(clock, start + first, start + last + 1, start + samples)

    @property
    def validation(self) -> slice:
        """The samples of the validation part."""
        return slice(self.train_end, self.validation_end - self.targets.shape[1] + 1)

    @property
    def test(self) -> slice:
        """The samples of the test part."""
        return slice(self.validation_end, None)

    @property
    def class_counts(self) -> tuple[tuple[int, ...], ...]:
        """Nothing is classified."""
        return ()

    @property
    def note(self) -> str:
        """Nothing to say: what is missing has a figure of its own."""
        return ""

    @property
    def train_samples(self) -> int:
        """Samples trained on, the weight of the client in sample-weighted means."""
        return int(self.batches.size)


def lookback(settings: DataSettings) -> int:
    """Values before a target that its sample needs."""
    return max(settings.close_window, *settings.distances)


def lookback_text(settings: DataSettings) -> str:
    """The look-back, and which of the settings it comes from."""
    back, period = lookback(settings), settings.period
    if back == period * settings.periodic_window:
        cause = f"{settings.periodic_window} periodic values at period {period}"
    elif back in settings.further_lags:
        cause = f"data.lags = {settings.lags!r}"
    else:
        cause = f"data.close-window = {settings.close_window}"
    return f"a look-back of {back} steps ({cause})"


def window_positions(first: NDArray[np.int64], settings: DataSettings) -> NDArray[np.int64]:
    """[n, c + Q·H] where the inputs of the samples stand whose first targets are at `first` [n]."""
    close = first[:, None] - np.arange(settings.close_window, 0, -1)
    targets = first[:, None] + np.arange(settings.horizon)  # (n, H)
    distant = [targets - distance for distance in settings.distances]
    return np.concatenate([close, *distant], axis=1)


def time_numbers(positions: NDArray[np.int64], settings: DataSettings) -> NDArray[np.float32]:
    """[n] positions on the source's clock → [n, j] what the models see of these times.

    With ``calendar = "phase"`` the phase of the period, with ``"week"`` also the number of the
    period modulo 7: the day of the week where a period is a day. A source without times counts
    from its own beginning.
    """
    phase, week = positions % settings.period, positions // settings.period % _WEEK
    seen = np.stack([phase, week], axis=1).astype(np.float32)
    return seen[:, : settings.times]


def split_counts(values: int, settings: DataSettings) -> tuple[int, int, int]:
    """Train, validation and test values of so many to be forecast, in time order."""
    train = math.floor(values * settings.train_share + 1e-9)
    validation = math.floor(values * settings.validation_share + 1e-9)
    return train, validation, values - train - validation


def shortest_length(settings: DataSettings, batches: int = 1) -> int:
    """Steps that a series needs for so many train batches, one validation and one test sample."""
    horizon, values = settings.horizon, batches * settings.period
    while True:
        train, validation, test = split_counts(values, settings)
        if train - horizon + 1 >= batches * settings.period and min(validation, test) >= horizon:
            return lookback(settings) + values
        values += 1


def why_refused(series: ClientSeries, settings: DataSettings) -> str | None:
    """Why this client cannot take part, or None if it can."""
    length, needed = len(series.values), shortest_length(settings)
    if not np.isfinite(series.values).any():
        return "no value is present"
    if length < needed:
        ahead = f", horizon {settings.horizon}" if settings.horizon > 1 else ""
        return (
            f"{length} steps, but period {settings.period}{ahead} and "
            f"{lookback_text(settings)} need at least {needed}"
        )
    present = np.isfinite(series.values[lookback(settings) :])
    train, validation, _ = split_counts(len(present), settings)
    parts = {
        "train": present[train - _trained_values(train, settings) : train],
        "validation": present[train : train + validation],
        "test": present[train + validation :],
    }
    for part, there in parts.items():
        if not there.any():
            return f"every target of its {part} part is missing"
    return None


def make_windows(series: ClientSeries, settings: DataSettings) -> ClientWindows:
    """Cut, split and standardise one client's series; raises `DataError` if it is refused."""
    if reason := why_refused(series, settings):
        raise DataError(f"client {series.name!r} refused: {reason}")
    back, horizon = lookback(settings), settings.horizon
    forecast = len(series.values) - back  # N
    train, validation, _ = split_counts(forecast, settings)

    known = train_values(series, settings)
    mean, std = float(np.nanmean(known)), _scale(known)
    scaled = (series.values - mean) / std
    present = np.isfinite(scaled)
    filled = carry_forward(scaled)
    firsts = back + np.arange(forecast - horizon + 1)
    targets = firsts[:, None] + np.arange(horizon)
    values = filled[window_positions(firsts, settings)].astype(np.float32)
    times = time_numbers(series.start + firsts, settings)
    return ClientWindows(
        name=series.name,
        group=series.group,
        inputs=np.concatenate([values, times], axis=1),
        targets=np.where(present, filled, 0.0)[targets].astype(np.float32),
        present=present[targets],
        batches=_phase_aligned_batches(train - horizon + 1, series.start + back, settings),
        train_end=train,
        validation_end=train + validation,
        mean=mean,
        std=std,
        missing_share=float(1 - present.mean()),
        clock=series.clock,
        seasonal_difference=seasonal_difference(series.values[: back + train], settings.period),
        end=series.start + len(series.values),
    )


def train_values(series: ClientSeries, settings: DataSettings) -> NDArray[np.float64]:
    """What the scale is made of: nothing later than the last train target; where a limited history
    leaves some out, nothing older than it."""
    back = lookback(settings)
    train, _, _ = split_counts(len(series.values) - back, settings)
    limited = 0 < settings.history < _whole_periods(train, settings)
    oldest = train - _trained_values(train, settings) if limited else 0
    return series.values[oldest : back + train]


def seasonal_difference(values: NDArray[np.float64], period: int) -> float:
    """Mean |y_t − y_{t−p}| over the values [T] where both are present; 0 where there are none, and
    where they repeat themselves exactly, save for rounding.

    The measure of errors in MASE (Hyndman and Koehler 2006): what the seasonal naive forecast
    would have erred on average.
    """
    differences = np.abs(values[period:] - values[:-period])
    if not np.isfinite(differences).any():
        return 0.0
    return _above_rounding(float(np.nanmean(differences)), values)


def _whole_periods(train: int, settings: DataSettings) -> int:
    """How many train batches the samples of so many train values fill."""
    return (train - settings.horizon + 1) // settings.period


def _trained_values(train: int, settings: DataSettings) -> int:
    """How many of so many train values are targets of train batches."""
    batches = _whole_periods(train, settings)
    batches = min(batches, settings.history or batches)
    return batches * settings.period + settings.horizon - 1


def _scale(known: NDArray[np.float64]) -> float:
    """The standard deviation, or 1 for a constant series, whose deviation is mere rounding."""
    return _above_rounding(float(np.nanstd(known)), known) or 1.0


def _above_rounding(size: float, values: NDArray[np.float64]) -> float:
    """The size, or 0 if rounding of the values can have made it."""
    return size if size > 1e-9 * float(np.nanmax(np.abs(values))) else 0.0


def carry_forward(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Missing values replaced by the last one before them (0, the train mean, before the first)."""
    last = np.where(np.isfinite(values), np.arange(len(values)), -1)
    np.maximum.accumulate(last, out=last)
    return np.where(last >= 0, values[last], 0.0)


def _phase_aligned_batches(
    samples: int, first_target: int, settings: DataSettings
) -> NDArray[np.int64]:
    """[S, p] sample numbers: the newest S·p of so many train samples, row b of each at phase b.

    first_target: clock position of sample 0's first target.
    """
    period = settings.period
    batches = min(samples // period, settings.history or samples)
    oldest = samples - batches * period  # the oldest samples are trimmed, not the newest
    order = (np.arange(period) - (first_target + oldest)) % period
    return (oldest + period * np.arange(batches)[:, None] + order).astype(np.int64)
