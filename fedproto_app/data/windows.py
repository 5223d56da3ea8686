"""From one client's series to its samples, split in time and standardised.

Decisions of docs/fuels.md, section "Data → samples". With look-back L = max(c, q·p), sample k
forecasts ``values[L + k]`` from its c close and q periodic predecessors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.clock import Clock
from fedproto_app.data.series import ClientSeries
from fedproto_app.errors import DataError
from fedproto_app.settings import DataSettings


@dataclass(frozen=True)
class ClientWindows:
    """The samples of one client, on the scale of its train part.

    inputs: [n, c + q] float32, close values then periodic values, oldest first.
    targets: [n] float32, 0 where missing. present: [n] bool, False where the target is missing.
    batches: [S, p] int64, sample numbers of the train batches, oldest batch first. Every batch
        is p consecutive samples, and its row b has phase b of the source's clock, so that row b
        of any two clients' prototypes is the same time of day.
    train_end, validation_end: sample numbers where validation and test begin.
    mean, std: of the train part, in the data's units.
    clock: of the source, None where it only counts.
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
    return max(settings.close_window, settings.periodic_window * settings.period)


def window_positions(targets: NDArray[np.int64], settings: DataSettings) -> NDArray[np.int64]:
    """[n, c + q] where the inputs of the forecasts of these places [n] stand, oldest first."""
    close = targets[:, None] - np.arange(settings.close_window, 0, -1)
    periodic = targets[:, None] - settings.period * np.arange(settings.periodic_window, 0, -1)
    return np.concatenate([close, periodic], axis=1)


def split_counts(samples: int, settings: DataSettings) -> tuple[int, int, int]:
    """Train, validation and test samples of so many, in time order."""
    train = math.floor(samples * settings.train_share + 1e-9)
    validation = math.floor(samples * settings.validation_share + 1e-9)
    return train, validation, samples - train - validation


def shortest_length(settings: DataSettings) -> int:
    """Steps that a series needs for one train batch, one validation and one test sample."""
    samples = settings.period
    while True:
        train, validation, test = split_counts(samples, settings)
        if train >= settings.period and validation >= 1 and test >= 1:
            return lookback(settings) + samples
        samples += 1


def why_refused(series: ClientSeries, settings: DataSettings) -> str | None:
    """Why this client cannot take part, or None if it can."""
    length, needed = len(series.values), shortest_length(settings)
    if not np.isfinite(series.values).any():
        return "no value is present"
    if length < needed:
        return (
            f"{length} steps, but period {settings.period} with {settings.periodic_window} "
            f"periodic values needs at least {needed}"
        )
    present = np.isfinite(series.values[lookback(settings) :])
    train, validation, _ = split_counts(len(present), settings)
    parts = {
        "train": present[train - train // settings.period * settings.period : train],
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
    history, period = lookback(settings), settings.period
    samples = len(series.values) - history
    train, validation, _ = split_counts(samples, settings)

    known = series.values[: history + train]  # nothing later than the last train target
    mean, std = float(np.nanmean(known)), _scale(known)
    scaled = (series.values - mean) / std
    present = np.isfinite(scaled)
    filled = carry_forward(scaled)
    positions = window_positions(history + np.arange(samples), settings)
    return ClientWindows(
        name=series.name,
        group=series.group,
        inputs=filled[positions].astype(np.float32),
        targets=np.where(present, filled, 0.0)[history:].astype(np.float32),
        present=present[history:],
        batches=_phase_aligned_batches(train, series.start + history, period),
        train_end=train,
        validation_end=train + validation,
        mean=mean,
        std=std,
        missing_share=float(1 - present.mean()),
        clock=series.clock,
    )


def _scale(known: NDArray[np.float64]) -> float:
    """The standard deviation, or 1 for a constant series, whose deviation is mere rounding."""
    deviation = float(np.nanstd(known))
    return deviation if deviation > 1e-9 * float(np.nanmax(np.abs(known))) else 1.0


def carry_forward(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Missing values replaced by the last one before them (0, the train mean, before the first)."""
    last = np.where(np.isfinite(values), np.arange(len(values)), -1)
    np.maximum.accumulate(last, out=last)
    return np.where(last >= 0, values[last], 0.0)


def _phase_aligned_batches(train: int, first_target: int, period: int) -> NDArray[np.int64]:
    """[S, p] sample numbers: the newest S·p train samples, row b of each batch at phase b.

    first_target: clock position of sample 0's target.
    """
    batches = train // period
    oldest = train - batches * period  # the oldest samples are trimmed, not the newest
    order = (np.arange(period) - (first_target + oldest)) % period
    return (oldest + period * np.arange(batches)[:, None] + order).astype(np.int64)
