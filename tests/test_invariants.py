"""Design rule 1: same seed, same numbers, whatever the engine. Each invariant is a whole run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.methods import methods_of
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.settings import TASK_NAMES
from tests.local_grid import (
    digits_settings,
    regression_settings,
    run_locally,
    sequence_settings,
    small_settings,
    synthetic_nodes,
)

# Cohorts and shards change the order of float32 sums; three rounds of training amplify that.
TOLERANCE = 2e-4


def results(folder: RunFolder) -> dict[str, dict[str, float]]:
    """Every number of clients.csv, by client, and the mean losses of every round."""
    with (folder.path / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    skip = ("client", "node", "group")
    clients = {
        row["client"]: {k: float(v) for k, v in row.items() if k not in skip and v} for row in rows
    }
    return {**clients, **{f"round {line['round']}": line["loss"] for line in lines(folder)}}


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]


def assert_same(first: RunFolder, second: RunFolder, tolerance: float) -> None:
    ours, theirs = results(first), results(second)
    assert list(ours) == list(theirs)
    for client, numbers in ours.items():
        for name, value in numbers.items():
            assert value == pytest.approx(theirs[client][name], rel=tolerance), (client, name)


def run(
    tmp_path: Path, label: str, nodes: int, task: str = "forecasting", **changes: Any
) -> RunFolder:
    make, source = {
        "forecasting": (small_settings, "synthetic-traffic"),
        "classification": (digits_settings, "digits"),
        "sequence-classification": (sequence_settings, "synthetic-air-writing"),
        "sequence-regression": (regression_settings, "synthetic-ev"),
    }[task]
    settings = make(tmp_path, **{"output.name": label, **changes})
    folder, _ = run_locally(settings, synthetic_nodes(nodes, tmp_path / "state", source))
    return folder


ALL = [(task, method) for task in TASK_NAMES for method in methods_of(task)]


@pytest.mark.parametrize(("task", "method"), ALL)
def test_a_cohort_equals_its_clients_one_by_one(tmp_path: Path, task: str, method: str) -> None:
    together = run(tmp_path, "together", 1, task, method=method)
    alone = run(tmp_path, "alone", 1, task, method=method, **{"cohort-size": 1})
    assert_same(together, alone, TOLERANCE)


@pytest.mark.parametrize(("task", "method"), ALL)
def test_one_node_with_8_clients_equals_8_nodes_with_one(
    tmp_path: Path, task: str, method: str
) -> None:
    one, eight = (
        run(tmp_path, label, nodes, task, method=method) for label, nodes in (("one", 1), ("8", 8))
    )
    assert_same(one, eight, TOLERANCE)


@pytest.mark.parametrize(("task", "method"), ALL)
def test_two_runs_with_one_seed_are_identical_bit_for_bit(
    tmp_path: Path, task: str, method: str
) -> None:
    changes = {"method": method, "participation": 0.6}
    first, second = (run(tmp_path, label, 2, task, **changes) for label in ("run-1", "run-2"))
    assert (first.path / "clients.csv").read_bytes() == (second.path / "clients.csv").read_bytes()

    def numbers(folder: RunFolder) -> list[dict[str, Any]]:
        timed = ("seconds", "node_seconds")
        return [{k: v for k, v in line.items() if k not in timed} for line in lines(folder)]

    assert numbers(first) == numbers(second)


def test_another_seed_gives_other_numbers(tmp_path: Path) -> None:
    first, second = run(tmp_path, "first", 1), run(tmp_path, "second", 1, seed=1)
    assert results(first) != results(second)


def test_clients_of_unequal_length_train_as_they_would_alone(tmp_path: Path) -> None:
    """Padding changes nothing: a CSV whose columns end at different times."""
    data = tmp_path / "unequal.csv"
    hours = np.arange(24 * 20)
    columns = {f"c{i}": np.sin(hours * np.pi / 12 + i) + i for i in range(4)}
    for i, values in enumerate(columns.values()):
        values[len(values) - 30 * i :] = np.nan
    rows = [
        ",".join("" if np.isnan(v) else f"{v:.6f}" for v in row)
        for row in zip(*columns.values(), strict=True)
    ]
    data.write_text("\n".join([",".join(columns), *rows]) + "\n")

    def train(label: str, cohort_size: int) -> RunFolder:
        changes = {"output.name": label, "cohort-size": cohort_size}
        node = {
            "data-source": "wide-csv",
            "data-path": str(data),
            "state-dir": str(tmp_path / "state"),
        }
        return run_locally(small_settings(tmp_path, **changes), [node])[0]

    together, alone = train("together", 4), train("alone", 1)
    assert len({numbers.get("samples") for numbers in results(together).values()} - {None}) > 1
    assert_same(together, alone, TOLERANCE)
