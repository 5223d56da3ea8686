"""What somebody who may see all clients' data could do: boosted trees on their pooled samples.

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
    """Whether the extra is installed."""
    return find_spec("lightgbm") is not None


def errors(run_settings: Mapping[str, object], kept: Path) -> dict[str, float]:
    """The figures of the row, as `summary.json` calls them, for data as a run with these settings
    saw them; kept: the file that keeps them, so that they are made once."""
    if not kept.exists():
        kept.write_text(json.dumps(_errors(settings_from(run_settings))) + "\n", encoding="utf-8")
    figures: dict[str, float] = json.loads(kept.read_text(encoding="utf-8"))
    return figures


def _errors(settings: Settings) -> dict[str, float]:
    import lightgbm

    clients = list(load_shard(settings, 0, 1).clients.values())
    assert settings.data.horizon == 1
    parts: dict[str, list[tuple[NDArray[np.float32], NDArray[np.float32]]]] = {}
    for one in clients:
        assert isinstance(one, ClientWindows)
        for part, rows in (("train", one.batches.ravel()), ("validation", one.validation)):
            there = one.present[rows, 0]
            parts.setdefault(part, []).append(
                (one.inputs[rows][there], one.targets[rows, 0][there])
            )
    pooled = {part: tuple(map(np.concatenate, zip(*of, strict=True))) for part, of in parts.items()}
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
    for one in clients:
        assert isinstance(one, ClientWindows)
        there = one.present[one.test, 0]
        made = np.asarray(trees.predict(one.inputs[one.test]))
        error = (made - one.targets[one.test, 0].astype(np.float64))[there]
        mse.append(float((error**2).mean()))
        if one.seasonal_difference > 0:
            mase.append(float(np.abs(error).mean() * one.std / one.seasonal_difference))
    every = np.array(mse)
    return {
        "mse": float(every.mean()),
        "mse_median": float(np.median(every)),
        "mse_worst_tenth": worst_tenth(every),
        "mase_median": float(np.median(mase)),
    }
