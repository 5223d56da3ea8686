"""The choice of a sweep: by validation errors, whatever the test errors say."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedproto_app.experiments.sweep_plan import Plan, Trial
from fedproto_app.experiments.sweep_results import (
    Mean,
    Result,
    choices,
    mean_of,
    ranked,
    result_of,
    results_table,
    sweep_charts,
    through_choice,
    write_results,
)
from tests.report.made_runs import make_run

PLAN = Plan(nodes=2, base={}, grid={"fuels.beta": [10, 30]}, seeds=[0, 1])
TASK = "forecasting"


def result(
    folder: Path,
    number: int,
    runs: Sequence[tuple[Sequence[float | None], Sequence[float]]],
    key: str = "fuels.beta",
) -> Result:
    """A trial with a run for each (test errors, validation errors) of its clients."""
    folders = {
        seed: make_run(folder / f"{number:03}-s{seed}", test, validation=validation)
        for seed, (test, validation) in enumerate(runs)
    }
    return result_of(Trial(number, {key: 10 * number}), TASK, folders, {})


def test_mean_and_standard_error() -> None:
    # Deviations −1, 0, 1: sample variance 1, standard error 1 / √3.
    assert mean_of([1.0, 2.0, 3.0]) == Mean(2.0, pytest.approx(1 / math.sqrt(3)))
    assert mean_of([2.0]) == Mean(2.0, None)


def test_validation_chooses_where_the_test_errors_say_otherwise(tmp_path: Path) -> None:
    better_on_test = result(tmp_path, 1, [([0.1, 0.1], [0.5, 0.7]), ([0.1, 0.1], [0.7, 0.9])])
    better_on_validation = result(tmp_path, 2, [([0.8, 0.6], [0.1, 0.3])] * 2)
    results = [better_on_test, better_on_validation]
    assert choices(results) == [better_on_validation]
    tests = write_results(tmp_path, PLAN, results, choices(results))
    assert tests == {2: Mean(pytest.approx(0.7), pytest.approx(0.0))}
    rows = list(csv.DictReader((tmp_path / "sweep.csv").read_text().splitlines()))
    assert [row["trial"] for row in rows] == ["2", "1"]
    assert [row["chosen"] for row in rows] == ["yes", ""]
    assert rows[1]["test"] == rows[1]["test_se"] == ""
    assert float(rows[1]["validation"]) == pytest.approx(0.7)  # of 0.6 and 0.8
    assert float(rows[1]["validation_se"]) == pytest.approx(0.1)
    records = json.loads((tmp_path / "sweep.json").read_text())["trials"]
    assert [("test" in row, row["chosen"]) for row in records] == [(True, True), (False, False)]
    assert records[1]["validation"]["by_seed"] == {"0": 0.6, "1": pytest.approx(0.8)}
    table = results_table(PLAN, results, tests)
    assert [row[-2:] for row in table.rows] == [["0.2 ± 0", "0.7 ± 0"], ["0.7 ± 0.1", ""]]
    assert table.marked == [0]
    assert table.columns[:3] == ["trial", "beta", "seeds"]


def test_many_rounds_flatter_no_trial(tmp_path: Path) -> None:
    """Clients that each keep their luckiest round do not win over a run that is better in all."""
    runs = {1: ((0.2, 0.2), (0.6, 0.5, 0.4)), 2: ((0.3, 0.3), (0.3,))}
    lucky, steady = (
        result_of(
            Trial(number, {"method": str(number)}),
            TASK,
            {0: make_run(tmp_path / str(number), validation=errors, by_round=rounds)},
            {},
        )
        for number, (errors, rounds) in runs.items()
    )
    assert (lucky.validation, steady.validation) == ({0: 0.4}, {0: pytest.approx(0.3)})
    assert choices([lucky, steady]) == [steady]


def test_no_test_error_is_read_but_that_of_the_choice(tmp_path: Path) -> None:
    """The others' test errors could as well be missing."""
    first = result(tmp_path, 1, [([0.5], [0.2])])
    second = result(tmp_path, 2, [([0.4], [0.3])])
    table = (tmp_path / "002-s0" / "clients.csv").read_text()
    (tmp_path / "002-s0" / "clients.csv").write_text(table.replace("mse", "gone", 1))
    assert choices([first, second]) == [first]
    write_results(tmp_path, PLAN, [first, second], [first])


def test_a_trial_that_leaves_a_client_without_an_error_comes_last(tmp_path: Path) -> None:
    lacking = result(tmp_path, 1, [([0.5, None], [0.1, 0.1])])
    full = result(tmp_path, 2, [([0.5, 0.5], [0.9, 0.9])])
    assert (lacking.clients, full.clients) == (1, 2)
    assert ranked([lacking, full]) == [full, lacking]


