"""What a data set holds, and what a run would refuse of it, before anything is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.csv_source import SUFFIX
from fedproto_app.data.images.inspection import image_source_of
from fedproto_app.data.sequences.inspection import sequence_source_of
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import why_refused
from fedproto_app.errors import DataError
from fedproto_app.settings import DataSettings

# An autocorrelation below this is no period; noise of T values reaches about 3 / √T.
FAINTEST_PERIOD = 0.2
NOISE_PEAK = 4.0
# A shorter lag is the period if it is nearly as strong as the strongest: 24 before 48 and 168.
NEARLY = 0.75
FEWEST_VALUES = 12

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class ClientInspection:
    """One client: length and start in steps, period in steps or None, why it would be refused."""

    name: str
    length: int
    start: int
    period: int | None
    missing_share: float
    constant: bool
    refused: str | None


@dataclass(frozen=True)
class Inspection:
    """All clients of a source, in its order."""

    clients: tuple[ClientInspection, ...]

    @property
    def usable(self) -> tuple[ClientInspection, ...]:
        """The clients that a run would train."""
        return tuple(client for client in self.clients if client.refused is None)

    @property
    def refused(self) -> tuple[ClientInspection, ...]:
        """The clients that a run would leave out."""
        return tuple(client for client in self.clients if client.refused is not None)

    @property
    def lengths(self) -> tuple[int, float, int]:
        """Shortest, median and longest series, in steps."""
        lengths = [client.length for client in self.clients]
        return min(lengths), median(lengths), max(lengths)

    @property
    def missing_share(self) -> float:
        """Missing values of all clients over all their steps, between 0 and 1."""
        steps = sum(client.length for client in self.clients)
        missing = sum(client.missing_share * client.length for client in self.clients)
        return missing / steps if steps else 0.0

    @property
    def period_votes(self) -> list[tuple[int, int]]:
        """(period, clients that have it), most votes first, the shorter period first on a tie."""
        votes = Counter(client.period for client in self.clients if client.period is not None)
        return sorted(votes.items(), key=lambda vote: (-vote[1], vote[0]))


def inspect_clients(clients: Sequence[ClientSeries], settings: DataSettings) -> Inspection:
    """Look at every client as a run with these settings would."""
    return Inspection(tuple(_inspect(series, settings) for series in clients))


def _inspect(series: ClientSeries, settings: DataSettings) -> ClientInspection:
    present = series.values[np.isfinite(series.values)]
    length = len(series.values)
    return ClientInspection(
        name=series.name,
        length=length,
        start=series.start,
        period=find_period(series.values),
        missing_share=1 - len(present) / length if length else 0.0,
        constant=bool(len(present) and np.ptp(present) == 0),
        refused=why_refused(series, settings),
    )


def source_of(path: Path) -> str:
    """The source that reads this path, told from names and from the shapes of arrays.

    Raises `DataError` if none does.
    """
    if (source := sequence_source_of(path) or image_source_of(path)) is not None:
        return source
    name = path.name.lower()
    if path.is_dir():
        return "csv-folder"
    if SUFFIX.search(name):
        return "wide-csv"
    if name.endswith((".h5", ".hdf5")):
        return "hdf5"
    if name.endswith(".npz"):
        return "npz"
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    raise DataError(
        f"{path}: no source reads such a file; known are .csv, .csv.gz, .h5, .hdf5, .npz, .zip, "
        ".ts, folders of .csv files and folders of images"
    )


def find_period(values: Vector) -> int | None:
    """The period in steps by autocorrelation, or None where none stands out.

    values: [T], NaN where missing. Of the lags beyond the first sign change of the
    autocorrelation, up to a third of the series, the strongest one counts; if a shorter one is
    nearly as strong, then that one, because every multiple of a period is a period too.
    """
    present = np.isfinite(values)
    if present.sum() < FEWEST_VALUES or np.ptp(values[present]) == 0:
        return None
    correlation = _autocorrelation(_without_trend(values, present))
    candidates = correlation[: len(values) // 3 + 1].copy()
    negative = np.flatnonzero(candidates < 0)
    if not negative.size:
        return None
    candidates[: negative[0]] = 0.0  # neighbours resemble each other; that is no period
    strongest = candidates.max()
    if strongest < max(FAINTEST_PERIOD, NOISE_PEAK / np.sqrt(len(values))):
        return None
    first = int(np.argmax(candidates >= NEARLY * strongest))
    hill = int(np.argmax(np.append(candidates[first:], -1.0) < 0))
    return _sharpened(first + int(np.argmax(candidates[first : first + hill])), correlation)


def _without_trend(values: Vector, present: NDArray[np.bool_]) -> Vector:
    """[T] gaps filled by interpolation, a cubic trend (growth, seasons of a year) taken off."""
    steps = np.arange(len(values), dtype=np.float64)
    filled = np.interp(steps, steps[present], values[present])
    trend = np.polynomial.Polynomial.fit(steps, filled, 3)
    return np.asarray(filled - trend(steps), dtype=np.float64)


def _autocorrelation(values: Vector) -> Vector:
    """[T // 2] correlation of the series with itself at each lag, over its own overlap."""
    length = len(values)
    spectrum = np.fft.rfft(values, 2 * length)  # twice the length: no wrap-around
    products = np.fft.irfft(spectrum * spectrum.conj(), 2 * length)[: length // 2]
    products /= np.arange(length, length - length // 2, -1)
    variance = float(products[0])
    return products / variance if variance > 0 else np.zeros_like(products)


def _sharpened(lag: int, correlation: Vector) -> int:
    """The lag within 5% whose multiples correlate best: noise shifts one peak, seldom all."""
    reach = lag // 20
    near = np.arange(lag - reach, lag + reach + 1)
    multiples = np.arange(1, max(1, (len(correlation) - 1) // (lag + reach)) + 1)
    return int(near[np.argmax(correlation[np.outer(near, multiples)].mean(axis=1))])
