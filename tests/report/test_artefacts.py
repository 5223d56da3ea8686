"""The files of a run as the server writes them, for both tasks."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.clients import ClientResult
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.report.artefacts import RunFolder, round_line, settings_digest
from fedproto_app.server.round_log import RoundLog
from fedproto_app.settings import Settings, settings_from
from tests.report.made_federation import LONG_TAIL, MadeFederation, key
from tests.report.made_runs import (
    CLASS_ROWS,
    CLASSIFICATION_COLUMNS,
    CLIENT_COLUMNS,
    PARTITION_ROWS,
    classification_record,
    make_classification_run,
    make_run,
    round_record,
)

ERRORS = {
    Metric("validation-mse"): 0.5,
    Metric("mse"): 0.25,
    Metric("mae"): 0.5,
    Metric("rmse-units"): 2.0,
    Metric("mae-units"): 1.0,
    Metric("seasonal-difference"): 2.0,
    Metric("mean-size"): 4.0,
}
KEPT_ERRORS = {replace(metric, model=Model.KEPT): value for metric, value in ERRORS.items()}
FORECASTS: Any = MadeFederation({"a": ERRORS | KEPT_ERRORS})
IMAGES: Any = LONG_TAIL
COSTS = {"parameters_up": 1000, "parameters_down": 1, "bytes_up": 2, "bytes_down": 3}
TASKS = [
    ("forecasting", FORECASTS, round_record, make_run),
    ("classification", IMAGES, classification_record, make_classification_run),
]


def settings(tmp_path: Path, task: str) -> Settings:
    config = {
        "task": task,
        "method": "fedavg",
        "keep": "last",
        "output.dir": str(tmp_path / "runs"),
    }
    return settings_from(config | {"output.name": "test"})


def rows(folder: RunFolder, name: str) -> list[list[str]]:
    with (folder.path / name).open(newline="") as file:
        return list(csv.reader(file))


def a_line(federation: Any, task: str) -> dict[str, Any]:
    log = RoundLog(losses={key("a"): {"total": 1.0}})
    return round_line(log, federation.history.results, {"total": 1.0}, evaluated=True, task=task)


@pytest.mark.parametrize(("task", "federation", "record", "make"), TASKS)
def test_made_runs_have_the_fields_that_runs_have(
    tmp_path: Path, task: str, federation: Any, record: Any, make: Any
) -> None:
    """So that tests of tables and pictures read what the server really writes."""
    folder = RunFolder(settings(tmp_path, task))
    folder.append_round(1, a_line(federation, task))
    folder.write_clients(federation)
    folder.write_summary(federation, COSTS | {"trainings": 3}, 1, "rounds")
    written = json.loads((folder.path / "rounds.jsonl").read_text())
    later = {"node_seconds", "figures", "parameters_up_once"}
    assert set(written) == {*record(1), *later}
    summary = json.loads((folder.path / "summary.json").read_text())
    example = json.loads((make(tmp_path / "made") / "summary.json").read_text())
    added = {"task", "parameters_up", "parameters_down", "privacy"}  # made runs may lack them
    assert set(summary) | added == set(example) | added
    assert summary["parameters_up_per_client_round"] == 333
    assert summary["parameters_up_per_client"] == 1000 / len(federation.history.results)
    assert summary["task"] == task


@pytest.mark.parametrize(
    ("federation", "task", "name", "columns"),
    [
        (FORECASTS, "forecasting", "clients.csv", CLIENT_COLUMNS),
        (IMAGES, "classification", "clients.csv", CLASSIFICATION_COLUMNS),
        (IMAGES, "classification", "classes.csv", CLASS_ROWS[0]),
    ],
)
def test_tables_have_the_columns_that_are_promised(
    tmp_path: Path, federation: Any, task: str, name: str, columns: str
) -> None:
    folder = RunFolder(settings(tmp_path, task))
    folder.write_clients(federation)
    head, *body = rows(folder, name)
    assert ",".join(head) == columns
    assert {len(row) for row in body} == {len(head)}


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ({"trainings": 0}, {"parameters_up_per_client_round": 0}),
        (
            {"parameters_up_once": 400, "trainings": 3},  # what is sent once is no part of a round
            {"parameters_up_per_client_round": 200, "parameters_up_once": 400},
        ),
        ({"trainings": 8}, {"parameters_up_per_client": 250}),  # b, c and d have no errors
    ],
)
def test_parameters_sent_are_shared_by_all_who_trained(
    tmp_path: Path, costs: dict[str, int], expected: dict[str, int]
) -> None:
    folder = RunFolder(settings(tmp_path, "forecasting"))
    folder.append_round(1, a_line(FORECASTS, "forecasting"))
    federation: Any = MadeFederation({"a": ERRORS | KEPT_ERRORS})
    federation.history.trained |= {key("b"), key("c"), key("d")}
    folder.write_summary(federation, COSTS | costs, 1, "rounds")
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary | expected | {"parameters_up": 1000} == summary
    assert "trainings" not in summary


def test_runs_that_differ_in_seed_and_in_where_their_encoder_lies_have_one_digest(
    tmp_path: Path,
) -> None:
    def digest(**changes: Any) -> str:
        config = {"task": "sequence-classification", "method": "fed-react", **changes}
        return settings_digest(settings_from(config))

    first = digest(**{"encoder.path": "/runs/s0", "seed": 0})
    assert first == digest(**{"encoder.path": "/runs/s1", "seed": 1, "output.name": "x"})
    assert first != digest()
    assert first != digest(**{"encoder.path": "/runs/s0", "fed-react.clusters": 2})


def test_the_partition_lists_who_trains_on_what(tmp_path: Path) -> None:
    folder = RunFolder(settings(tmp_path, "classification"))
    folder.write_partition(IMAGES)
    head, *body = rows(folder, "partition.csv")
    assert ",".join(head) == PARTITION_ROWS[0]
    assert [",".join(row) for row in body] == [
        "a,1,ant,5",
        "a,1,bee,70",
        "a,1,dog,1",
        "a,2,dog,2",
        "b,1,ant,20",
        "b,1,cat,1",
    ]


def test_an_unknown_partition_leaves_no_file(tmp_path: Path) -> None:
    folder = RunFolder(settings(tmp_path, "forecasting"))
    folder.write_partition(FORECASTS)
    assert not (folder.path / "partition.csv").exists()


def test_a_round_counts_every_client_that_trained_alike() -> None:
    log = RoundLog(losses={key("a"): {"total": 1.0, "prediction": 2.0}, key("b"): {"total": 3.0}})
    results = {key("a"): ClientResult({"accuracy": 0.5})}
    line = round_line(log, results, {"train": 0.123456}, evaluated=False, task="classification")
    assert line["loss"] == {"prediction": 1.0, "total": 2.0}
    assert line["clients"] == 2
    assert line["seconds"] == {"train": 0.1235}


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("-cmd|x", "'-cmd|x"),
        ("-1", "-1"),
        ("+49", "+49"),
    ],
)
def test_no_name_runs_in_a_spreadsheet(tmp_path: Path, name: str, cell: str) -> None:
    federation: Any = MadeFederation({name: ERRORS | KEPT_ERRORS})
    with RunFolder(settings(tmp_path, "forecasting")) as folder:
        folder.write_clients(federation)
    with (folder.path / "clients.csv").open() as file:
        assert [row["client"] for row in csv.DictReader(file)] == [cell]
