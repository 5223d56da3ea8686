"""A CSV file of three hourly series with gaps, a run on it, and the state that its node keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedproto_app.report.artefacts import RunFolder
from tests.local_grid import run_locally, small_settings

PERIOD, LOOKBACK, ROWS = 6, 12, 120  # two periodic values


def made_series() -> pd.DataFrame:
    """Three sites of very different size; "late" begins later, "gappy" has gaps."""
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
    """A run of one node that holds the clients of a CSV file; the folder of the node's state."""
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
