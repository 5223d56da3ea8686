"""Turn a client's series into samples, split in time and standardised.

See docs/your-data.md, "From series to samples". With look-back L, the largest distance of the close
and the periodic values, and horizon H, sample k forecasts ``values[L + k]`` …
``values[L + k + H - 1]`` from the c values before the first target and from the values at fixed
distances before each target. A target further ahead than a distance takes a value whole periods
earlier, the newest that is known. A further lag may reach before the series (`within_series`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.messages import SampleTimes
from fedproto_app.data.clock import Clock
from fedproto_app.data.scale import Scale
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings

_WEEK = 7  # periods
_DAY, _WITHOUT_DAYS = np.timedelta64(1, "D"), 24  # steps of a period where the clock has no day


@dataclass(frozen=True)
class ClientWindows:
    """The samples of one client, standardised by its train part.

    n samples of H targets each; N = n + H - 1 values are forecast.

    inputs: [n, …] float32, see `sample_inputs`.
    targets: [n, H] float32, 0 where missing. present: [n, H] bool, False where missing.
    batches: [S, p] int64, sample numbers of the train batches, oldest batch first. Every batch
        is p consecutive samples, and its row b has phase b of the source's clock, so that row b
        of any two clients' prototypes is the same time of day.
    train_end, validation_end: numbers among the N values at which the validation and the test part
        begin. A sample is in a part if all its targets are.
    scale: of the series.
    clock: of the source, None if its positions are not times.
    end: the position after the last value, on the source's clock.
    block: steps in multiples of which the client trains (`block_of`); 0: no blocks.
    """

    name: str
    group: str
    inputs: NDArray[np.float32]
    targets: NDArray[np.float32]
    present: NDArray[np.bool_]
    batches: NDArray[np.int64]
    train_end: int
    validation_end: int
    scale: Scale
    missing_share: float
    clock: Clock | None
    end: int
    block: int

    @property
    def start(self) -> int:
        """The position of the first sample's first target on the source's clock."""
        values = len(self.targets) + int(self.targets.shape[1]) - 1
        return self.end - values

    @property
    def sample_times(self) -> SampleTimes:
        """The times of the samples, for methods that align clients by time."""
        clock = "" if self.clock is None else self.clock.label
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
        """Empty: forecasting has no classes."""
        return ()

    @property
    def note(self) -> str:
        """Empty: missing values are reported by `missing_share`."""
        return ""

    @property
    def train_samples(self) -> int:
        """Number of train samples, the client's weight in sample-weighted means."""
        return int(self.batches.size)


def lookback(settings: DataSettings) -> int:
    """Return how many values before a target its sample needs."""
    return max(settings.close_window, *settings.periodic_distances)


def reach(settings: DataSettings) -> int:
    """Return how far before a target its inputs reach, where there are values."""
    return max(settings.close_window, *settings.distances)


def lookback_text(settings: DataSettings) -> str:
    """Return the look-back as text, with the setting that determines it."""
    back, period = lookback(settings), settings.period
    if back == period * settings.periodic_window:
        cause = f"{settings.periodic_window} periodic values at period {period}"
    else:
        cause = f"data.close-window = {settings.close_window}"
    return f"a look-back of {back} steps ({cause})"


def window_positions(first: NDArray[np.int64], settings: DataSettings) -> NDArray[np.int64]:
    """Return the positions of the past values in samples with first targets at `first` [n].

    They are in the order of `sample_inputs`, a row for each sample.
    """
    close = first[:, None] - np.arange(settings.close_window, 0, -1)
    offsets = [_offsets(distance, settings) for distance in settings.distances]
    return np.concatenate([close, *(first[:, None] + offset for offset in offsets)], axis=1)


def within_series(places: NDArray[np.int64], period: int) -> NDArray[np.int64]:
    """Return the places of values, those before the first value replaced by the first of their
    phase. So a lag neither shortens a series nor moves the parts that it is split in."""
    return np.where(places < 0, places % period, places)


