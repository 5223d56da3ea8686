"""Pairs of methods over the same clients, and the client that makes most of a mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedproto_app.report.comparison import (
    Rivals,
    client_errors,
    heavy_clients,
    pairs,
    with_better_off,
)
from fedproto_app.report.runs import Group, Spread, ranked, read_run
from fedproto_app.report.table import pairs_csv
from fedproto_app.report.task_report import report_for
from tests.report.made_runs import alone, grouped, make_classification_run, make_run, shared


def rows_by_method(*folders: Path) -> dict[str, list[str]]:
    return {pair.method: pair.row() for pair in pairs(grouped(*folders))}


def test_each_method_against_the_best_local_model(tmp_path: Path) -> None:
    """Gains of 1 to 6% and a loss of 7%, or gains of 1 to 7%. In 1% of the draws of seven clients
    the loss is drawn four times or more and is their median, which 95% leaves out."""
    base = [1.0] * 7
    gains = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]
    folders = [
        shared(tmp_path / "a", [1 - gain for gain in [*gains, -0.07]], method="fuels"),
        shared(tmp_path / "b", [1 - gain for gain in [*gains, 0.07]], method="fedrep"),
        alone(tmp_path / "c", base),
    ]
    rows = rows_by_method(*folders)
    assert {method: row[2:] for method, row in rows.items()} == {
        "fuels": ["best local model", "7", "6", "1", "+3.0%", "+1.0% to +5.0%", "pays"],
        "fedrep": ["best local model", "7", "7", "0", "+4.0%", "+2.0% to +6.0%", "pays"],
    }


def test_without_a_run_alone_against_the_best_row(tmp_path: Path) -> None:
    folders = [
        shared(tmp_path / "a", [0.1] * 3, method="fuels", mse_median=0.1),
        shared(tmp_path / "b", [0.3] * 3, method="fedrep", mse_median=0.3, seed=0),
        shared(tmp_path / "c", [0.5] * 3, method="fedrep", mse_median=0.3, seed=1),
    ]
    # Over the seeds fedrep's clients have 0.4. Three clients are too few for an interval.
    assert rows_by_method(*folders) == {
        "fedrep": ["toy", "fedrep", "fuels", "3", "0", "3", "−300.0%", "-", "open"]
    }


def test_two_local_models_meet_the_best_of_both(tmp_path: Path) -> None:
    """c0 takes naive (0.1), c1 solo (0.3): naive is worse by a third for c1, solo by 1 for c0."""
    folders = [
        alone(tmp_path / "a", (0.1, 0.4), validation=(0.1, 0.2), method="naive"),
        alone(tmp_path / "b", (0.2, 0.3), validation=(0.2, 0.1)),
    ]
    rows = rows_by_method(*folders)
    assert rows["naive"][2:7] == ["best local model", "2", "0", "1", "−16.7%"]
    assert rows["solo"][2:7] == ["best local model", "2", "0", "1", "−50.0%"]


def test_what_was_asked_something_else_is_no_pair(tmp_path: Path) -> None:
    other_question = shared(
        tmp_path / "b", (0.1, 0.1), settings={"data": {"horizon": 24}}, method="fedrep"
    )
    assert rows_by_method(shared(tmp_path / "a", (0.1, 0.1)), other_question) == {}
    assert rows_by_method(make_classification_run(tmp_path / "c")) == {}


def test_pairs_as_csv(tmp_path: Path) -> None:
    folders = [shared(tmp_path / "a", (0.25, 0.25)), alone(tmp_path / "b", (0.5, 0.75))]
    assert pairs_csv(pairs(grouped(*folders))).splitlines() == [
        "dataset,method,against,clients,better,worse,gain,least,most,finding",
        f"toy,fuels,best local model,2,2,0,{1 - (0.5 + 1 / 3) / 2},,,open",
    ]


@pytest.mark.parametrize(
    ("errors", "lines"),
    [
        (
            (0.5, 8.0, 1.5),
            ["toy: client 'c1' alone accounts for most of the mean MSE of fuels (80%)"],
        ),
        ((1.0, 2.0, 1.0), []),  # half is not most
        ((1.0, 9.0), []),  # of two
        ((4.0, 1.0, 1.0), []),  # of three, twice an equal share
        ((0.0, 0.0, 0.0), []),
    ],
)
def test_a_client_that_makes_most_of_a_mean(
    tmp_path: Path, errors: tuple[float, ...], lines: list[str]
) -> None:
    assert heavy_clients(grouped(make_run(tmp_path / "a", errors))) == lines


def test_methods_with_one_heavy_client_share_a_line(tmp_path: Path) -> None:
    folders = [
        shared(tmp_path / "a", (0.5, 8.0, 1.5), mse_median=0.1),
        alone(tmp_path / "b", (1.0, 6.0, 1.0), mse_median=0.2),
    ]
    assert heavy_clients(grouped(*folders)) == [
        "toy: client 'c1' alone accounts for most of the mean MSE of fuels (80%), solo (75%)"
    ]


def compared(*folders: Path) -> dict[str, Group]:
    return {group.method: group for group in with_better_off(grouped(*folders))}


def better_off(*folders: Path) -> float | None:
    return compared(*folders)["fuels"].spread("better_off").mean


def test_only_a_lower_error_is_better(tmp_path: Path) -> None:
    errors, rival_errors = (0.1, 0.2, 0.3, 0.4), (0.2, 0.2, 0.2, 9)
    folders = shared(tmp_path / "a", errors), alone(tmp_path / "b", rival_errors)
    assert better_off(*folders) == 0.5  # c1 is equal
    assert compared(*folders)["solo"].spread("better_off") == Spread(None)


def test_each_client_has_the_rival_with_its_lowest_validation_error(tmp_path: Path) -> None:
    """c0 takes naive (0.1 < 0.2): 0.5. c1 takes solo, though naive's test error is lower: 0.6."""
    folders = [
        shared(tmp_path / "a", (0.4, 0.4)),
        alone(tmp_path / "b", (0.3, 0.6), validation=(0.2, 0.1), settings_digest="s"),
        alone(
            tmp_path / "c", (0.5, 0.3), validation=(0.1, 0.2), method="naive", settings_digest="n"
        ),
    ]
    assert better_off(*folders) == 1.0
    rivals = Rivals(grouped(*folders[1:]), report_for("forecasting").metrics)
    best = rivals.best(read_run(folders[0]))
    assert {client: errors.test for client, errors in best.items()} == {"c0": 0.5, "c1": 0.6}


