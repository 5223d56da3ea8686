"""Pairs of methods over the same clients, and the client that makes most of a mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedproto_app.report.pairs import heavy_clients, pairs
from fedproto_app.report.runs import group_runs, read_run
from fedproto_app.report.table import pairs_csv
from tests.report.made_runs import make_classification_run, make_run
from tests.report.test_alone import alone, shared


def rows_by_method(*folders: Path) -> dict[str, list[str]]:
    groups, _ = group_runs([read_run(folder) for folder in folders])
    return {pair.method: pair.row() for pair in pairs(groups)}


def test_each_method_against_the_best_alone(tmp_path: Path) -> None:
    """Six of seven clients gain 0.01 … 0.06 and one loses 0.07: p = 0.297 by scipy's exact table
    (rank sum 7 against 21); all seven gain: 2 / 2⁷ = 0.016, by Holm twice that."""
    base = [1.0] * 7
    gains = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]
    folders = [
        shared(tmp_path / "a", [1 - gain for gain in [*gains, -0.07]], method="fuels"),
        shared(tmp_path / "b", [1 - gain for gain in [*gains, 0.07]], method="fedrep"),
        alone(tmp_path / "c", base),
    ]
    assert rows_by_method(*folders) == {
        "fuels": ["toy", "fuels", "best alone", "7", "6", "-0.0300", "0.3", "0.3"],
        "fedrep": ["toy", "fedrep", "best alone", "7", "7", "-0.0400", "0.016", "0.031"],
    }


def test_without_a_run_alone_against_the_best_row(tmp_path: Path) -> None:
    folders = [
        shared(tmp_path / "a", [0.1] * 3, method="fuels", mse_median=0.1),
        shared(tmp_path / "b", [0.3] * 3, method="fedrep", mse_median=0.3, seed=0),
        shared(tmp_path / "c", [0.5] * 3, method="fedrep", mse_median=0.3, seed=1),
    ]
    # Over the seeds fedrep's clients have 0.4; three clients are too few for a test.
    assert rows_by_method(*folders) == {
        "fedrep": ["toy", "fedrep", "fuels", "3", "0", "+0.3000", "n < 6", "n < 6"]
    }


def test_two_runs_alone_meet_the_best_of_both(tmp_path: Path) -> None:
    folders = [
        alone(tmp_path / "a", (0.1, 0.4), validation=(0.1, 0.2), method="naive"),
        alone(tmp_path / "b", (0.2, 0.3), validation=(0.2, 0.1)),
    ]
    rows = rows_by_method(*folders)
    assert rows["naive"][2:6] == ["best alone", "2", "0", "+0.0500"]
    assert rows["solo"][2:6] == ["best alone", "2", "0", "+0.0500"]


def test_what_was_asked_something_else_is_no_pair(tmp_path: Path) -> None:
    other_question = shared(
        tmp_path / "b", (0.1, 0.1), settings={"data": {"horizon": 24}}, method="fedrep"
    )
    assert rows_by_method(shared(tmp_path / "a", (0.1, 0.1)), other_question) == {}
    assert rows_by_method(make_classification_run(tmp_path / "c")) == {}


def test_pairs_as_csv(tmp_path: Path) -> None:
    folders = [shared(tmp_path / "a", (0.25, 0.25)), alone(tmp_path / "b", (0.5, 0.75))]
    groups, _ = group_runs([read_run(folder) for folder in folders])
    assert pairs_csv(pairs(groups)).splitlines() == [
        "dataset,method,against,clients,better,difference,p,corrected",
        "toy,fuels,best alone,2,2,-0.375,,",
    ]


@pytest.mark.parametrize(
    ("errors", "lines"),
    [
        ((0.5, 8.0, 1.5), ["toy: client 'c1' makes most of the mean MSE of fuels (80%)"]),
        ((1.0, 2.0, 1.0), []),  # half is not most
        ((1.0, 9.0), []),  # of two
        ((0.0, 0.0, 0.0), []),
    ],
)
def test_a_client_that_makes_most_of_a_mean(
    tmp_path: Path, errors: tuple[float, ...], lines: list[str]
) -> None:
    groups, _ = group_runs([read_run(make_run(tmp_path / "a", errors))])
    assert heavy_clients(groups) == lines


def test_methods_with_one_heavy_client_share_a_line(tmp_path: Path) -> None:
    folders = [
        shared(tmp_path / "a", (0.5, 8.0, 1.5), mse_median=0.1),
        alone(tmp_path / "b", (1.0, 6.0, 1.0), mse_median=0.2),
    ]
    groups, _ = group_runs([read_run(folder) for folder in folders])
    assert heavy_clients(groups) == [
        "toy: client 'c1' makes most of the mean MSE of fuels (80%), solo (75%)"
    ]
