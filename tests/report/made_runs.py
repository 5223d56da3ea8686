"""Run folders as the server app writes them, with figures chosen by the test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

CLIENT_COLUMNS = (
    "client,node,group,samples,missing_share,kept_round,mse,mae,rmse_units,mae_units,"
    "validation_mse,last_mse,last_mae"
)


def round_record(number: int, **changes: Any) -> dict[str, Any]:
    """One line of rounds.jsonl: 100 parameters up and 200 down a round."""
    return {
        "round": number,
        "loss": {"total": 4 / number, "prediction": 2 / number},
        "validation_mse": 1 / number,
        "test_mse": 1.5 / number,
        "test_mae": 1.2 / number,
        "kept_test_mse": 1.5 / number,
        "kept_test_mae": 1.2 / number,
        "clients": 2,
        "asked": 2,
        "answered": 2,
        "refused": [],
        "parameters_up": 100,
        "parameters_down": 200,
        "bytes_up": 400,
        "bytes_down": 800,
        "seconds": {"train": 0.5, "aggregate": 0.1, "evaluate": 0.4, "total": 1.0},
        **changes,
    }


def make_run(
    folder: Path,
    errors: Sequence[float | None] = (0.25, 0.5),
    settings: dict[str, Any] | None = None,
    **summary: Any,
) -> Path:
    """Write a finished run; ``errors`` are the clients' test MSEs, None for one without."""
    folder.mkdir(parents=True)
    rows = [
        f"c{i},n0,office,100,0.0,3,{mse},{mse},{mse * 10},{mse * 9},0.3,{mse * 2},0.4"
        if mse is not None
        else f"c{i},n0,office,100,1.0,0,,,,,,,"
        for i, mse in enumerate(errors)
    ]
    (folder / "clients.csv").write_text("\n".join([CLIENT_COLUMNS, *rows]) + "\n")
    records = [json.dumps(round_record(number)) + "\n" for number in (1, 2, 3)]
    (folder / "rounds.jsonl").write_text("".join(records))
    (folder / "settings.toml").write_text(tomli_w.dumps(settings or {"seed": 0}))
    figures = {
        "status": "completed",
        "method": "fuels",
        "dataset": "toy",
        "clients": len(errors),
        "rounds": 3,
        "seed": 0,
        "keep": "best-validation",
        "stopped": "rounds",
        "mse": 0.375,
        "mae": 0.5,
        "last_mse": 0.75,
        "last_mae": 0.625,
        "rmse_units": 3.75,
        "mae_units": 3.375,
        "parameters_up_per_client_round": 768,
        "bytes_up": 1200,
        "bytes_down": 2_400_000,
        "seconds": 12.5,
        "versions": {},
        "settings_digest": "digest",
    }
    (folder / "summary.json").write_text(json.dumps(figures | summary))
    return folder


def add_divergence(folder: Path, groups: Sequence[str], divergence: np.ndarray) -> None:
    """Write divergence.npz beside the other artefacts."""
    names = np.array([f"c{i}" for i in range(len(groups))])
    prototypes = np.zeros((len(groups), 2, 3), dtype=np.float32)
    np.savez(
        folder / "divergence.npz",
        names=names,
        groups=np.array(groups, dtype=np.str_),
        divergence=divergence,
        prototypes=prototypes,
    )