def test_a_trial_with_a_failed_run_is_not_chosen(tmp_path: Path) -> None:
    good = result(tmp_path, 2, [([0.5], [0.9])])
    folders = {0: make_run(tmp_path / "001-s0", [0.5], validation=[0.1])}
    failed = result_of(Trial(1, {"fuels.beta": 10}), TASK, folders, {1: "it broke"})
    empty = result_of(Trial(3, {"fuels.beta": 10}), TASK, {}, {0: "it broke", 1: "so did this"})
    assert ranked([empty, failed, good]) == [good, failed, empty]
    assert choices([failed, empty]) == []
    write_results(tmp_path, PLAN, [failed, empty], [])
    assert "it broke" in (tmp_path / "sweep.json").read_text()


def test_a_run_without_validation_errors_has_failed(tmp_path: Path) -> None:
    empty = result(tmp_path, 1, [([None], [])])
    assert not empty.complete
    assert empty.failed == {0: "no client has a validation error"}


def test_equal_errors_leave_the_choice_to_the_first(tmp_path: Path) -> None:
    results = [result(tmp_path, number, [([0.5], [0.2])]) for number in (2, 1)]
    assert choices(results)[0].trial.number == 1


def test_each_data_has_a_choice_of_its_own(tmp_path: Path) -> None:
    """Errors on other data cannot be compared."""
    easy = result(tmp_path, 1, [([0.5], [0.2])], key="data.max-steps")
    hard = result(tmp_path, 2, [([0.5], [0.9])], key="data.max-steps")
    assert choices([easy, hard]) == [easy, hard]
    lags = [
        result(tmp_path / "calendar", number, [([0.5], [number / 10])], key="data.calendar")
        for number in (1, 2)
    ]
    assert choices(lags) == lags[:1]  # what only models see of the data


@pytest.mark.parametrize("task", ["sequence-classification", "sequence-regression"])
def test_how_sequences_are_scaled_is_chosen(task: str) -> None:
    def question(changes: dict[str, object]) -> object:
        return result_of(Trial(1, changes), task, {}, {}).question

    inputs = {"sequences.scaling": "none", "sequences.steps": 9, "sequences.target-scale": 2.0}
    assert question({f"data.{key}": value for key, value in inputs.items()}) == question({})
    assert question({"data.sequences.window": 9}) != question({})


BETA, NOISE = "fuels.beta", "fuels.noise"
TWO_SETTINGS = Plan(
    nodes=2, base={}, grid={BETA: [10, 30, 90], NOISE: ["none", "laplace"]}, seeds=[0, 1]
)


def trials(folder: Path) -> list[Result]:
    """Trials of β and noise: β = 30 with laplace has the lowest mean, β = 10 the lowest median."""
    clients = {
        (10, "none"): (0.5, 0.5, 0.5),
        (30, "none"): (0.4, 0.4, 0.7),
        (90, "none"): (0.6, 0.6, 0.6),
        (10, "laplace"): (0.1, 0.1, 0.9),
        (30, "laplace"): (0.3, 0.3, 0.3),
        (90, "laplace"): (0.5, 0.6, 0.7),
    }
    return [
        result_of(
            Trial(number, dict(zip((BETA, NOISE), changes, strict=True))),
            "forecasting",
            {
                seed: make_run(
                    folder / f"{number}-{seed}",
                    validation=[error + seed / 10 for error in errors],
                    errors=(0.5,) * 3,
                    by_round=(sum(errors) / 3 + seed / 10,),
                )
                for seed in (0, 1)
            },
            {},
        )
        for number, (changes, errors) in enumerate(clients.items(), 1)
    ]


def test_the_line_goes_through_the_choice(tmp_path: Path) -> None:
    """Every other setting as in the choice, in the order of the values."""
    results = ranked(trials(tmp_path))
    joined = through_choice(BETA, results)
    assert [result.trial.changes[BETA] for result in joined] == [10, 30, 90]
    assert {result.trial.changes[NOISE] for result in joined} == {"laplace"}
    means = [(result.mean, result.median) for result in joined]
    assert [round(mean.mean, 3) for mean, _ in means if mean] == [0.417, 0.35, 0.65]
    assert [round(median.mean, 3) for _, median in means if median] == [0.15, 0.35, 0.65]
    assert through_choice(BETA, []) == []


def test_lines_join_the_trials_like_the_choice_and_the_others_are_dots(tmp_path: Path) -> None:
    results = trials(tmp_path)
    chart, by_name = sweep_charts(TWO_SETTINGS, results, {5})
    other_trials, mean, median, choice = chart.lines
    assert [line.label for line in chart.lines] == [
        "other trials",
        "mean over clients, which chooses",
        "median client, kept models",
        "choice",
    ]
    assert mean.x.tolist() == median.x.tolist() == [10, 30, 90]
    assert mean.y.tolist() == pytest.approx([0.417, 0.35, 0.65], abs=1e-3)
    assert mean.joined
    assert not other_trials.joined
    assert choice.error is not None
    assert (chart.x.log, list(chart.x.ticks)) == (False, [10, 30, 90])
    assert "laplace" in by_name.x.names
    assert chart.y == by_name.y
    assert sweep_charts(TWO_SETTINGS, [], {5}) == []
