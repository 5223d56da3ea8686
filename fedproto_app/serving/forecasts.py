"""The forecast of a client's series with intervals, and its table."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.clock import Clock
from fedproto_app.tasks.forecasting.metrics import LEVELS

LIMITS = tuple(f"{side}_{level}" for level in LEVELS for side in ("lower", "upper"))


@dataclass(frozen=True)
class ClientForecast:
    """A client's next values, in the series' own units.

    values: [n]. half_widths: [L, n], half the width of the intervals around the values, one row for
    each of `LEVELS`; NaN where unknown. first: position of the first value on the source's clock.
    last: the newest observed value. gap: number of missing values between `last` and the first
    forecast.
    """

    client: str
    values: NDArray[np.float64]
    half_widths: NDArray[np.float64]
    first: int
    clock: Clock | None
    last: float
    gap: int

    def when(self, ahead: int) -> str:
        """Return the time of a forecast, or its step (from 0) if the source has no times."""
        position = self.first + ahead
        return str(position) if self.clock is None else self.clock.time(position)

    @property
    def limits(self) -> dict[str, NDArray[np.float64]]:
        """The columns `LIMITS`, [n] each, NaN where unknown."""
        ends = [self.values + sign * half for half in self.half_widths for sign in (-1, 1)]
        return dict(zip(LIMITS, ends, strict=True))


def time_column(forecasts: Sequence[ClientForecast]) -> str:
    """Return the heading of the time column: ``time``, or ``step`` without times."""
    return "time" if any(forecast.clock is not None for forecast in forecasts) else "step"


def write_csv(forecasts: Sequence[ClientForecast], file: TextIO) -> None:
    """Write ``client, time, forecast`` and `LIMITS`, one row per client and step.

    Unknown values are empty.
    """
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["client", time_column(forecasts), "forecast", *LIMITS])
    for forecast in forecasts:
        table.writerows(_rows(forecast))


def _rows(forecast: ClientForecast) -> Iterator[list[str]]:
    columns = [forecast.values, *forecast.limits.values()]
    for ahead, numbers in enumerate(zip(*columns, strict=True)):
        texts = ["" if np.isnan(number) else f"{number:.10g}" for number in numbers]
        yield [forecast.client, forecast.when(ahead), *texts]
