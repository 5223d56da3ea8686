"""Clients better off than alone: rivals with the same question and seed, by validation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.report.alone import Alone, client_errors, is_alone, with_better_off
from fedproto_app.report.runs import Group, Spread, group_runs, ranked, read_run
from fedproto_app.report.task_report import report_for
from tests.report.made_runs import make_classification_run, make_run

PARAMETERS_SENT: dict[str, Any] = {"parameters_up": 600, "parameters_down": 600}
NOTHING_SENT: dict[str, Any] = {"parameters_up": 0, "parameters_down": 0}


def shared(folder: Path, errors: Sequence[float | None], **more: Any) -> Path:
    return make_run(folder, errors, **PARAMETERS_SENT | more)


def alone(folder: Path, errors: Sequence[float | None], **more: Any) -> Path:
    return make_run(folder, errors, **NOTHING_SENT | {"method": "solo"} | more)


def compared(*folders: Path) -> dict[str, Group]:
    groups = with_better_off(group_runs([read_run(folder) for folder in folders])[0])
    return {group.method: group for group in groups}


def better_off(*folders: Path) -> float | None:
    return compared(*folders)["fuels"].spread("better_off").mean


def test_only_a_lower_error_is_better(tmp_path: Path) -> None:
    folders = [
        shared(tmp_path / "a", (0.1, 0.2, 0.3, 0.4)),
        alone(tmp_path / "b", (0.2, 0.2, 0.2, 9)),
    ]
    assert better_off(*folders) == 0.5  # c1 is equal
    assert compared(*folders)["solo"].spread("better_off") == Spread(None, None)


def test_each_client_has_the_rival_with_its_lowest_validation_error(tmp_path: Path) -> None:
    """c0 takes naive (0.1 < 0.2): 0.5; c1 takes solo, though naive's test error is lower: 0.6."""
    folders = [
        shared(tmp_path / "a", (0.4, 0.4)),
        alone(tmp_path / "b", (0.3, 0.6), validation=(0.2, 0.1), settings_digest="s"),
        alone(
            tmp_path / "c", (0.5, 0.3), validation=(0.1, 0.2), method="naive", settings_digest="n"
        ),
    ]
    assert better_off(*folders) == 1.0
    groups, _ = group_runs([read_run(folder) for folder in folders])
    metrics = report_for("forecasting").metrics
    assert Alone(groups, metrics).errors(read_run(folders[0])) == {"c0": 0.5, "c1": 0.6}


def test_a_client_without_an_error_is_not_better_off(tmp_path: Path) -> None:
    rival = alone(tmp_path / "b", (0.2, 0.2, None))
    assert better_off(shared(tmp_path / "a", (0.1, None, 0.1)), rival) == 0.5


def test_seeds_meet_their_own_and_others_the_first(tmp_path: Path) -> None:
    """Seed 0: both gain; seed 1 against solo's seed 1: none; seed 2 against solo's seed 0: one."""
    folders = [
        *(
            shared(tmp_path / f"f{n}", errors, seed=n)
            for n, errors in enumerate([(1, 1), (1, 1), (1, 3)])
        ),
        *(
            alone(tmp_path / f"s{n}", errors, seed=n)
            for n, errors in enumerate([(2, 2), (0.5, 0.5)])
        ),
    ]
    group = compared(*folders)["fuels"]
    assert [run.summary["better_off"] for run in group.runs] == [1.0, 0.0, 0.5]
    assert group.spread("better_off") == Spread(0.5, 0.5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"dataset": "other"}, None),
        ({"settings": {"data": {"max-steps": 100}}}, None),  # another history
        ({"settings": {"data": {"max-steps": 0, "period": 24}}}, 1.0),  # as by default
        ({"settings": {"data": {"calendar": "week", "path": "elsewhere"}}}, 1.0),
        ({"parameters_up": 1}, None),
        ({"parameters_down": 1}, None),
    ],
)
def test_rivals_share_nothing_and_are_asked_the_same(
    tmp_path: Path, changes: dict[str, Any], expected: float | None
) -> None:
    folders = shared(tmp_path / "a", (0.1, 0.1)), alone(tmp_path / "b", (0.2, 0.2), **changes)
    assert better_off(*folders) == expected


def test_runs_that_do_not_tell_what_they_sent_are_no_rivals(tmp_path: Path) -> None:
    assert not is_alone(read_run(make_run(tmp_path / "a")))


def test_names_that_stand_at_two_nodes_are_left_out(tmp_path: Path) -> None:
    rival = alone(tmp_path / "b", (0.2, 0.2, 0.2))
    table = rival / "clients.csv"
    table.write_text(table.read_text().replace("c1,n0", "c0,n1"))
    assert better_off(shared(tmp_path / "a", (0.1, 0.1, 0.3)), rival) == 0.0  # c2 alone counts


def test_of_accuracies_what_is_left_of_one_counts(tmp_path: Path) -> None:
    """A kept accuracy of 0.5 beside 0.25 is an error of 0.5 beside 0.75."""
    run = make_classification_run(tmp_path / "a", (0.5, 0.25))
    metrics = report_for("classification").metrics
    errors = client_errors(read_run(run), metrics)
    assert [error.test for error in errors.values()] == [0.5, 0.75]


def test_groups_are_ranked_by_what_is_asked(tmp_path: Path) -> None:
    figures = {
        "a": {"mse_median": 0.1, "mse": 0.9, "mase_median": 0.5, "mse_worst_tenth": 3.0},
        "b": {"mse_median": 0.2, "mse": 0.8, "mase_median": 0.6, "mse_worst_tenth": 2.0},
        "c": {"mse_median": 0.3, "mse": 0.7, "mase_median": 0.4, "mse_worst_tenth": 4.0},
        "d": {"mse_median": None, "mse": 0.6, "mase_median": None, "mse_worst_tenth": None},
        "e": {"mse_median": None, "mse": 0.5, "mase_median": None, "mse_worst_tenth": None},
    }
    folders = [
        shared(tmp_path / name, (error, 0.3), method=name, **summary)
        for (name, summary), error in zip(figures.items(), (0.1, 0.1, 0.3, 0.1, 0.4), strict=True)
    ]
    rival = alone(tmp_path / "z", (0.2, 0.2), mse_median=9.0, mse=9.0)
    groups = list(compared(*folders, rival).values())
    orders = {
        order: "".join(group.method[0] for group in ranked(groups, order))
        for order in ("", "median", "mean", "mase", "worst", "better")
    }
    assert orders == {
        "": "abcsed",  # without a median last, by their mean
        "median": "abcsed",
        "mean": "edcbas",
        "mase": "cabsed",
        "worst": "sbaced",
        "better": "dbaecs",  # one client each of d, b, a; none of e and c; solo has no share
    }
