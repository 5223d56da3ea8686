"""The validation error that a run counts by, worked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedproto_app.core.tasks import TASKS
from fedproto_app.experiments.sweep.results import client_column
from fedproto_app.report.task_report import report_for
from fedproto_app.report.validation import judged, validation_error
from fedproto_app.server.round_log import RoundLog
from tests.report.made_runs import make_classification_run, make_run


@pytest.mark.parametrize(
    ("kept_errors", "rounds", "expected"),
    [
        # Two clients who are best in different rounds: 0.1 and 0.2 are kept, but the rounds' means
        # were (0.1 + 0.5) / 2 and (0.4 + 0.2) / 2.
        ([0.1, 0.2], [0.3, 0.3], 0.3),
        ([0.1, 0.2], [0.5, 0.25, 0.4], 0.25),
        # One round: nothing was chosen, so nothing is flattered.
        ([0.1, 0.2], [0.15], 0.15),
        # The last models are kept: no other round counts, however good it was.
        ([0.4, 0.6], [0.3, 0.2, 0.5], 0.5),
        # Rounds that were not evaluated, and one that broke.
        ([0.1, 0.2], [None, 0.3, None, float("nan"), float("inf")], 0.3),
        ([0.1, 0.2], [], 0.15),
        ([0.1, float("inf")], [0.3], float("inf")),
    ],
)
def test_the_best_round_counts(
    kept_errors: list[float], rounds: list[float | None], expected: float
) -> None:
    assert judged(kept_errors, rounds) == pytest.approx(expected)


@pytest.mark.parametrize("task", TASKS)
def test_each_task_writes_the_field_that_is_read(task: str) -> None:
    report = report_for(task)
    field = report.metrics.validation.round.name
    assert field in report.round_figures(RoundLog(), {}, True)


def test_it_is_read_of_a_runs_files(tmp_path: Path) -> None:
    """Forecasts: rounds of 1, 0.6 and 0.5. Images: rounds down to 0.5 / 3, but 0.4 is kept."""
    series = make_run(tmp_path / "a", validation=(0.2, 0.3), by_round=(1.0, 0.6, 0.5))
    assert _error_of(series, "forecasting") == pytest.approx(0.5)
    assert _error_of(make_classification_run(tmp_path / "b"), "classification") == pytest.approx(
        0.4
    )


def _error_of(folder: Path, task: str) -> float:
    metrics = report_for(task).metrics
    column = metrics.kept_validation.column.name
    return validation_error(folder, client_column(folder, column), metrics)
