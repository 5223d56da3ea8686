"""The centralised reference: boosted trees on all clients' pooled samples.

A row from outside the app, for tables: LightGBM (the extra `lightgbm`), one step ahead, on the
samples that the app's methods see. The number of trees is chosen by the pooled validation samples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproto_app.data.windows import ClientWindows
from fedproto_app.maths.client_errors import worst_tenth
from fedproto_app.settings import Settings, settings_from
from fedproto_app.tasks.forecasting.clients import load_shard

MOST_TREES, PATIENCE = 2000, 50
PARAMETERS = {"learning_rate": 0.05, "num_leaves": 31, "verbosity": -1, "num_threads": 1}


def is_there() -> bool:
    """Return whether the extra is installed."""
    return find_spec("lightgbm") is not None


def errors(run_settings: Mapping[str, object], cache_file: Path) -> dict[str, float]:
    """Return the figures of the row, as `summary.json` names them, for the data of a run with
    these settings. cache_file: keeps the figures, so that they are computed once."""
    if not cache_file.exists():
        cache_file.write_text(
            json.dumps(_errors(settings_from(run_settings))) + "\n", encoding="utf-8"
        )
    figures: dict[str, float] = json.loads(cache_file.read_text(encoding="utf-8"))
    return figures


def _errors(settings: Settings) -> dict[str, float]:
    import lightgbm

    clients = list(load_shard(settings, 0, 1).clients.values())
    assert settings.data.horizon == 1
    parts: dict[str, list[tuple[NDArray[np.float32], NDArray[np.float32]]]] = {}
    for client in clients:
        assert isinstance(client, ClientWindows)
        for part, rows in (("train", client.batches.ravel()), ("validation", client.validation)):
            present = client.present[rows, 0]
            parts.setdefault(part, []).append(
                (client.inputs[rows][present], client.targets[rows, 0][present])
            )
    pooled = {
        part: tuple(map(np.concatenate, zip(*pieces, strict=True)))
        for part, pieces in parts.items()
    }
    train, validation = (
        lightgbm.Dataset(inputs, label=targets) for inputs, targets in pooled.values()
    )
    trees = lightgbm.train(
        PARAMETERS,
        train,
        num_boost_round=MOST_TREES,
        valid_sets=[validation],
        callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
    )
    mse, mase = [], []
    for client in clients:
        assert isinstance(client, ClientWindows)
        present = client.present[client.test, 0]
        forecasts = np.asarray(trees.predict(client.inputs[client.test]))
        error = (forecasts - client.targets[client.test, 0].astype(np.float64))[present]
        mse.append(float((error**2).mean()))
        if (divisor := client.scale.seasonal_difference) > 0:
            mase.append(client.scale.original_size(float(np.abs(error).mean())) / divisor)
    squared_errors = np.array(mse)
    return {
        "mse": float(squared_errors.mean()),
        "mse_median": float(np.median(squared_errors)),
        "mse_worst_tenth": worst_tenth(squared_errors),
        "mase_median": float(np.median(mase)),
    }
