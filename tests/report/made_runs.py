"""Run folders as the server app writes them, with figures chosen by the test."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import tomli_w

from fedproto_app.report.runs import Group, group_runs, read_run

CLIENT_COLUMNS = (
    "client,node,group,samples,missing_share,kept_round,mse,mae,rmse_units,mae_units,"
    "validation_mse,last_mse,last_mae,mase,wape,coverage_80,coverage_95,width_80,width_95"
)


COMMON = {  # fields of every summary
    "status": "completed",
    "rounds": 3,
    "seed": 0,
    "kernel": "torch",
    "stopped": "rounds",
    "converged": True,
    "privacy": {"mechanism": "none"},
    "versions": {},
    "settings_digest": "digest",
}


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
        "late": 0,
        "shortened": 0,
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
    validation: Sequence[float] = (),
    by_round: Sequence[float] = (),
    **summary: Any,
) -> Path:
    """Write a finished run. errors: the clients' test MSEs, None for a client without.

    validation: the clients' validation MSEs, if not all are 0.3. by_round: the three rounds' mean
    validation MSEs, by default 1, 1/2, and the mean of `validation` or 1/3.
    """
    folder.mkdir(parents=True)
    chosen_by = validation or [0.3] * len(errors)
    rows = [
        f"c{i},n0,office,100,0.0,3,{mse},{mse},{mse * 10},{mse * 9},{chosen_by[i]},{mse * 2},0.4,"
        f"{mse * 3},{mse / 2},,,,"
        if mse is not None
        else f"c{i},n0,office,100,1.0,0,,,,,,,,,,,,,"
        for i, mse in enumerate(errors)
    ]
    (folder / "clients.csv").write_text("\n".join([CLIENT_COLUMNS, *rows]) + "\n")
    means = by_round or (1.0, 1 / 2, fmean(validation or [1 / 3]))
    records = [round_record(number, validation_mse=mean) for number, mean in enumerate(means, 1)]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "settings.toml").write_text(tomli_w.dumps(settings or {"seed": 0}))
    figures = {
        **COMMON,
        "method": "fuels",
        "title": summary.get("method", "fuels"),
        "dataset": "toy",
        "clients": len(errors),
        "keep": "best-validation",
        "mse": 0.375,
        "mae": 0.5,
        "last_mse": 0.75,
        "last_mae": 0.625,
        "rmse_units": 3.75,
        "mae_units": 3.375,
        "mse_median": 0.3125,
        "mse_worst_tenth": 0.5,
        "mae_median": 0.4375,
        "mase": 1.125,
        "mase_median": 0.875,
        "wape": 0.1875,
        "wape_median": 0.125,
        "coverage_80": 0.8125,
        "coverage_95": 0.9375,
        "width_80": 1.25,
        "width_95": 2.5,
        "parameters_up_per_client_round": 768,
        "parameters_up_per_client": 2304,
        "bytes_up": 1200,
        "bytes_down": 2_400_000,
        "seconds": 12.5,
    }
    (folder / "summary.json").write_text(json.dumps(figures | summary))
    return folder


def shared(folder: Path, errors: Sequence[float | None], **more: Any) -> Path:
    """Write a run whose clients sent and received parameters."""
    return make_run(folder, errors, **{"parameters_up": 600, "parameters_down": 600} | more)


def alone(folder: Path, errors: Sequence[float | None], **more: Any) -> Path:
    """Write a run that shared nothing."""
    no_traffic = {"parameters_up": 0, "parameters_down": 0, "method": "solo"}
    return make_run(folder, errors, **no_traffic | more)


def add_blocks(
    folder: Path, parts: Sequence[Sequence[float]], steps: int = 24, first: int = 100
) -> None:
    """Write blocks.csv: the parts of each client's MAE, on days of an hourly clock."""
    columns = ["client", "node", "step_seconds", "block_steps", "first_block"]
    columns += [f"mae_{number}" for number in range(1, len(parts[0]) + 1)]
    rows = [
        f"c{i},n0,3600,{steps},{first},{','.join(map(str, of_client))}"
        for i, of_client in enumerate(parts)
    ]
    (folder / "blocks.csv").write_text("\n".join([",".join(columns), *rows]) + "\n")


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


