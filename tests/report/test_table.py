"""Tables of results, cell by cell."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from fedproto_app.report.comparison import Question, questions
from fedproto_app.report.fitting_table import FittingTable
from fedproto_app.report.runs import Group, read_clients, read_run
from fedproto_app.report.table import (
    clients_table,
    comparison_csv,
    comparison_markdown,
    comparison_table,
    run_table,
)
from tests.report.made_runs import grouped, make_classification_run, make_run


def cells(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in column.cells] for column in table.columns]


def question(groups: list[Group]) -> Question:
    (only_question,) = questions(groups)
    return only_question


def lines_at(width: int, table: Table | FittingTable) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return [line.rstrip() for line in capture.get().splitlines()]


def two_seeds_and_a_rival(tmp_path: Path) -> list[Group]:
    folders = [
        make_run(tmp_path / "a", seed=0, mse=0.25, mae=0.5, seconds=10.0),
        make_run(tmp_path / "b", seed=1, mse=0.75, mae=0.5, seconds=20.0),
        make_run(
            tmp_path / "c",
            method="solo",
            mse=0.125,
            mse_median=0.0625,
            parameters_up_per_client_round=0,
            parameters_up_per_client=0,
            bytes_up=0,
        ),
    ]
    return grouped(*folders)


def test_the_table_of_a_run_shows_its_figures_with_units(tmp_path: Path) -> None:
    text = "\n".join(lines_at(200, run_table(read_run(make_run(tmp_path / "a")))))
    assert "fuels on toy: 2 clients, 3 rounds, seed 0" in text
    for figure in ("0.3750", "0.7500", "3.75", "768", "1.2 kB / 2.4 MB", "12.5 (all rounds done)"):
        assert figure in text


def test_a_run_without_an_evaluation_shows_dashes(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "a", mse=None, rmse_units=None, stopped="patience"))
    names, values = cells(run_table(run))
    assert values[names.index("test MSE (best validation)")] == "-"
    assert values[names.index("RMSE in the data's units")] == "-"
    assert values[names.index("seconds")] == "12.5 (patience ran out)"


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        (
            (0.8, 0.1, None, 0.7, float("nan"), 0.2, 0.6, 0.3, 0.5, 0.4),
            ["c1", "c5", "c7", "… 2 more", "c6", "c3", "c0"],
        ),
        ((0.3, 0.1, 0.2, 0.4), ["c1", "c2", "c0", "c3"]),
    ],
)
def test_the_best_and_the_worst_clients_are_named_in_order(
    tmp_path: Path, errors: tuple[float | None, ...], expected: list[str]
) -> None:
    table = clients_table("forecasting", read_clients(make_run(tmp_path / "a", errors)))
    assert [row[0] for row in table.rows] == expected


def test_the_comparison_has_one_row_a_group(tmp_path: Path) -> None:
    table = comparison_table(question(two_seeds_and_a_rival(tmp_path)))
    assert table.heading == "toy"
    assert table.rows == [
        (
            *("solo", "1", "0.1250 ± -", "0.0625 ± -", "0.5000", "0.8750", "0.5000"),
            *("0", "0", "0 B", "12"),
        ),
        (
            *("fuels", "2", "0.5000 ± 0.2500", "0.3125 ± 0.0000", "0.5000", "0.8750"),
            *("0.5000", "768", "2,304", "1.2 kB", "15"),
        ),
    ]


def test_runs_with_other_data_have_a_table_of_their_own(tmp_path: Path) -> None:
    """A label has no settings that all rows of its table share."""
    folders = [
        make_run(
            tmp_path / f"{horizon}-{beta}", settings_digest=f"{horizon}-{beta}",
            settings={"fuels": {"beta": beta}, "data": {"horizon": horizon}},
        )
        for horizon in (1, 24) for beta in (10.0, 30.0)
    ]  # fmt: skip
    both = questions(grouped(*folders))
    assert sorted(table.heading for table in map(comparison_table, both)) == [
        "toy, horizon 1",
        "toy, horizon 24",
    ]
    assert [[row[0] for row in comparison_table(q).rows] for q in both] == [
        ["fuels beta=10.0", "fuels beta=30.0"]
    ] * 2


def test_columns_that_do_not_fit_are_stacked_and_no_cell_breaks(tmp_path: Path) -> None:
    label = "kindred calendar=week lags=48,168 penalty-steps=3"
    columns = ["method", *(f"figure {n}" for n in range(12))]
    rows = [[label, *["0.1234 ± 0.0001"] * 12], ["naive", *["-"] * 12]]
    lines = lines_at(80, FittingTable(columns, rows, heading="toy", caption="what it is"))
    assert (lines[0], lines[-1]) == ("toy", "what it is")
    assert max(map(len, lines)) <= 80
    text = " ".join(lines)
    assert text.count("0.1234 ± 0.0001") == 12
    for word in label.split():
        assert text.count(word) == sum(line.startswith("naive") for line in lines) > 1
    one_block = lines_at(300, FittingTable(columns, rows))
    assert sum("figure" in line for line in one_block) == 1
    short = FittingTable(["method", "mean error", "better off"], [["naive", "1.5", "3"]])
    assert "method mean error better off" in lines_at(28, short)
    assert "method mean error    off" in lines_at(27, short)


def test_markdown_has_a_rule_and_escapes_bars(tmp_path: Path) -> None:
    groups = grouped(make_run(tmp_path / "a", dataset="a|b"))
    head, rule, row = comparison_markdown(question(groups)).splitlines()
    assert head == (
        "| dataset | method | seeds | mean MSE | median MSE | worst tenth | MASE | MAE "
        "| better off % | parameters up | in all | bytes up | seconds |"
    )
    assert rule == "| --- | --- |" + " ---: |" * 11
    assert row.startswith("| a\\|b | fuels | 1 | 0.3750 ± - |")


def test_csv_keeps_every_digit_and_leaves_unknowns_empty(tmp_path: Path) -> None:
    head, solo, fuels = comparison_csv(two_seeds_and_a_rival(tmp_path)).splitlines()
    figures = (
        *("mse", "mse_median", "mse_worst_tenth", "mase", "mase_median", "wape", "wape_median"),
        *("mae", "last_mse", "better_off"),
    )
    columns = [f"{figure}_{part}" for figure in figures for part in ("mean", "std", "se")]
    costs = "parameters_up_per_client_round,parameters_up_per_client,bytes_up,seconds"
    assert head == f"dataset,method,seeds,{','.join(columns)},{costs},not_converged"
    assert solo == (
        "toy,solo,1,0.125,,,0.0625,,,0.5,,,1.125,,,0.875,,,0.1875,,,0.125,,,0.5,,,0.75,,,,,,"
        "0.0,0.0,0.0,12.5,False"
    )
    assert fuels.startswith("toy,fuels,2,0.5,0.3535533905932738,0.25,0.3125,0.0,0.0,")
    assert fuels.endswith(",0.5,0.0,0.0,0.75,0.0,0.0,,,,768.0,2304.0,1200.0,15.0,False")


def test_without_averaging_the_table_is_silent_on_the_averaged_model(tmp_path: Path) -> None:
    run = read_run(make_classification_run(tmp_path / "a", averages=False))
    names, values = cells(run_table(run))
    assert [name for name in names if "averaged" in name] == [
        "test accuracy, averaged model (A_glo)"
    ]
    assert values[names.index("test accuracy, averaged model (A_glo)")] == "-"


def test_the_best_classifying_client_is_the_most_accurate(tmp_path: Path) -> None:
    folder = make_classification_run(tmp_path / "a", (0.3, 0.9, None, 0.5), averages=False)
    table = clients_table("classification", read_clients(folder))
    assert table.heading == "best and worst clients by test A_loc %"
    assert [row[0] for row in table.rows] == ["c1", "c3", "c0"]
    assert [row[2:4] for row in table.rows] == [["90.0", "-"], ["50.0", "-"], ["30.0", "-"]]


def test_classifiers_are_compared_by_accuracy_the_best_first(tmp_path: Path) -> None:
    runs = [
        make_classification_run(tmp_path / "a", method="solo", averages=False),
        make_classification_run(tmp_path / "b", method="gldp", accuracy_local=0.75),
        make_classification_run(tmp_path / "c", method="gldp", accuracy_local=0.5, seed=1),
        make_classification_run(tmp_path / "d", accuracy_local=None),
    ]
    groups = grouped(*runs)
    table = comparison_table(question(groups))
    assert [row[0] for row in table.rows] == ["gldp", "solo", "fedavg"]  # unknown last
    assert table.rows[0][1:5] == ("2", "62.5 ± 12.5", "27.5 ± 0.0", "50.0 ± 0.0")
    assert table.rows[1][1:5] == ("1", "37.5 ± -", "-", "50.0 ± -")
    assert table.rows[1][5:9] == ("62.5 ± -", "100.0", "25.0", "25.0")  # no few-shot class
    head, first, *_ = comparison_csv(groups).splitlines()
    assert head.startswith(
        "dataset,method,seeds,accuracy_local_mean,accuracy_local_std,accuracy_local_se,"
    )
    assert first.startswith("shapes,gldp,2,0.625,0.17677")
