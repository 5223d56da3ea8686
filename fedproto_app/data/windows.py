"""Turn a client's series into samples, split in time and standardised.

See docs/your-data.md, "From series to samples". The look-back L is the largest distance of the
close and the periodic values, and H is the horizon. Sample k forecasts ``values[L + k]`` …
``values[L + k + H - 1]`` from the c values before the first target and from the values at fixed
distances before each target. If a target is further ahead than a distance, the newest
available value whole periods earlier is taken. A lag beyond L may reach before the series
(`_reached`), so it neither shortens a series nor moves the borders of its parts.

A client with a shorter series is *young*: every value but its first may be a target, and all its
inputs may reach before the series. It takes part with what it has. If it has no train target, it
receives models but sends nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol
from zoneinfo import ZoneInfo

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.messages import SampleTimes
from fedproto_app.data.clock import Clock, Matrix
from fedproto_app.data.scale import Scale
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings

_WEEK = 7  # periods
_WITHOUT_DAYS = 24  # steps that count as a period if the clock has no day


class SeriesResponse(Protocol):
    """The effect of columns known in advance on a client's series."""

    def values(self, known: Matrix, start: int, period: int) -> NDArray[np.float64]:
        """Return the effect of columns [T, k] from this position on, [T], on the standard scale."""

    def numbers(self) -> Mapping[str, list[Any]]:
        """Return by name the numbers that a kept model needs to forecast with the response."""


@dataclass(frozen=True)
class ClientWindows:
    """The samples of one client, standardised with the scale of its train part.

    There are n samples of H targets each, so that N = n + H - 1 values are forecast.

    series: the original series. response: what was subtracted from its values, None for nothing.
    explained: [n, H] float32, the response at the targets, None without a response.
    trained: the values of the series that the client may learn from.
    make_inputs: returns the inputs [n, …] float32, see `sample_inputs`. They repeat each value many
        times, so they are made when a cohort is made, and they are not stored.
    targets: [n, H] float32, 0 where missing, a view of the values. present: [n, H] bool, False
        where missing.
    batches: [S, p] int64, sample numbers of the train batches, oldest batch first. Every batch
        is p consecutive samples. Its row b has phase b of the source's clock, so that row b of any
        two clients' prototypes is for the same time of day.
    train_end, validation_end: where the validation part and the test part begin, as numbers among
        the N values. A sample is in a part if all its targets are.
    block: the fewest steps on which anything sent may be based (`block_of`), 0 for any number.
    sends: whether the client may train for others. If not, it declares no train samples, so the
        server never asks it to train, and its batches serve only its own model.
    is_young: whether its look-back reaches before its series.
    """

    series: ClientSeries
    response: SeriesResponse | None
    explained: NDArray[np.float32] | None
    trained: slice
    make_inputs: Callable[[], NDArray[np.float32]]
    targets: NDArray[np.float32]
    present: NDArray[np.bool_]
    batches: NDArray[np.int64]
    train_end: int
    validation_end: int
    scale: Scale
    missing_share: float
    block: int
    sends: bool = True
    is_young: bool = False
    class_counts: tuple[tuple[int, ...], ...] = ()  # forecasting has no classes
    note: str = ""

    @property
    def inputs(self) -> NDArray[np.float32]:
        """The inputs, made anew at each call."""
        return self.make_inputs()

    @property
    def name(self) -> str:
        """The client's name."""
        return self.series.name

    @property
    def group(self) -> str:
        """The client's true group if the source knows it, else ""."""
        return self.series.group

    @property
    def clock(self) -> Clock | None:
        """The source's clock, None if its positions are not times."""
        return self.series.clock

    @property
    def end(self) -> int:
        """The position after the last value, on the source's clock."""
        return self.series.end

    @property
    def validated(self) -> slice:
        """The values of the series that belong to the validation part."""
        first = self.start - self.series.start
        return slice(first + self.train_end, first + self.validation_end)

    @property
    def start(self) -> int:
        """The position on the source's clock of the first sample's first target."""
        values = len(self.targets) + int(self.targets.shape[1]) - 1
        return self.end - values

    @property
    def first_test(self) -> int:
        """The position on the source's clock of the first value of the test part."""
        return self.start + self.validation_end

    @property
    def sample_times(self) -> SampleTimes:
        """The times of the samples, for methods that align clients by time."""
        clock = "" if self.clock is None else self.clock.label
        first, end = self.start + int(self.batches.min()), self.start + len(self.targets)
        return SampleTimes(clock, first, first + self.train_samples, end)

    @property
    def validation(self) -> slice:
        """The samples of the validation part."""
        return slice(self.train_end, self.validation_end - self.targets.shape[1] + 1)

    @property
    def test(self) -> slice:
        """The samples of the test part."""
        return slice(self.validation_end, None)

    @property
    def train_samples(self) -> int:
        """The client's weight in sample-weighted means, 0 if it does not send."""
        return int(self.batches.size) if self.sends else 0


