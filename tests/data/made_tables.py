"""Tables made for the tests, and how a run reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedproto_app.data.format import Reading
from fedproto_app.data.recognition import reading_of
from fedproto_app.data.series import ClientSeries, notes_of
from fedproto_app.data.sources import load_series
from fedproto_app.settings import settings_from

HOURS = pd.date_range("2024-03-04 05:00", periods=6, freq="h", name="time")
FRAME = pd.DataFrame(
    {"north": [1.5, 2, np.nan, 4, 5, 6.25], "south": [10.0, 20, 30, 40, 50, -60]}, index=HOURS
)
LONG = (
    FRAME.reset_index()
    .melt("time", var_name="unique_id", value_name="y")
    .rename(columns={"time": "ds"})
)
FIRST = 474869  # hours from 1970 to the first of them


def load(path: Path, source: str, **settings: Any) -> dict[str, ClientSeries]:
    """Read a file as `fedproto run --set data.…` does."""
    changes = {f"data.{key.replace('_', '-')}": value for key, value in settings.items()}
    data = settings_from({**changes, "data.source": source, "data.path": str(path)}).data
    return {client.name: client for client in load_series(data)}


def read(path: Path, answers: dict[str, Any]) -> tuple[Reading, list[ClientSeries], list[str]]:
    """Return how a file is read with a person's answers, its clients and all notes on them."""
    reading = reading_of(path, answers)
    table = {**reading.all_settings, **reading.fitting(answers), "data.path": str(path)}
    clients = load_series(settings_from(table).data)
    return reading, clients, [*reading.notes, *reading.left_out, *notes_of(clients)]


def values_of(clients: dict[str, ClientSeries]) -> dict[str, list[float]]:
    return {name: client.values.tolist() for name, client in clients.items()}


def written(folder: Path, text: str | bytes, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def require_the_frame(clients: dict[str, ClientSeries]) -> None:
    assert list(clients) == ["north", "south"]
    for name, series in clients.items():
        np.testing.assert_array_equal(series.values, FRAME[name])
        assert series.start == FIRST
