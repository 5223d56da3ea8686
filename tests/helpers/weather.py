"""Eight clients whose hourly values answer to a temperature known in advance."""

from __future__ import annotations

import numpy as np

from fedproto_app.data.clock import Clock
from fedproto_app.data.series import ClientSeries
from fedproto_app.settings import DataSettings

HOUR = Clock(np.timedelta64(1, "h"), np.timedelta64(0, "s"), utc=False)
SOURCE = f"{__name__}:weather_series"
COLUMNS = ("temperature", "promotion")
CHANGES = {"data.source": SOURCE, "data.known": "temperature,promotion", "data.period": 24}


def weather_series(settings: DataSettings) -> list[ClientSeries]:
    """Return series of 30 days, and of 9 days for the last client."""
    rng = np.random.default_rng(3)
    steps = 30 * 24
    series = []
    for number in range(8):
        temperature = np.cumsum(rng.normal(0, 1, steps)) % 30
        promotion = (rng.random(steps // 24) < 0.2).repeat(24).astype(float)
        profile = np.sin(2 * np.pi * np.arange(steps) / 24)
        values = 50 + 2 * np.maximum(temperature - 10, 0) + 6 * promotion + 5 * profile
        values += rng.normal(0, 1, steps)
        first = steps - 9 * 24 if number == 7 else 0
        known = np.column_stack([temperature, promotion])
        series.append(
            ClientSeries(
                f"site-{number}", values, 0, clock=HOUR, known=known, columns=COLUMNS
            ).part(first)
        )
    return series
