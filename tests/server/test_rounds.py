"""When rounds are evaluated, when they stop, and which model a client keeps."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from fedproto_app.core.clients import ClientKey, ClientResult
from fedproto_app.core.metrics import Metric
from fedproto_app.core.wire import array_record
from fedproto_app.report.runs import read_clients, read_rounds, read_run
from fedproto_app.server.federation import Federation
from fedproto_app.server.listeners import Listener, Patience, RoundEnd, reason_to_stop
from fedproto_app.server.round_log import History
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.flower_strategy import FlowerStrategy
from fedproto_app.strategies.fedavg import FedAvgStrategy
from tests.helpers.local_grid import LocalGrid, run_small, small_settings, synthetic_nodes
from tests.helpers.reported import fields_of, reported_metrics, with_fields, with_metric

VALIDATION, TEST = Metric("validation-mse"), Metric("mse")
EVALUATED = ("validation_mse", "test_mse", "test_mae", "kept_test_mse", "kept_test_mae")
METHODS = ["solo", "fedavg"]  # models that stay at the clients, and one that is averaged


class Errors:
    """Every evaluation as the nodes report it: (validation error, test error) by client, round.

    A tamper of the grid. Given `validation`, all clients report that of each round, with test
    errors that only fall.
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
            error = self._validation[server_round - 1]
            fields = with_metric(fields, VALIDATION, [error] * len(names))
            fields = with_metric(fields, TEST, [1 / server_round] * len(names))
            with_fields(reply, fields)
        metrics = reported_metrics(fields)
        errors = zip(metrics[VALIDATION], metrics[TEST], strict=True)
        for name, pair in zip(names, errors, strict=True):
            self.of[name][server_round] = pair
        return reply


# --- when a run stops -----------------------------------------------------------------------------


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


def round_end(errors: Sequence[float], *, evaluated: bool = True) -> RoundEnd:
    """Return the end of a round after which the clients have these validation errors."""
    history = History()
    history.results = {
        ClientKey(f"c{number}", "n"): ClientResult({VALIDATION: error})
        for number, error in enumerate(errors)
    }
    return RoundEnd(1, {}, array_record({}), history, evaluated)


def test_patience_counts_evaluations_not_rounds() -> None:
    patience = Patience(settings_from({"patience": 2}))
    for error, evaluated, stops in ((3, True, ""), (4, True, ""), (5, False, ""), (2, True, "")):
        patience.round_ended(round_end([error], evaluated=evaluated))
        assert patience.stops(1) == stops
    for error, stops in ((2, ""), (2, "patience")):
        patience.round_ended(round_end([error]))
        assert patience.stops(1) == stops


def test_one_client_ends_no_run() -> None:
    """Beside 1e30 every other error vanishes in a mean."""
    patience = Patience(settings_from({"patience": 2}))
    for error in (3.0, 2.0, 1.0):
        patience.round_ended(round_end([1e30, error, error, error]))
    assert patience.stops(1) == ""


def test_where_both_would_stop_a_run_patience_is_the_reason() -> None:
    """Else who raised the limit of ε would see the run stop again at once."""

    class Spent(Listener):
        def stops(self, next_round: int) -> str:
            return "privacy"

    patience = Patience(settings_from({"patience": 1}))
    assert reason_to_stop([Spent(), patience], 2) == "privacy"
    patience.take(None)
    assert reason_to_stop([Spent(), patience], 2) == "patience"


@pytest.mark.parametrize("method", METHODS)
def test_a_run_stops_when_the_validation_error_no_longer_falls(tmp_path: Path, method: str) -> None:
    """However much the test error still falls."""
    errors = Errors(validation=[3.0, 4.0, 2.0, 2.5, 2.0, 1.0, 0.5])
    folder, _ = run_small(tmp_path, tamper=errors, method=method, rounds=7, patience=2)
    summary = read_run(folder.path).summary
    assert (summary["stopped"], summary["rounds"]) == ("patience", 5)
    lines = read_rounds(folder.path)
    assert [line["validation_mse"] for line in lines] == [3.0, 4.0, 2.0, 2.5, 2.0]
    assert [line["test_mse"] for line in lines] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    assert len(read_clients(folder.path).clients) == 8


# --- what is evaluated and kept -------------------------------------------------------------------


@pytest.mark.parametrize("method", [*METHODS, "fuels"])
@pytest.mark.parametrize(("evaluate_every", "evaluated"), [(2, [2, 4, 5]), (7, [5])])
def test_only_every_so_many_rounds_are_evaluated_and_the_last(
    tmp_path: Path, method: str, evaluate_every: int, evaluated: list[int]
) -> None:
    errors = Errors()
    changes = {"method": method, "rounds": 5, "evaluate-every": evaluate_every}
    folder, _ = run_small(tmp_path, tamper=errors, **changes)
    assert all(list(rounds) == evaluated for rounds in errors.of.values())
    for line in read_rounds(folder.path):
        assert line["loss"]["total"] > 0
        numbers = [line[name] for name in EVALUATED]
        if line["round"] in evaluated:
            assert all(number > 0 for number in numbers)
        else:
            assert numbers == [None] * len(EVALUATED)


@pytest.mark.parametrize("method", METHODS)
def test_the_kept_model_has_the_least_validation_error_or_is_the_last(
    tmp_path: Path, method: str
) -> None:
    rounds, errors, test_errors = 6, Errors(), []
    restless = {"method": method, "rounds": rounds, "optimizer.learning-rate": 0.05}  # up and down
    for keep in ("best-validation", "last"):
        changes: dict[str, Any] = {**restless, "keep": keep, "output.name": keep}
        folder, _ = run_small(tmp_path, tamper=errors, **changes)
        test_errors.append([line["test_mse"] for line in read_rounds(folder.path)])
        table = read_clients(folder.path)
        assert len(table.clients) == 8
        by_validation = {n: min(of, key=lambda r: of[r][0]) for n, of in errors.of.items()}
        kept = dict.fromkeys(table.clients, rounds) if keep == "last" else by_validation
        for row, name in enumerate(table.clients):
            validation, test = errors.of[name][kept[name]]
            assert table["kept_round"][row] == kept[name]
            assert table["validation_mse"][row] == validation
            assert table["mse"][row] == test
            assert table["last_mse"][row] == errors.of[name][rounds][1]
    assert test_errors[0] == test_errors[1]  # what is kept does not change the training
    # Else this run could not tell keeping from not keeping, nor validation from test error.
    by_test = {n: min(of, key=lambda r: of[r][1]) for n, of in errors.of.items()}
    assert set(by_validation.values()) != {rounds}
    assert by_validation != by_test


def test_a_round_is_evaluated_as_it_looks_after_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ε, and a share of the clients, it may turn out that another round can follow."""
    settings = small_settings(tmp_path, method="fedavg")
    grid = LocalGrid(settings, synthetic_nodes(1, tmp_path / "state"))
    federation = Federation(settings, "run", "token")
    federation.members.await_nodes(grid)
    strategy = FedAvgStrategy(settings, federation)
    model = array_record(strategy.initial_arrays())
    monkeypatch.setattr(federation.selection, "evaluates", lambda number: True)
    rounds = FlowerStrategy(strategy)
    rounds.configure_train(1, model, ConfigRecord(), grid)
    monkeypatch.setattr(federation.selection, "evaluates", lambda number: False)
    assert rounds.configure_evaluate(1, model, ConfigRecord(), grid) == []
