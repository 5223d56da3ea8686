"""Charts say what is in the artefacts, and clients are ordered so that alike ones meet."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.charts import Chart, Dots, Lines
from fedproto_app.core.errors import FedProtoError
from fedproto_app.report.charts import (
    comparison_of,
    draw,
    pictures_of,
    write_picture,
)
from tests.report.made_runs import add_divergence, grouped, make_classification_run, make_run

PNG = b"\x89PNG"
ALONE = {"method": "solo", "parameters_up": 0, "parameters_down": 0}


def points(chart: Chart) -> dict[str, list[tuple[float, float]]]:
    """Return the known points of each line."""
    assert isinstance(chart, Lines)
    return {
        line.label: [
            (x, y) for x, y in zip(line.x.tolist(), line.y.tolist(), strict=True) if isfinite(y)
        ]
        for line in chart.lines
    }


def approximately(lines: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    return {label: [pytest.approx(point) for point in points] for label, points in lines.items()}


def test_a_run_of_fuels_gets_three_pictures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", errors=(0.01, 0.5, float("nan"), None))
    add_divergence(run, ["x", "y", "x"], np.array([[0, 0.6, 0.1], [0.6, 0, np.nan], [0.1, 0.5, 0]]))
    files = draw(run)
    assert [file.name for file in files] == ["clients.png", "rounds.png", "divergence.png"]
    assert all(file.parent == run / "pictures" for file in files)
    assert all(file.read_bytes().startswith(PNG) for file in files)

    [clients], [by_round, by_cost], [_] = pictures_of(run).values()
    assert isinstance(clients, Dots)
    assert (clients.x.title, clients.x.log) == ("test MAE of a client", True)
    assert [(row.label, row.values.tolist()) for row in clients.rows] == [("a", [0.01, 0.5])]

    curves = {"training": (2, 1, 2 / 3), "validation": (1, 1 / 2, 1 / 3), "test": (1.5, 0.75, 0.5)}
    for chart, places in ((by_round, (1, 2, 3)), (by_cost, (300, 600, 900))):
        curve_points = {
            name: list(zip(places, values, strict=True)) for name, values in curves.items()
        }
        assert points(chart) == approximately(curve_points)
    assert isinstance(by_round, Lines)
    assert (by_round.x.title, by_round.y.title) == ("round", "MSE (standardised)")


def test_an_unfinished_run_gets_what_its_artefacts_allow(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run / "clients.csv").unlink()
    (run / "summary.json").unlink()
    assert [file.name for file in draw(run)] == ["rounds.png"]


@pytest.mark.parametrize("clients", [1, 3])
def test_few_clients_without_groups_can_be_drawn(tmp_path: Path, clients: int) -> None:
    run = make_run(tmp_path / "a", errors=(None,) * clients)
    add_divergence(run, [""] * clients, 1 - np.eye(clients))
    assert [file.name for file in draw(run)] == ["rounds.png", "divergence.png"]


def test_a_folder_with_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedProtoError, match=r"no clients\.csv, rounds\.jsonl or divergence\.npz"):
        draw(tmp_path)


def titles(charts: Sequence[Chart]) -> list[str]:
    return [chart.title for chart in charts]


def test_a_comparison_has_errors_and_costs_of_each_dataset(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / f"{dataset}-{method}", dataset=dataset, method=method)
        for dataset in ("m4", "milano")
        for method in ("fuels", "solo")
    ]
    charts = comparison_of(grouped(*folders))
    assert titles(charts) == [
        f"{dataset}: {title}"
        for dataset in ("m4", "milano")
        for title in (
            "By client",
            "test MSE (standardised) by round",
            "test MSE (standardised) by traffic",
        )
    ]
    for error_chart, cost_chart in zip(charts[::3], charts[2::3], strict=True):
        assert isinstance(error_chart, Dots)
        errors = {row.label: row.values.tolist() for row in error_chart.rows}
        assert errors == {"fuels": [0.25, 0.5], "solo": [0.25, 0.5]}
        costs = [(300, 1.5), (600, 0.75), (900, 0.5)]
        assert points(cost_chart) == approximately({"fuels = solo": costs})


def test_two_tasks_fit_one_comparison(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / "a"),
        make_classification_run(tmp_path / "b"),
        make_classification_run(tmp_path / "c", (0.75, 0.5), method="solo", averages=False),
    ]
    groups = grouped(*folders)
    file = tmp_path / "out" / "comparison.png"
    write_picture(file, comparison_of(groups))
    assert file.read_bytes().startswith(PNG)
    by_title = {chart.title: chart for chart in comparison_of(groups)}
    for title, labels in (("shapes: By client", {"fedavg", "solo"}), ("toy: By client", {"fuels"})):
        chart = by_title[title]
        assert isinstance(chart, Dots)
        assert {row.label for row in chart.rows} == labels