def test_a_client_without_an_error_is_not_better_off(tmp_path: Path) -> None:
    rival = alone(tmp_path / "b", (0.2, 0.2, None))
    assert better_off(shared(tmp_path / "a", (0.1, None, 0.1)), rival) == 0.5


def test_seeds_meet_their_own_and_others_the_first(tmp_path: Path) -> None:
    """Both gain with seed 0, none with seed 1, and one with seed 2 against solo's seed 0."""
    folders = [
        *(shared(tmp_path / f"f{n}", (1, last), seed=n) for n, last in enumerate((1, 1, 3))),
        *(alone(tmp_path / f"s{n}", (error,) * 2, seed=n) for n, error in enumerate((2, 0.5))),
    ]
    group = compared(*folders)["fuels"]
    assert [run.summary["better_off"] for run in group.runs] == [1.0, 0.0, 0.5]
    assert group.spread("better_off") == Spread(0.5, 0.5, 0.5 / 3**0.5)


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
    assert not read_run(make_run(tmp_path / "a")).is_alone


def test_names_that_stand_at_two_nodes_are_left_out(tmp_path: Path) -> None:
    rival = alone(tmp_path / "b", (0.2, 0.2, 0.2))
    table = rival / "clients.csv"
    table.write_text(table.read_text().replace("c1,n0", "c0,n1"))
    assert better_off(shared(tmp_path / "a", (0.1, 0.1, 0.3)), rival) == 0.0  # c2 alone counts


def test_of_accuracies_what_is_left_of_one_counts(tmp_path: Path) -> None:
    """A kept accuracy of 0.5 beside 0.25 is an error of 0.5 beside 0.75."""
    run = make_classification_run(tmp_path / "a", (0.5, 0.25))
    errors = client_errors(read_run(run), report_for("classification").metrics)
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