def lookback(settings: DataSettings) -> int:
    """Return how many values before its first target a sample needs."""
    return max(settings.close_window, *settings.periodic_distances)


def reach(settings: DataSettings) -> int:
    """Return how far before a target its inputs reach in a series that is long enough."""
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


def _offsets(distance: int, settings: DataSettings) -> NDArray[np.int64]:
    """Return the positions [H] of the values this far before the targets, relative to the first.

    Within a period they are ``0 - distance``, ``1 - distance``, …. For targets further ahead than a
    period, the periodic values of the first period are repeated. Values at other lags are taken
    from whole periods earlier if they would otherwise lie at or after the first target.
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
    begin: NDArray[np.int64] | int = 0,
) -> NDArray[np.float32]:
    """Return the inputs of samples, [..., n, c + Q·H + j]. `WindowLayout` names their blocks.

    The close values come first, oldest first. Then follow, for each distance, longest first, the
    values at this distance before each target. Last come numbers of the first target's time. With
    ``calendar = "phase"`` this is the phase in the period, and with ``"week"`` also the number of
    the period modulo 7, which is the day of the week if a period is a day. If a source has no
    times, positions are counted from its beginning.

    values: [..., T], standardised and without gaps. firsts: [n], the places of the first targets
    among the values. positions: [..., n] or [n], their positions on the source's clock. begin:
    [...], the place of the series' first value. The values before it are 0.
    """
    places, begins = window_positions(firsts, settings), np.asarray(begin)
    if begins.max() > firsts.min() - reach(settings):
        places = _reached(places, firsts, begins[..., None, None], settings)
    if places.ndim > 2:  # each client has its own
        past = np.take_along_axis(values[..., None, :], places, axis=-1)
    else:
        past = values[..., places]
    phase, week = positions % settings.period, positions // settings.period % _WEEK
    times = np.stack([phase, week], axis=-1)[..., : settings.times]
    times = np.broadcast_to(times, (*past.shape[:-1], settings.times))
    return np.concatenate([past, times], axis=-1, dtype=np.float32)


def _reached(
    places: NDArray[np.int64],
    firsts: NDArray[np.int64],
    begin: NDArray[np.int64],
    settings: DataSettings,
) -> NDArray[np.int64]:
    """Return the places [..., n, c + Q·H] of past values, with those before the series replaced.

    A value at a distance is replaced by the first value with the same phase, if that comes before
    the first target. Otherwise it is replaced, like a close value, by the first value of the
    series. A sample keeps its places if its first target is not after the first value.
    """
    targets = firsts[:, None]
    same_phase = begin + (places - begin) % settings.period
    same_phase = np.where(same_phase < targets, same_phase, begin)
    same_phase[..., : settings.close_window] = begin
    return np.where((places < begin) & (begin < targets), same_phase, places)


def split_counts(
    values: int, settings: DataSettings, tested: int | None = None
) -> tuple[int, int, int]:
    """Return the numbers of train, validation and test values, in time order.

    In a backtest, the train part is everything before the validation part, which lies just before
    the window. tested: the number of test values if `data.test-start` decides it.
    """
    if tested is not None:
        history = max(0, values - tested)
        share = settings.validation_share / (settings.train_share + settings.validation_share)
        validation = math.floor(history * share + 1e-9)
        return history - validation, validation, values - history
    validation = math.floor(values * settings.validation_share + 1e-9)
    if settings.backtest:
        test = math.floor(values * settings.window_share + 1e-9)
        return values - validation - test, validation, test
    train = math.floor(values * settings.train_share + 1e-9)
    return train, validation, values - train - validation


def parts_of(series: ClientSeries, settings: DataSettings) -> tuple[int, int, int]:
    """Return how many train, validation and test values a series has after its look-back."""
    values = len(series.values) - lookback(settings)
    return split_counts(values, settings, _tested(series, settings))


def _tested(series: ClientSeries, settings: DataSettings) -> int | None:
    """Return the number of values from `data.test-start` on, or None if shares decide."""
    if not settings.test_start:
        return None
    return min(max(0, series.end - start_of_test(series, settings)), len(series.values))


def start_of_test(series: ClientSeries, settings: DataSettings) -> int:
    """Return the position on the source's clock at which `data.test-start` begins the test part.

    Raises `DataError` if it is a time but the source has none, or a number although it has times.
    """
    text = settings.test_start
    if series.clock is not None and series.clock.form == "Y" and re.fullmatch(r"\d{4}", text):
        text = f"{text}-01-01"  # years, as the data write them
    counts = re.fullmatch(r"-?\d+", text) is not None
    if counts is not (series.clock is None):
        has, give = ("no times", "the number of a step") if counts is False else ("times", "a time")
        raise DataError(f"data.test-start = {text!r}: the source has {has}; give {give}")
    if series.clock is None:
        return int(text)
    time = datetime.fromisoformat(text)
    if settings.time_zone and time.tzinfo is None:
        time = time.replace(tzinfo=ZoneInfo(settings.time_zone))
    return series.clock.first_at(time)


def shortest_length(settings: DataSettings, batches: int = 1) -> int:
    """Return the steps needed for `batches` train batches, one validation and one test sample."""
    horizon, train_values = settings.horizon, batches * settings.period + settings.horizon - 1
    validation, test = settings.validation_share, 1 - settings.train_share
    test = settings.window_share if settings.backtest else test - validation
    # A lower bound to start from: parts are whole numbers.
    least = train_values / (1 - validation - test), horizon / validation, (horizon - 2) / test
    values = max(batches * settings.period, *(math.floor(n * (1 - 1e-9)) - 3 for n in least))
    while True:
        train, validation, test = split_counts(values, settings)
        if train - horizon + 1 >= batches * settings.period and min(validation, test) >= horizon:
            return lookback(settings) + values
        values += 1


@dataclass(frozen=True)
class Cut:
    """How a client's series is to be cut into samples.

    series: the client's series. If the client is young, missing values are put before the series,
    so that its train samples fill whole periods. begin: the place of the first value, 0 if it is
    not young. train, validation: how many of the N values after the look-back these parts have.
    first, end: the range of train samples in batches. block: as in `ClientWindows`. is_whole:
    whether batches are whole blocks.
    """

    series: ClientSeries
    settings: DataSettings
    begin: int
    train: int
    validation: int
    first: int
    end: int
    block: int
    is_whole: bool

    @property
    def is_young(self) -> bool:
        """Whether the client's look-back reaches before its series."""
        return self.begin > 0

    @property
    def trained_part(self) -> slice:
        """The values that the client may learn from: its whole blocks, if there are any.

        Otherwise, all values up to the last train target that are within a limited history.
        """
        back, period, history = lookback(self.settings), self.settings.period, self.settings.history
        if self.is_whole:
            return slice(back + self.first, back + self.end)
        limited = 0 < history < self.end // period
        return slice(self.first if limited else 0, back + self.end + self.settings.horizon - 1)

    @property
    def trained(self) -> NDArray[np.float64]:
        """The values that determine the scale."""
        return self.series.values[self.trained_part]

    @property
    def lacks_scale(self) -> bool:
        """Whether a young client has too few train values for a scale: less than half a period."""
        return self.is_young and 2 * np.isfinite(self.trained).sum() < self.settings.period

    @property
    def first_target(self) -> int:
        """The place of the first target of the first sample that counts.

        For a young client, it is the second value, or the first after those that set its scale.
        """
        sets_scale = self.lacks_scale and not self.settings.scale
        return self.begin + (self.settings.period if sets_scale else 1) if self.is_young else 0

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which values of the series may be targets, [L + N]."""
        present = np.isfinite(self.series.values)
        present[: self.first_target] = False
        return present

    @property
    def parts(self) -> dict[str, NDArray[np.bool_]]:
        """Which targets are present in the train batches, the validation part and the test part.

        Only samples that count are considered.
        """
        back, trained = lookback(self.settings), self.end + self.settings.horizon - 1
        present, since = self.present[back:], max(0, self.first_target - back)
        validated = self.train + self.validation
        return {
            "train": present[max(self.first, since) : trained if since < self.end else 0],
            "validation": present[self.train : validated],
            "test": present[max(validated, since) :],
        }

    @property
    def words(self) -> str:
        """What a run does with a young client, in words."""
        trained, validated, tested = (int(part.sum()) for part in self.parts.values())
        steps = f"{len(self.series.values) - self.begin} steps"
        if not trained:
            return f"{steps}: receives a model to begin with, which is tested on {tested} values"
        parts = f"trains on {trained} values" + f", validates on {validated}" * bool(validated)
        silent = "" if self.sends else ", but sends nothing,"
        return f"{steps}: {parts}{silent} and is tested on {tested}"

    @property
    def sends(self) -> bool:
        """Whether the client has a train target, and whole blocks if these are required."""
        return bool(self.parts["train"].any()) and (self.is_whole or not self.block)


def cut_of(series: ClientSeries, settings: DataSettings) -> Cut:
    """Return how this series is to be cut.

    A client is not young if it can be trained, validated and tested without reaching before its
    series. But if whole blocks are required and its train part holds none, it is young if its train
    part then holds one. A backtest has no young clients: they would differ between its windows.
    """
    train, validation, test = parts_of(series, settings)
    if settings.test_start:
        samples = train - settings.horizon + 1
        is_long = samples >= settings.period and min(validation, test) >= settings.horizon
    else:
        is_long = len(series.values) >= shortest_length(settings)
    if is_long:
        cut = _with_batches(series, settings, 0, train, validation)
        if settings.backtest or all(part.any() for part in cut.parts.values()):
            if settings.backtest or cut.sends:
                return cut
            young = _young(series, settings)
            return young if young.sends else cut
    return _young(series, settings)


def _young(series: ClientSeries, settings: DataSettings) -> Cut:
    """Return how the series of a young client is to be cut.

    The test part has at least a horizon of values. The validation part has its share of the rest:
    at least a horizon if that leaves a sample to train on, else nothing.
    """
    length, horizon, period = len(series.values), settings.horizon, settings.period
    test = _tested(series, settings)
    if test is None:
        test = min(length, max(horizon, split_counts(length, settings)[2]))
    history, validation, _ = split_counts(length, settings, test)
    validation = max(validation, horizon) if history + validation > 2 * horizon else 0
    train = length - test - validation
    samples = train - horizon + 1
    missing = max(1, -(-samples // period)) * period - samples
    begin = lookback(settings) + missing
    longer = replace(
        series,
        values=np.concatenate([np.full(begin, np.nan), series.values]),
        start=series.start - begin,
        known=np.empty((0, 0)),
        columns=(),
    )
    return _with_batches(longer, settings, begin, train + missing, validation)


def _with_batches(
    series: ClientSeries, settings: DataSettings, begin: int, train: int, validation: int
) -> Cut:
    """Return the cut whose train samples are the newest whole blocks, or else whole periods.

    A block counts if at least half of its values are present.
    """
    period, block = settings.period, block_of(series, settings)
    samples, start = train - settings.horizon + 1, series.start + lookback(settings)
    batches = samples // period
    first = samples - min(batches, settings.history or batches) * period
    cut = Cut(series, settings, begin, train, validation, first, samples, block, is_whole=False)
    if not block:
        return cut
    first, end = -(-start // block) * block, (start + samples) // block * block
    if settings.history:
        first = max(first, end - settings.history * period // block * block)
    first = min(first, end)
    of_blocks = replace(cut, first=first - start, end=end - start, is_whole=True)
    has_half = first < end and 2 * np.isfinite(of_blocks.trained).sum() >= block
    return of_blocks if has_half else cut


def why_refused(series: ClientSeries, settings: DataSettings) -> str | None:
    """Return why this client cannot take part, or None if it can."""
    if not np.isfinite(series.values).any():
        return "no value is present"
    if settings.backtest and len(series.values) < (shortest := shortest_length(settings)):
        return (
            f"{len(series.values)} steps, but a backtest at period {settings.period}, horizon "
            f"{settings.horizon} and {lookback_text(settings)} need at least {shortest}"
        )
    if (block := block_of(series, settings)) % settings.period:
        return (
            f"least-periods = {settings.least_periods}: clients train on whole blocks of {block} "
            f"steps, which data.period = {settings.period} does not divide"
        )
    cut = cut_of(series, settings)
    tested = cut.parts["test"]
    if cut.lacks_scale and not settings.scale and len(tested) < settings.horizon:
        return (
            f"its first {settings.period} values set its scale, so {len(tested)} are left to test; "
            "data.scale = 'mean,std' gives a client without history its scale"
        )
    if len(tested) < settings.horizon:
        where = f" from data.test-start = {settings.test_start!r} on" * bool(settings.test_start)
        return f"{len(tested)} steps{where}, fewer than the {settings.horizon} of a test sample"
    return None if tested.any() else "every target of its test part is missing"


def block_of(series: ClientSeries, settings: DataSettings) -> int:
    """Return the number of steps in a block, or 0 if there are no blocks.

    With `least_periods`, a client trains on whole blocks: the first targets of its train samples
    fill blocks that begin at multiples of their length on the source's clock. So if different runs
    ask for sums over a client's samples, the sums differ by whole blocks. Here a period is a
    day, for daily values a week, or 24 steps if the clock has neither. It is not `data.period`,
    which the run chooses. If steps are a week or longer, a block is the fewest whole years with
    `least_periods` steps, because few series have seven years.
    """
    if year := 0 if series.clock is None else series.clock.year:
        return -(-settings.least_periods // year) * year
    period = 0 if series.clock is None else series.clock.cycle
    return settings.least_periods * (period or _WITHOUT_DAYS)


def make_windows(
    series: ClientSeries, settings: DataSettings, response: SeriesResponse | None = None
) -> ClientWindows:
    """Cut, split and standardise one client's series. Raises `DataError` if it is refused.

    response: the effect that is subtracted from the standardised values. They keep the scale of
    the original series.
    """
    if reason := why_refused(series, settings):
        raise DataError(f"client {series.name!r} refused: {reason}")
    cut = cut_of(series, settings)
    back, horizon, start = lookback(settings), settings.horizon, cut.series.start
    scale = scale_of(series, settings)
    scaled, explained = scale.standardised(cut.series.values), np.zeros(0)
    if response is not None:
        past = series.known[: len(series.values)]
        explained = np.zeros_like(scaled)
        explained[cut.begin :] = response.values(past, series.start, settings.period)
        scaled = scaled - explained
    filled, present = carry_forward(scaled), cut.present
    trained = cut.trained_part
    firsts = np.arange(back, len(scaled) - horizon + 1)

    def windows(values: NDArray[np.floating | np.bool_]) -> Any:
        """Return a view of the values from each first target on, [n, H]."""
        return sliding_window_view(values[back:], horizon, writeable=True)

    return ClientWindows(
        series=series,
        response=response,
        explained=None if response is None else windows(explained.astype(np.float32)),
        trained=slice(max(0, trained.start - cut.begin), max(0, trained.stop - cut.begin)),
        make_inputs=partial(sample_inputs, filled, firsts, start + firsts, settings, cut.begin),
        targets=windows(np.where(present, filled, 0.0).astype(np.float32)),
        present=windows(present) & (firsts >= cut.first_target)[:, None],
        batches=_phase_aligned_batches(cut.first, cut.end, start + back, settings.period),
        train_end=cut.train,
        validation_end=cut.train + cut.validation,
        scale=scale,
        missing_share=float(1 - np.isfinite(series.values).mean()),
        block=cut.block,
        sends=cut.sends,
        is_young=cut.is_young,
    )


def scale_of(series: ClientSeries, settings: DataSettings) -> Scale:
    """Return the scale of a series that is not refused.

    A young client with too few train values has the declared scale, or its first period's.
    """
    cut = cut_of(series, settings)
    if cut.lacks_scale and settings.scale:
        mean, std = map(float, settings.scale.split(","))
        return Scale(mean, std, seasonal_difference=0.0, is_negative=True)
    if cut.lacks_scale:
        first = series.values[: settings.period]
        return Scale.of_series(first, first, settings.period)
    # With blocks, whatever depends on the train part depends only on the blocks' first targets.
    end = lookback(settings) + (cut.end if cut.is_whole else cut.train)
    return Scale.of_series(cut.trained, cut.series.values[:end], settings.period)


def carry_forward(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace missing values by the last value before them, at the start by 0, the train mean."""
    last = np.where(np.isfinite(values), np.arange(len(values)), -1)
    np.maximum.accumulate(last, out=last)
    return np.where(last >= 0, values[last], 0.0)


def _phase_aligned_batches(
    first: int, end: int, first_target: int, period: int
) -> NDArray[np.int64]:
    """Return the sample numbers from `first` to the end as batches [S, p].

    Sample b of each batch has phase b. first_target: clock position of sample 0's first target.
    """
    order = (np.arange(period) - (first_target + first)) % period
    return (np.arange(first, end, period)[:, None] + order).astype(np.int64)
