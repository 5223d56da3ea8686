"""Runs whose validation error still fell when they ended are marked wherever runs are compared."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fedproto_app.experiments.sweep import Plan, Trial
from fedproto_app.experiments.sweep_results import result_of, results_table
from fedproto_app.report.comparison import not_converged, pairs, questions
from fedproto_app.report.page.document import render
from fedproto_app.report.page.next_step import next_step
from fedproto_app.report.runs import Group, has_converged, read_run
from fedproto_app.report.table import (
    comparison_csv,
    comparison_markdown,
    pairs_csv,
    run_table,
)
from fedproto_app.report.taking_part import chosen_to_share, taking_part
from tests.report.made_runs import alone, grouped, make_run, shared

LINE = "† toy: fuels, solo had not converged: the validation error was lowest in the last fifth"


@pytest.mark.parametrize(
    ("errors", "converged"),
    [
        # Ten evaluations: the last two have the mean 0.985, the two before 1.0.
        ([5.0] * 6 + [1.01, 0.99, 0.98, 0.99], False),
        ([5.0] * 6 + [1.01, 0.99, 0.99, 0.99], True),  # exactly 1% below
        ([0.5] * 6 + [0.6, 0.7, 0.8, 0.9], True),  # it rises
        ([0.5] * 6 + [0.9, 0.8, 0.7, 0.6], True),  # it falls, but was lower before
        ([1.0, 0.9], False),
        ([1.0, None, float("inf"), 0.995], True),  # rounds without evaluation do not count
        ([0.0, 0.0], True),
        ([0.3], None),
        ([None, None], None),
    ],
)
def test_it_had_not_converged_if_it_was_lowest_in_the_last_fifth_and_still_fell(
    errors: list[float | None], converged: bool | None
) -> None:
    assert has_converged(errors) is converged


def three(folder: Path) -> list[Group]:
    """A sharing run and a solo run that had not converged, and a simple forecast."""
    runs = [
        shared(folder / "a", (0.5,) * 7, converged=False, settings={"rounds": 20, "patience": 3}),
        alone(folder / "b", (1.0,) * 7, converged=False),
        alone(folder / "c", (2.0,) * 7, method="naive", converged=None),
    ]
    return grouped(*runs)


def test_tables_mark_it_and_a_line_explains(tmp_path: Path) -> None:
    groups = three(tmp_path)
    (question,) = questions(groups)
    assert question.labels == ["fuels †", "naive", "solo †"]
    names = [row.split(" | ")[1] for row in comparison_markdown(question).splitlines()[2:]]
    assert names == question.labels
    (line,) = not_converged(groups)
    assert line.startswith(LINE)
    assert LINE in render([run for group in groups for run in group.runs])
    assert not_converged(groups[1:2]) == []


def test_machines_read_a_column_instead(tmp_path: Path) -> None:
    groups = three(tmp_path)
    rows = list(csv.DictReader(comparison_csv(groups).splitlines()))
    assert [(row["method"], row["not_converged"]) for row in rows] == [
        ("fuels", "True"),
        ("naive", "False"),
        ("solo", "True"),
    ]
    assert "†" not in pairs_csv(pairs(groups))


def test_the_verdict_and_the_advice_name_it(tmp_path: Path) -> None:
    groups = three(tmp_path)
    (sentence,) = taking_part(groups)
    assert "fuels and solo had not converged, so more rounds may change this." in sentence
    (question,) = questions(groups)
    advised = next_step(question, chosen_to_share(question))
    assert advised.text == "fuels had not converged. Train it longer, then compare:"
    assert advised.command.endswith("a --set rounds=40 --set patience=0")


def test_one_seed_that_had_not_converged_marks_the_row(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / str(n), seed=n, converged=bool(n)) for n in range(2)]
    (group,) = grouped(*runs)
    assert group.had_not_converged
    tables = [run_table(read_run(run)) for run in runs]
    ends = [list(table.columns[1].cells)[-1] for table in tables]
    assert ends == ["12.5 (all rounds done, not converged)", "12.5 (all rounds done)"]


def test_a_sweep_marks_its_trials(tmp_path: Path) -> None:
    results = [
        result_of(
            Trial(number, {"rounds": number}),
            "forecasting",
            {0: make_run(tmp_path / str(number), converged=number > 1)},
            {},
        )
        for number in (1, 2)
    ]
    table = results_table(Plan(nodes=2, base={}, grid={"rounds": [1, 2]}, seeds=[0]), results, {})
    assert [row[0] for row in table.rows] == ["1 †", "2"]
    assert table.caption.endswith("; †: had not converged")
