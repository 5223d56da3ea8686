"""Tables of results, cell by cell."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedproto_app.report.runs import Group, group_runs, read_clients, read_run
from fedproto_app.report.table import (
    clients_table,
    comparison_csv,
    comparison_markdown,
    comparison_table,
    run_table,
)
from tests.report.made_runs import make_run


def as_text(table: Table) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def cells(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in column.cells] for column in table.columns]


def two_seeds_and_a_rival(tmp_path: Path) -> list[Group]:
    folders = [
        make_run(tmp_path / "a", seed=0, mse=0.25, mae=0.5, seconds=10.0),
        make_run(tmp_path / "b", seed=1, mse=0.75, mae=0.5, seconds=20.0),
        make_run(
            tmp_path / "c", method="solo", mse=0.125, parameters_up_per_client_round=0, bytes_up=0
        ),
    ]
    return group_runs([read_run(folder) for folder in folders])[0]


def test_the_table_of_a_run_shows_its_figures_with_units(tmp_path: Path) -> None:
    text = as_text(run_table(read_run(make_run(tmp_path / "a"))))
    assert "fuels on toy: 2 clients, 3 rounds, seed 0" in text
    for figure in ("0.3750", "0.7500", "3.75", "768", "1.2 kB / 2.4 MB", "12.5 (all rounds done)"):
        assert figure in text


def test_a_run_without_an_evaluation_shows_dashes(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "a", mse=None, rmse_units=None, stopped="patience"))
    names, values = cells(run_table(run))
    assert values[names.index("test MSE (best validation)")] == "-"
    assert values[names.index("RMSE in the data's units")] == "-"
    assert values[names.index("seconds")] == "12.5 (patience ran out)"


def test_the_best_and_the_worst_clients_are_named_in_order(tmp_path: Path) -> None:
    errors = (0.8, 0.1, None, 0.7, float("nan"), 0.2, 0.6, 0.3, 0.5, 0.4)
    table = clients_table(read_clients(make_run(tmp_path / "a", errors=errors)))
    assert cells(table)[0] == ["c1", "c5", "c7", "c6", "c3", "c0"]


def test_few_clients_are_all_named_once(tmp_path: Path) -> None:
    table = clients_table(read_clients(make_run(tmp_path / "a", errors=(0.3, 0.1, 0.2, 0.4))))
    assert cells(table)[0] == ["c1", "c2", "c0", "c3"]


def test_the_comparison_has_one_row_a_group(tmp_path: Path) -> None:
    table = comparison_table(two_seeds_and_a_rival(tmp_path))
    assert list(zip(*cells(table), strict=True)) == [
        ("toy", "solo", "1", "0.1250 ± -", "0.5000 ± -", "0.7500", "0", "0 B", "12"),
        (
            *("toy", "fuels", "2", "0.5000 ± 0.3536", "0.5000 ± 0.0000"),
            *("0.7500", "768", "1.2 kB", "15"),
        ),
    ]


def test_markdown_has_a_rule_and_escapes_bars(tmp_path: Path) -> None:
    groups, _ = group_runs([read_run(make_run(tmp_path / "a", dataset="a|b"))])
    head, rule, row = comparison_markdown(groups).splitlines()
    assert head.startswith("| dataset | method | seeds | MSE |")
    assert rule == "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert row.startswith("| a\\|b | fuels | 1 | 0.3750 ± - |")


def test_csv_keeps_every_digit_and_leaves_unknowns_empty(tmp_path: Path) -> None:
    head, solo, fuels = comparison_csv(two_seeds_and_a_rival(tmp_path)).splitlines()
    assert head == (
        "dataset,method,seeds,mse_mean,mse_std,mae_mean,mae_std,last_mse_mean,last_mse_std,"
        "parameters_up_per_client_round,bytes_up,seconds"
    )
    assert solo == "toy,solo,1,0.125,,0.5,,0.75,,0.0,0.0,12.5"
    assert fuels == "toy,fuels,2,0.5,0.3535533905932738,0.5,0.0,0.75,0.0,768.0,1200.0,15.0"
