"""A CSV file of three hourly series with gaps, a run on it, and the state that its node keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_histories
from fedproto_app.data.windows import make_windows
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.run_files import CsvTable
from fedproto_app.report.runs import read_clients
from fedproto_app.serving import NodeState, forecast, open_state
from fedproto_app.settings import DataSettings
from tests.helpers.local_grid import run_locally, small_settings

PERIOD, LOOKBACK, ROWS = 6, 12, 120  # two periodic values


def made_series() -> pd.DataFrame:
    """Three sites of very different size. "late" begins later, "gappy" has gaps."""
    hours = pd.date_range("2024-03-04 05:00", periods=ROWS, freq="h", name="time")
    rng = np.random.default_rng(7)
    wave = np.sin(2 * np.pi * np.arange(ROWS) / PERIOD)
    frame = pd.DataFrame(
        {
            "gappy": 10 + 5 * wave + rng.normal(0, 0.5, ROWS),
            "late": 1e4 - 800 * wave + rng.normal(0, 50, ROWS),
            "steady": 0.01 + 0.002 * wave + rng.normal(0, 1e-4, ROWS),
        },
        index=hours,
    )
    frame.iloc[:9, 1] = np.nan
    frame.iloc[[3, 40, 41, ROWS - 15, ROWS - 14, ROWS - 8], 0] = np.nan
    return frame


def train_on(data: Path, tmp_path: Path, **changes: Any) -> tuple[RunFolder, Path]:
    """Return a run of one node with the clients of a CSV file, and the node's state folder."""
    changes = {
        "method": "fuels",
        "rounds": 2,
        "model.representation-dim": 8,
        "data.period": PERIOD,
        "data.periodic-window": 2,
        **changes,
    }
    settings = small_settings(tmp_path, **changes)
    node = {
        "partition-id": 0,
        "num-partitions": 1,
        "data-source": "wide-csv",
        "data-path": str(data),
        "state-dir": str(tmp_path / "state"),
    }
    run, _ = run_locally(settings, [node])
    [state] = (tmp_path / "state").glob("*/0")
    return run, state


def histories(data: Path) -> list[ClientSeries]:
    """Return the series of a CSV file, to its last row."""
    return load_histories(DataSettings(source="wide-csv", path=str(data)))


def one_step(state: NodeState, series: ClientSeries) -> float:
    """Forecast the next value of the series, which may end before the training data.

    It is moved by whole weeks to a time after them, since earlier ends are refused.
    """
    moved = replace(series, start=series.start + 7 * PERIOD * ROWS)
    [prediction], _ = forecast(state, [moved], 1)
    return float(prediction.values[0])


def forecasts_have_the_reported_errors(tmp_path: Path, **changes: Any) -> CsvTable:
    """Train on the series, then walk over each test part with the kept model, a step at a time.

    Returns clients.csv.
    """
    data = tmp_path / "sites.csv"
    made_series().to_csv(data)
    run, folder = train_on(data, tmp_path, **changes)
    state = open_state(folder)
    table = read_clients(run.path)
    assert set(table.clients) == {"gappy", "late", "steady"}
    for series in histories(data):
        windows = make_windows(series, state.settings.data)
        errors = []
        for step in range(LOOKBACK + windows.validation_end, len(series.values)):
            if np.isfinite(truth := series.values[step]):
                forecast_value = one_step(state, series.part(0, step))
                errors.append((forecast_value - truth) / windows.scale.std)
        assert np.mean(np.square(errors)) == pytest.approx(
            table.by_client("mse")[series.name], rel=1e-4
        )
        mae_units = windows.scale.original_size(np.mean(np.abs(errors)))
        assert mae_units == pytest.approx(table.by_client("mae_units")[series.name], rel=1e-4)
    return table
