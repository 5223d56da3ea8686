"""The figures of runs on sequences, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.core.tasks import TASKS
from fedproto_app.report.artefacts import round_line
from fedproto_app.report.charts import comparison_of, draw, pictures_of, write_picture
from fedproto_app.report.runs import read_clients, read_rounds, read_run
from fedproto_app.report.sequences.report import settled_round
from fedproto_app.report.table import clients_table, comparison_columns, run_table
from fedproto_app.report.task_report import report_for
from fedproto_app.server.round_log import RoundLog
from fedproto_app.tasks.table import task_class
from tests.report.made_runs import grouped
from tests.report.made_sequences import made_federation, make_sequence_run
from tests.report.test_charts import points

CLASSES, NUMBERS = "sequence-classification", "sequence-regression"
REPORTS = {task: report_for(task) for task in TASKS}


def metrics(**values: tuple[float | None, ...]) -> dict[Metric, float]:
    """Metrics of a client: with the model in use, its local model and the kept one."""
    models = (Model.USED, Model.LOCAL, Model.KEPT)
    return {
        Metric(name.replace("_", "-"), model): value
        for name, of_models in values.items()
        for model, value in zip(models, of_models, strict=True)
        if value is not None
    }


ACCURACIES = {
    "a": metrics(accuracy=(0.5, 0.25, 0.75), validation_error=(0.25, 0.75, 0.125)),
    "b": metrics(accuracy=(1.0, None, 0.25), validation_error=(0.75, None, None)),
}
ERRORS = {
    "a": metrics(rmse=(4.0, None, 2.0), mae=(3.0, None, None), validation_rmse=(5.0, None, None)),
    "b": metrics(rmse=(2.0, None, 1.0), mae=(1.0, None, None), validation_rmse=(7.0, None, None)),
}
for client, error in (("a", 8.0), ("b", 4.0)):
    ERRORS[client][Metric("rmse", shared=True)] = error


def a_line(number: int, accuracy: float | None = None, **figures: Any) -> dict[str, Any]:
    """A line of rounds.jsonl with what the summary reads."""
    return {
        "round": number,
        "accuracy": accuracy,
        "validation_error": None if accuracy is None else 1 - accuracy,
        "rand_index": figures.get("rand_index"),
        "figures": figures,
    }


@pytest.mark.parametrize(
    ("task", "metrics", "expected"),
    [
        (
            CLASSES,
            ACCURACIES,
            {
                "accuracy": 0.75,
                "accuracy_local": 0.25,
                "accuracy_global": None,
                "accuracy_kept": 0.5,
                "validation_error": 0.5,
            },
        ),
        (
            NUMBERS,
            ERRORS,
            {
                "rmse": 3.0,
                "rmse_local": None,
                "rmse_global": 6.0,
                "rmse_kept": 1.5,
                "mae": 2.0,
                "validation_rmse": 6.0,
            },
        ),
    ],
)
def test_a_round_has_the_means_over_the_clients_that_have_a_metric(
    task: str, metrics: Any, expected: dict[str, float | None]
) -> None:
    log = RoundLog(figures={"rand_index": 0.5, "forgetting_factor": 0.25})
    figures = REPORTS[task].round_figures(log, made_federation(metrics, task).history.results, True)
    assert figures == expected | {"rand_index": 0.5}


@pytest.mark.parametrize("task", [CLASSES, NUMBERS])
def test_a_round_of_the_first_phase_has_all_fields_and_no_figures(task: str) -> None:
    line = round_line(
        RoundLog(), made_federation({}, task).history.results, {}, evaluated=False, task=task
    )
    metrics = REPORTS[task].metrics
    fields = [field.name for field in metrics.progress] + [metrics.latest.round.name]
    assert {line[field] for field in fields} == {None}
    assert line["figures"] == {}


@pytest.mark.parametrize("task", [CLASSES, NUMBERS])
def test_every_required_metric_is_reported(task: str) -> None:
    federation = made_federation(
        {"a": dict.fromkeys(task_class(task).required_metrics(None), 0.5)}, task
    )
    figures = REPORTS[task].round_figures(RoundLog(), federation.history.results, True)
    reported = {name for name, value in figures.items() if value is not None}
    required = task_class(task).required_metrics(None)
    assert reported == {metric.name.replace("-", "_") for metric in required}


def test_clients_have_a_row_each_and_unknown_values_are_empty() -> None:
    first, *rows = REPORTS[CLASSES].tables(made_federation(ACCURACIES))["clients.csv"]
    assert ",".join(map(str, first)) == (
        "client,node,group,samples,kept_round,accuracy,accuracy_local,accuracy_kept,"
        "validation_error,kept_validation_error"
    )
    assert rows == [
        ["a", "n", "g", 10, 7, 0.5, 0.25, 0.75, 0.25, 0.125],
        ["b", "n", "g", 10, 7, 1.0, None, 0.25, 0.75, None],
    ]
    first, row, _ = REPORTS[NUMBERS].tables(made_federation(ERRORS, NUMBERS))["clients.csv"]
    assert ",".join(map(str, first)) == (
        "client,node,group,samples,kept_round,rmse,rmse_local,rmse_kept,mae,validation_rmse,"
        "kept_validation_rmse"
    )
    assert row == ["a", "n", "g", 10, 7, 4.0, None, 2.0, 3.0, 5.0, None]


def test_the_summary_tells_the_last_round_and_means_over_the_rounds() -> None:
    rounds = [
        a_line(1),  # of the encoder
        a_line(2),
        a_line(3, 0.25, rand_index=0.5, forgetting_factor=0.0, clusters=3.0),
        a_line(4, rand_index=1.0, forgetting_factor=0.5, clusters=3.0),  # not evaluated
        a_line(5, 0.75),  # nobody answered
        a_line(6, 0.5, rand_index=1.0, forgetting_factor=1.0, clusters=2.0),
    ]
    figures = REPORTS[CLASSES].summary_figures(made_federation(ACCURACIES), rounds)
    assert figures == {
        "accuracy": 0.75,
        "accuracy_local": 0.25,
        "accuracy_global": None,
        "accuracy_kept": 0.5,
        "validation_error": 0.5,
        "accuracy_rounds": 0.5,
        "validation_error_rounds": 0.5,
        "rand_index": 1.0,
        "rand_index_rounds": pytest.approx(2.5 / 3),
        "rand_index_settled": 2,  # round 4 is the second after the encoder's two
        "forgetting_factor_rounds": 0.5,
        "clusters": 2.0,
    }


def test_with_a_given_encoder_the_second_phase_starts_with_round_one() -> None:
    federation = made_federation(ACCURACIES, **{"encoder.path": "encoder.safetensors"})
    figures = REPORTS[CLASSES].summary_figures(federation, [a_line(1, 0.5, rand_index=1.0)])
    assert figures["rand_index_settled"] == 1


def test_a_method_without_clusters_has_none_of_their_figures() -> None:
    figures = REPORTS[CLASSES].summary_figures(made_federation(ACCURACIES), [a_line(1, 0.5)])
    assert {value for name, value in figures.items() if "rand" in name or "cl" in name} == {None}
    assert figures["forgetting_factor_rounds"] is None
    rows = REPORTS[CLASSES].run_rows(figures | {"keep": "last"})
    assert rows == [
        ("test accuracy, kept model (last)", "50.0 %"),
        ("test accuracy, last round", "75.0 %"),
        ("test accuracy, mean of all rounds", "50.0 %"),
        ("test accuracy, client's own head", "25.0 %"),
        ("validation error, last / mean of all rounds", "50.0 / 50.0 %"),
    ]


def test_the_table_of_a_run_describes_the_clusters() -> None:
    rounds = [a_line(3, 0.5, rand_index=0.5, forgetting_factor=0.25, clusters=3.0)]
    figures = REPORTS[CLASSES].summary_figures(made_federation(ACCURACIES), rounds)
    assert REPORTS[CLASSES].run_rows(figures | {"keep": "best-validation"})[-4:] == [
        ("clusters, last round", "3"),
        ("Rand index, last / mean of all rounds", "0.5 / 0.5"),
        ("clusters true since round (encoder's rounds not counted)", "never"),
        ("forgetting factor α, mean of all rounds", "0.25"),
    ]


@given(st.lists(st.sampled_from([None, 0.0, 0.999, 1.0]), max_size=12))
def test_clusters_settle_where_their_rand_index_stays_at_one(values: list[float | None]) -> None:
    starts = [
        number
        for number, value in enumerate(values)
        if value == 1 and all(later in (None, 1) for later in values[number:])
    ]
    assert settled_round(list(enumerate(values))) == (starts[0] if starts else None)


@pytest.mark.parametrize("task", [CLASSES, NUMBERS])
def test_a_finished_run_has_every_field_that_a_person_is_shown(tmp_path: Path, task: str) -> None:
    run = make_sequence_run(tmp_path / "a", task)
    metrics, summary = REPORTS[task].metrics, json.loads((run / "summary.json").read_text())
    line, clients = read_rounds(run)[-1], read_clients(run)
    assert metrics.headline.summary[0].name in summary
    assert metrics.latest.round.name in line
    assert metrics.headline.column.name in clients.numbers
    assert {field.name for field in metrics.progress} <= set(line)
    assert {field.name for field in metrics.clients} <= set(clients.numbers)
    assert {field.name for field in metrics.comparison} <= set(summary)
    assert summary["rand_index_settled"] == 3  # after two shaky rounds
    run_table(read_run(run))
    clients_table(task, clients)


def test_runs_of_both_tasks_can_be_compared(tmp_path: Path) -> None:
    folders = [make_sequence_run(tmp_path / task, task, rounds=3) for task in (CLASSES, NUMBERS)]
    groups = grouped(*folders)
    assert [group.task for group in groups] == [CLASSES, NUMBERS]
    accuracy = json.loads((folders[0] / "summary.json").read_text())["accuracy_kept"]
    assert comparison_columns(groups[:1])[1].texts[0] == f"{100 * accuracy:.1f} ± -"
    write_picture(tmp_path / "comparison.png", comparison_of(groups))
    assert (tmp_path / "comparison.png").exists()


@pytest.mark.parametrize("task", [CLASSES, NUMBERS])
def test_a_run_gets_its_pictures_without_any_state(tmp_path: Path, task: str) -> None:
    files = draw(make_sequence_run(tmp_path / "a", task))
    expected = ["clients.png", "rounds.png", "clusters.png", "similarity.png", "forgetting.png"]
    assert [file.name for file in files] == expected


def test_a_run_that_only_learned_its_encoder_can_be_drawn(tmp_path: Path) -> None:
    run = make_sequence_run(tmp_path / "a")
    lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
    (run / "rounds.jsonl").write_text("".join(lines[:2]))
    for name in ("clients.csv", "clusters.npz", "summary.json"):
        (run / name).unlink()
    assert [file.name for file in draw(run)] == ["rounds.png"]


def test_identical_lines_are_drawn_once_with_both_names(tmp_path: Path) -> None:
    run = make_sequence_run(tmp_path / "a")  # the models in use are the kept ones
    charts = pictures_of(run)
    by_round = points(charts["rounds.png"][0])
    assert list(by_round) == [
        "test, models in use = test, kept models",
        "validation, models in use",
        "test, clients' own heads",
    ]
    record, (test, validation, _) = read_rounds(run)[-1], by_round.values()
    assert test[-1][1] == pytest.approx(record["accuracy"])
    assert validation[-1][1] == pytest.approx(1 - record["validation_error"])
    assert [place for place, _ in test] == [3, 4, 5, 6, 7, 8]
    run = make_sequence_run(tmp_path / "b", NUMBERS)  # an error is drawn as it is
    by_round, last = points(pictures_of(run)["rounds.png"][0]), read_rounds(run)[-1]
    assert by_round["validation, models in use"][-1][1] == last["validation_rmse"]