def grouped(*folders: Path) -> list[Group]:
    """Read these runs and group them over their seeds."""
    return group_runs(map(read_run, folders))[0]


CLASSIFICATION_COLUMNS = (
    "client,node,group,samples,kept_round,accuracy_global,accuracy_local,accuracy_kept,"
    "validation_error,kept_validation_error,accuracy_by_local_prototypes,"
    "accuracy_by_global_prototypes,accuracy_by_head"
)
CLASS_ROWS = (
    "class,train_samples,third,test_samples,accuracy_global,accuracy_local",
    "bee,9,medium,6,0.5,0.25",
    "ant,90,many,12,0.75,1.0",
    "cat,3,few,0,,",
)
PARTITION_ROWS = (
    "client,stage,class,train_samples",
    "c0,1,ant,60",
    "c0,2,cat,3",
    "c1,1,ant,30",
    "c1,1,bee,9",
)


def classification_record(number: int, **changes: Any) -> dict[str, Any]:
    """One line of rounds.jsonl of a run with two stages, the second from round 2 on."""
    second = None if number == 1 else 0.1 * number
    figures = {
        "validation_error": 0.5 / number,
        "validation_error_local": 0.5 / number,
        "accuracy_global": 0.2 * number,
        "accuracy_local": 0.25 * number,
        "accuracy_kept": 0.2 * number,
        "accuracy_selected": 0.3 * number,
        "by_inference": {},
        "stages_global": [0.8 / number, second],
        "stages_local": [0.9 / number, second],
    }
    line = round_record(number)
    common = {
        name: value for name, value in line.items() if "_mse" not in name and "_mae" not in name
    }
    return common | figures | changes


def make_classification_run(
    folder: Path,
    accuracies: Sequence[float | None] = (0.25, 0.5),
    averages: bool = True,
    **summary: Any,
) -> Path:
    """Write a finished run of a classifier. accuracies: the clients' A_loc.

    averages: whether there is a model after averaging, a tenth worse than the clients' own.
    """
    folder.mkdir(parents=True)
    rows = []
    for i, local in enumerate(accuracies):
        shared = local - 0.1 if averages and local is not None else ""
        local_text = "" if local is None else local
        rows.append(f"c{i},n0,,100,3,{shared},{local_text},{local_text},0.5,0.4,,,")
    (folder / "clients.csv").write_text("\n".join([CLASSIFICATION_COLUMNS, *rows]) + "\n")
    changes = {} if averages else {"accuracy_global": None, "stages_global": None}
    records = [json.dumps(classification_record(n, **changes)) + "\n" for n in (1, 2, 3)]
    (folder / "rounds.jsonl").write_text("".join(records))
    (folder / "settings.toml").write_text(tomli_w.dumps({"task": "classification"}))
    (folder / "classes.csv").write_text("\n".join(CLASS_ROWS) + "\n")
    (folder / "partition.csv").write_text("\n".join(PARTITION_ROWS) + "\n")
    figures = {
        **COMMON,
        "task": "classification",
        "method": "fedavg",
        "title": summary.get("method", "fedavg"),
        "dataset": "shapes",
        "clients": len(accuracies),
        "keep": "last",
        "accuracy_global": 0.275,
        "accuracy_local": 0.375,
        "accuracy_kept": 0.275,
        "accuracy_selected": 0.5,
        "accuracy_selected_final": 0.625,
        "validation_error": 0.5,
        "validation_error_local": 0.5,
        "by_inference": {},
        "balanced_global": 0.4,
        "balanced_local": 0.625,
        "many_global": 0.75,
        "medium_global": 0.5,
        "few_global": None,
        "many_local": 1.0,
        "medium_local": 0.25,
        "few_local": None,
        "forgetting_global": 0.125,
        "forgetting_local": 0.25,
        "stages_global": [0.25, 0.5],
        "stages_local": [0.375, 0.5],
        "parameters_up_per_client_round": 512,
        "parameters_up_per_client": 1536,
        "parameters_up": 3072,
        "parameters_down": 6144,
        "bytes_up": 12_288,
        "bytes_down": 24_576,
        "seconds": 20.0,
    }
    if not averages:
        figures |= {name: None for name in figures if name.endswith("_global")}
    (folder / "summary.json").write_text(json.dumps(figures | summary))
    return folder