def _offsets(distance: int, settings: DataSettings) -> NDArray[np.int64]:
    """Return the positions [H] of the values this far before the targets, relative to the first.

    Within a period they are ``0 - distance``, ``1 - distance``, …. Targets further ahead than a
    period have the periodic values of the first period again, and values of a further lag whole
    periods earlier as soon as they would not be known.
    """
    ahead: NDArray[np.int64] = np.arange(settings.horizon)
    if distance in settings.periodic_distances:
        periods = ahead // settings.period
    else:
        periods = np.maximum(0, -((distance - ahead - 1) // settings.period))
    return ahead - periods * settings.period - distance


def sample_inputs(
    values: NDArray[np.floating],
    firsts: NDArray[np.int64],
    positions: NDArray[np.int64],
    settings: DataSettings,
) -> NDArray[np.float32]:
    """Return the inputs of samples, [..., n, c + Q·H + j], whose blocks `WindowLayout` names.

    The close values come first, oldest first, then for each distance, longest first, the values so
    far before each target, then numbers of the first target's time: with ``calendar = "phase"`` the
    phase of the period, with ``"week"`` also the number of the period modulo 7, which is the day of
    the week if a period is a day. In a source without times, positions count from its beginning.

    values: [..., T], standardised and without gaps. firsts: [n], the places of the first targets
    among them. positions: [..., n] or [n], the same on the source's clock.
    """
    past = values[..., within_series(window_positions(firsts, settings), settings.period)]
    phase, week = positions % settings.period, positions // settings.period % _WEEK
    times = np.stack([phase, week], axis=-1)[..., : settings.times]
    times = np.broadcast_to(times, (*past.shape[:-1], settings.times))
    return np.concatenate([past, times], axis=-1, dtype=np.float32)


def split_counts(values: int, settings: DataSettings) -> tuple[int, int, int]:
    """Return the numbers of train, validation and test values, in time order.

    In a backtest the train part is everything before the window and its validation part.
    """
    validation = math.floor(values * settings.validation_share + 1e-9)
    if settings.backtest:
        test = math.floor(values * settings.window_share + 1e-9)
        return values - validation - test, validation, test
    train = math.floor(values * settings.train_share + 1e-9)
    return train, validation, values - train - validation


def shortest_length(settings: DataSettings, batches: int = 1) -> int:
    """Return the steps needed for `batches` train batches, a validation and a test sample."""
    horizon, needed = settings.horizon, batches * settings.period + settings.horizon - 1
    validation, test = settings.validation_share, 1 - settings.train_share
    test = settings.window_share if settings.backtest else test - validation
    # Fewer cannot suffice, as parts are whole numbers.
    least = needed / (1 - validation - test), horizon / validation, (horizon - 2) / test
    values = max(batches * settings.period, *(math.floor(n * (1 - 1e-9)) - 3 for n in least))
    while True:
        train, validation, test = split_counts(values, settings)
        if train - horizon + 1 >= batches * settings.period and min(validation, test) >= horizon:
            return lookback(settings) + values
        values += 1


def why_refused(series: ClientSeries, settings: DataSettings) -> str | None:
    """Return why this client cannot take part, or None if it can."""
    length, shortest = len(series.values), shortest_length(settings)
    if not np.isfinite(series.values).any():
        return "no value is present"
    if length < shortest:
        ahead = f", horizon {settings.horizon}" if settings.horizon > 1 else ""
        return (
            f"{length} steps, but period {settings.period}{ahead} and "
            f"{lookback_text(settings)} need at least {shortest}{_remedy(length, settings)}"
        )
    present = np.isfinite(series.values[lookback(settings) :])
    train, validation, _ = split_counts(len(present), settings)
    first, end = _trained_samples(series, settings)
    block = block_of(series, settings)
    if block and (reason := _why_no_block(block, present[first:end], settings)):
        return reason
    parts = {
        "train": present[first : end + settings.horizon - 1],
        "validation": present[train : train + validation],
        "test": present[train + validation :],
    }
    for part, present_targets in parts.items():
        if not present_targets.any():
            return f"every target of its {part} part is missing"
    return None


def _remedy(length: int, settings: DataSettings) -> str:
    """Return the smallest change of settings with which this many steps suffice, "" without one."""
    horizons = dict.fromkeys((settings.horizon, 1))
    for horizon in horizons:
        for window in range(settings.periodic_window, 0, -1):
            change = {"horizon": horizon, "periodic_window": window}
            if shortest_length(settings.model_copy(update=change)) <= length:
                changed = {key: new for key, new in change.items() if new != getattr(settings, key)}
                words = (f"data.{key.replace('_', '-')}={new}" for key, new in changed.items())
                return f"; --set {' --set '.join(words)} would do"
    return ""


def block_of(series: ClientSeries, settings: DataSettings) -> int:
    """Return the steps of a block, in multiples of which a client trains; 0: no blocks.

    With `least_periods`, the first targets of the train samples fill whole blocks, whose bounds are
    the multiples of their length on the source's clock. So the sums over a client's samples that
    different runs ask for differ by whole blocks. A period is a day here, a week of daily values,
    and else 24 steps. It is not `data.period`, which the run chooses.
    """
    step = None if series.clock is None else series.clock.step
    if step == _DAY:
        return settings.least_periods * _WEEK
    if step is not None and step < _DAY and not _DAY % step:
        return settings.least_periods * int(_DAY // step)
    return settings.least_periods * _WITHOUT_DAYS


def _why_no_block(block: int, present: NDArray[np.bool_], settings: DataSettings) -> str | None:
    """Return why these targets of whole blocks are not enough, or None."""
    least = settings.least_periods
    if block % settings.period:
        return (
            f"least-periods = {least}: clients train on whole blocks of {block} steps, which "
            f"data.period = {settings.period} does not divide"
        )
    if not len(present):
        return (
            f"least-periods = {least}: its train part holds no whole block of {block} steps, "
            "counted on the clock"
        )
    if 2 * np.count_nonzero(present) < block:
        return (
            f"least-periods = {least}: {np.count_nonzero(present)} values of its train part are "
            f"present, fewer than half of a block of {block} steps"
        )
    return None


def _trained_samples(series: ClientSeries, settings: DataSettings) -> tuple[int, int]:
    """Return the first and the end of the train samples that are in batches."""
    back, period = lookback(settings), settings.period
    train, _, _ = split_counts(len(series.values) - back, settings)
    samples, start = train - settings.horizon + 1, series.start + back
    block = block_of(series, settings)
    if not block:
        batches = samples // period
        return samples - min(batches, settings.history or batches) * period, samples
    first, end = -(-start // block) * block, (start + samples) // block * block
    if settings.history:
        first = max(first, end - settings.history * period // block * block)
    return min(first, end) - start, end - start


def make_windows(series: ClientSeries, settings: DataSettings) -> ClientWindows:
    """Cut, split and standardise one client's series; raise `DataError` if it is refused."""
    if reason := why_refused(series, settings):
        raise DataError(f"client {series.name!r} refused: {reason}")
    back, horizon = lookback(settings), settings.horizon
    forecast = len(series.values) - back  # N
    train, validation, _ = split_counts(forecast, settings)

    first, end = _trained_samples(series, settings)
    scale = scale_of(series, settings)
    scaled = scale.standardised(series.values)
    present = np.isfinite(scaled)
    filled = carry_forward(scaled)
    firsts = back + np.arange(forecast - horizon + 1)
    targets = firsts[:, None] + np.arange(horizon)
    return ClientWindows(
        name=series.name,
        group=series.group,
        inputs=sample_inputs(filled, firsts, series.start + firsts, settings),
        targets=np.where(present, filled, 0.0)[targets].astype(np.float32),
        present=present[targets],
        batches=_phase_aligned_batches(first, end, series.start + back, settings.period),
        train_end=train,
        validation_end=train + validation,
        scale=scale,
        missing_share=float(1 - present.mean()),
        clock=series.clock,
        end=series.end,
        block=block_of(series, settings),
    )


def scale_of(series: ClientSeries, settings: DataSettings) -> Scale:
    """Return the scale of a series that is not refused."""
    back = lookback(settings)
    train, _, _ = split_counts(len(series.values) - back, settings)
    _, end = _trained_samples(series, settings)
    # With blocks, all that depends on the train part depends on their first targets alone.
    earlier = series.values[: back + (end if block_of(series, settings) else train)]
    return Scale.of(train_values(series, settings), earlier, settings.period)


def train_values(series: ClientSeries, settings: DataSettings) -> NDArray[np.float64]:
    """Return the values that determine the scale: up to the last train target, and not older than
    a limited history; with blocks, theirs alone."""
    back = lookback(settings)
    first, end = _trained_samples(series, settings)
    if block_of(series, settings):
        return series.values[back + first : back + end]
    limited = 0 < settings.history < end // settings.period
    return series.values[first if limited else 0 : back + end + settings.horizon - 1]


def carry_forward(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace missing values by the last value before them (by 0, the train mean, at the start)."""
    last = np.where(np.isfinite(values), np.arange(len(values)), -1)
    np.maximum.accumulate(last, out=last)
    return np.where(last >= 0, values[last], 0.0)


def _phase_aligned_batches(
    first: int, end: int, first_target: int, period: int
) -> NDArray[np.int64]:
    """Return the sample numbers from `first` to the end as batches [S, p], sample b of each at
    phase b.

    first_target: clock position of sample 0's first target.
    """
    order = (np.arange(period) - (first_target + first)) % period
    return (np.arange(first, end, period)[:, None] + order).astype(np.int64)
