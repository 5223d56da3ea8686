"""When rounds are evaluated, when they stop, and which model a client keeps."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from fedproto_app.core.metrics import Metric
from fedproto_app.core.wire import array_record
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.runs import read_rounds
from fedproto_app.server.federation import Federation
from fedproto_app.server.listeners import Listener, Patience, reason_to_stop
from fedproto_app.settings import settings_from
from fedproto_app.strategies.fedavg import FedAvgStrategy
from tests.local_grid import LocalGrid, run_locally, small_settings, synthetic_nodes
from tests.reported import fields_of, reported_metrics, with_fields, with_metric

VALIDATION, TEST = Metric("validation-mse"), Metric("mse")
EVALUATED = ("validation_mse", "test_mse", "test_mae", "kept_test_mse", "kept_test_mae")
METHODS = ["solo", "fedavg"]  # models that stay at the clients, and one that is averaged


class Errors:
    """Every evaluation as the nodes report it: (validation error, test error) by client, round.

    Passed to the grid in the place of one that tampers. Given `validation`, it does tamper: that
    is what all clients then report of each round, with test errors that only fall.
    """

    def __init__(self, validation: Sequence[float] = ()) -> None:
        self.of: dict[str, dict[int, tuple[float, float]]] = defaultdict(dict)
        self._validation = validation

    def __call__(self, node_id: int, reply: Message) -> Message:
        server_round = int(reply.metadata.group_id)
        fields = fields_of(reply)
        if TEST not in reported_metrics(fields):
            return reply
        names = fields["names"]
        if self._validation:
            fields = with_metric(
                fields, VALIDATION, [self._validation[server_round - 1]] * len(names)
            )
            fields = with_metric(fields, TEST, [1 / server_round] * len(names))
            with_fields(reply, fields)
        metrics = reported_metrics(fields)
        errors = zip(metrics[VALIDATION], metrics[TEST], strict=True)
        for name, pair in zip(names, errors, strict=True):
            self.of[name][server_round] = pair
        return reply


def run(tmp_path: Path, errors: Errors | None = None, **changes: Any) -> RunFolder:
    settings = small_settings(tmp_path, **changes)
    folder, _ = run_locally(settings, synthetic_nodes(2, tmp_path / "state"), tamper=errors)
    return folder


def summary(folder: RunFolder) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((folder.path / "summary.json").read_text())
    return table


def clients(folder: RunFolder) -> dict[str, dict[str, str]]:
    with (folder.path / "clients.csv").open() as file:
        return {row["client"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize(
    ("allowed", "errors", "stops"),
    [
        (1, [3, 2, 1, 0.5], None),
        (1, [3, 2, 2], 3),  # as good is no better
        (2, [3, 4, 2, 2.5, 1.9, 2, 1.9], 7),  # a better one starts the count afresh
        (2, [3, math.nan, None], 3),
        (3, [1, 2, 2, 0.9, 2, 2], None),
        (0, [1, 2, 3, 4, 5], None),  # 0 = never
    ],
)
def test_patience_by_hand(allowed: int, errors: list[float | None], stops: int | None) -> None:
    patience = Patience(settings_from({"patience": allowed}))
    answers = []
    for error in errors:
        patience.take(error)
        answers.append(patience.stops(1) == "patience")
    assert answers == [number == stops for number in range(1, len(errors) + 1)]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_stops_when_the_validation_error_no_longer_falls(tmp_path: Path, method: str) -> None:
    """However much the test error still falls."""
    errors = Errors(validation=[3.0, 4.0, 2.0, 2.5, 2.0, 1.0, 0.5])
    folder = run(tmp_path, errors, method=method, rounds=7, patience=2)
    assert summary(folder)["stopped"] == "patience"
    assert summary(folder)["rounds"] == 5
    lines = read_rounds(folder.path)
    assert [line["validation_mse"] for line in lines] == [3.0, 4.0, 2.0, 2.5, 2.0]
    assert [line["test_mse"] for line in lines] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert len(clients(folder)) == 8


def test_patience_counts_evaluations_not_rounds(tmp_path: Path) -> None:
    errors = Errors(validation=[9, 3, 9, 4, 9, 5, 9, 2, 9])
    changes = {"method": "solo", "rounds": 9, "patience": 2, "evaluate-every": 2}
    folder = run(tmp_path, errors, **changes)
    assert (summary(folder)["stopped"], summary(folder)["rounds"]) == ("patience", 6)


def test_without_patience_all_rounds_are_run(tmp_path: Path) -> None:
    folder = run(tmp_path, Errors(validation=[1, 2, 3, 4]), method="solo", rounds=4)
    assert (summary(folder)["stopped"], summary(folder)["rounds"]) == ("rounds", 4)


@pytest.mark.parametrize("method", [*METHODS, "fuels"])
@pytest.mark.parametrize(("evaluate_every", "evaluated"), [(2, [2, 4, 5]), (7, [5])])
def test_only_every_so_many_rounds_are_evaluated_and_the_last(
    tmp_path: Path, method: str, evaluate_every: int, evaluated: list[int]
) -> None:
    errors = Errors()
    folder = run(tmp_path, errors, method=method, rounds=5, **{"evaluate-every": evaluate_every})
    assert all(list(rounds) == evaluated for rounds in errors.of.values())
    for line in read_rounds(folder.path):
        assert line["loss"]["total"] > 0
        numbers = [line[name] for name in EVALUATED]
        if line["round"] in evaluated:
            assert all(number > 0 for number in numbers)
        else:
            assert numbers == [None] * len(EVALUATED)


RESTLESS = {"rounds": 6, "optimizer.learning-rate": 0.05}  # errors that go up and down


@pytest.mark.parametrize("method", METHODS)
def test_the_kept_model_is_the_one_with_the_least_validation_error(
    tmp_path: Path, method: str
) -> None:
    errors = Errors()
    rows = clients(run(tmp_path, errors, method=method, **RESTLESS))
    assert len(rows) == 8
    best = {n: min(rounds, key=lambda r: rounds[r][0]) for n, rounds in errors.of.items()}
    least_test = {n: min(rounds, key=lambda r: rounds[r][1]) for n, rounds in errors.of.items()}
    for name, row in rows.items():
        validation, test = errors.of[name][best[name]]
        assert int(row["kept_round"]) == best[name]
        assert float(row["validation_mse"]) == validation
        assert float(row["mse"]) == test
        assert float(row["last_mse"]) == errors.of[name][RESTLESS["rounds"]][1]
    # Else this run could not tell keeping from not keeping, nor validation from test error.
    assert set(best.values()) != {RESTLESS["rounds"]}
    assert best != least_test


@pytest.mark.parametrize("method", METHODS)
def test_keep_last_keeps_the_last(tmp_path: Path, method: str) -> None:
    errors = Errors()
    rows = clients(run(tmp_path, errors, method=method, keep="last", **RESTLESS))
    for name, row in rows.items():
        assert int(row["kept_round"]) == RESTLESS["rounds"]
        assert row["mse"] == row["last_mse"]
        assert float(row["mse"]) == errors.of[name][RESTLESS["rounds"]][1]


def test_what_is_kept_does_not_change_the_training(tmp_path: Path) -> None:
    folders = [
        run(tmp_path, method="solo", keep=keep, **RESTLESS, **{"output.name": keep})
        for keep in ("best-validation", "last")
    ]
    best, last = ([line["test_mse"] for line in read_rounds(f.path)] for f in folders)
    assert best == last


def test_where_both_would_stop_a_run_patience_is_the_reason() -> None:
    """Else who raised the limit of ε would see the run stop again at once."""

    class Spent(Listener):
        def stops(self, next_round: int) -> str:
            return "privacy"

    patience = Patience(settings_from({"patience": 1}))
    assert reason_to_stop([Spent(), patience], 2) == "privacy"
    patience.take(None)
    assert reason_to_stop([Spent(), patience], 2) == "patience"


def test_a_round_is_evaluated_as_it_looks_after_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ε, and a share of the clients, it may turn out that another round can follow."""
    settings = small_settings(tmp_path, method="fedavg")
    grid = LocalGrid(settings, synthetic_nodes(1, tmp_path / "state"))
    federation = Federation(settings, "run", "token")
    federation.members.await_nodes(grid)
    strategy = FedAvgStrategy(settings, settings.method_settings, federation)
    model = array_record(strategy.initial_arrays())
    monkeypatch.setattr(federation.selection, "evaluates", lambda number: True)
    strategy.configure_train(1, model, ConfigRecord(), grid)
    monkeypatch.setattr(federation.selection, "evaluates", lambda number: False)
    assert strategy.configure_evaluate(1, model, ConfigRecord(), grid) == []
