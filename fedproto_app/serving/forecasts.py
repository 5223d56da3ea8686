"""The next values of a client's series with their intervals, and the table of them."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.clock import Clock
from fedproto_app.tasks.forecasting.intervals import LEVELS

LIMITS = tuple(f"{side}_{level}" for level in LEVELS for side in ("lower", "upper"))


@dataclass(frozen=True)
class ClientForecast:
    """A client's next values, in the series' own units.

    values: [n]. half_widths: [L, n] of the intervals around them, one row for each of `LEVELS`; NaN
    where unknown. first: position of the first value on the source's clock. last: the newest value
    that is present. gap: missing values between that and the first forecast.
    """

    client: str
    values: NDArray[np.float64]
    half_widths: NDArray[np.float64]
    first: int
    clock: Clock | None
    last: float
    gap: int

    def when(self, ahead: int) -> str:
        """The time of a forecast, or its step from 0 on where the source has no times."""
        position = self.first + ahead
        return str(position) if self.clock is None else self.clock.time(position)

    @property
    def limits(self) -> dict[str, NDArray[np.float64]]:
        """The columns `LIMITS`, [n] each, NaN where unknown."""
        ends = [self.values + sign * half for half in self.half_widths for sign in (-1, 1)]
        return dict(zip(LIMITS, ends, strict=True))


def time_column(forecasts: Sequence[ClientForecast]) -> str:
    """What their table calls when a value is: ``step`` where there are no times."""
    return "time" if any(one.clock is not None for one in forecasts) else "step"


def write_csv(forecasts: Sequence[ClientForecast], file: TextIO) -> None:
    """``client, time, forecast`` and `LIMITS`, a row a client and step; empty where unknown."""
    table = csv.writer(file, lineterminator="\n")
    table.writerow(["client", time_column(forecasts), "forecast", *LIMITS])
    for one in forecasts:
        table.writerows(_rows(one))


def _rows(one: ClientForecast) -> Iterator[list[str]]:
    columns = [one.values, *one.limits.values()]
    for ahead, numbers in enumerate(zip(*columns, strict=True)):
        texts = ["" if np.isnan(number) else f"{number:.10g}" for number in numbers]
        yield [one.client, one.when(ahead), *texts]
