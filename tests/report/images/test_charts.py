"""Charts of runs on images: accuracies by class and stage, and the clients' images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fedproto_app.core.charts import Dots, Lines
from fedproto_app.report.charts import draw, pictures_of
from fedproto_app.report.images.charts import (
    class_charts,
    partition_charts,
    partition_section,
    stage_charts,
)
from tests.report.made_runs import classification_record, make_classification_run
from tests.report.test_charts import approximately, points

CHARTS = ["clients.png", "rounds.png", "stages.png", "classes.png", "partition.png"]


@pytest.mark.parametrize("averages", [True, False])
def test_a_run_gets_five_pictures(tmp_path: Path, averages: bool) -> None:
    files = draw(make_classification_run(tmp_path / "a", (0.25, 0.5, None), averages))
    assert [file.name for file in files] == CHARTS


def test_clients_and_rounds(tmp_path: Path) -> None:
    charts = pictures_of(make_classification_run(tmp_path / "a", (0.25, 0.5, None)))
    [clients] = charts["clients.png"]
    assert isinstance(clients, Dots)
    assert [row.values.tolist() for row in clients.rows] == [[0.75, 0.5]]  # 1 minus accuracy
    by_round = points(charts["rounds.png"][0])
    assert by_round["own model (A_loc)"] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert [y for _, y in by_round["validation images"]] == pytest.approx([0.5, 0.75, 5 / 6])
    assert len(by_round) == 4


def test_a_stage_is_a_line_that_begins_with_it(tmp_path: Path) -> None:
    local, averaged = stage_charts(make_classification_run(tmp_path / "a"))
    assert (local.title, averaged.title) == ("own model", "averaged model")
    first, second = [(1, 0.9), (2, 0.45), (3, 0.3)], [(2, 0.2), (3, 0.3)]
    assert points(local) == approximately({"stage 1": first, "stage 2": second})
    assert "At the end: stage 1: 30%, stage 2: 30%" in local.text
    [only] = stage_charts(make_classification_run(tmp_path / "b", averages=False))
    assert only.title == "own model"


def test_classes_are_sorted_by_falling_count(tmp_path: Path) -> None:
    runs = {name: make_classification_run(tmp_path / name) for name in "ab"}
    [chart] = class_charts({"a": runs["a"]})
    assert isinstance(chart, Dots)
    rows = {row.label: row.values.tolist() for row in chart.rows}
    assert list(rows) == ["ant (90, many)", "bee (9, medium)", "cat (3, few)"]
    assert rows["bee (9, medium)"] == [0.25, 0.5]
    assert list(chart.kinds) == ["own model", "averaged model"]
    [beside] = class_charts(runs)
    assert isinstance(beside, Dots)
    assert list(beside.kinds) == ["a", "b"]
    assert beside.rows[1].values.tolist() == [0.25, 0.25]


def test_many_classes_are_lines(tmp_path: Path) -> None:
    run = make_classification_run(tmp_path / "a")
    rows = [f"k{n},{n + 1},few,4,0.5,{n / 50}" for n in range(50)]
    head = (run / "classes.csv").read_text().splitlines()[0]
    (run / "classes.csv").write_text("\n".join([head, *rows]) + "\n")
    accuracy, counts = class_charts({"a": run})
    assert isinstance(accuracy, Lines)
    assert accuracy.lines[0].y[[0, -1]].tolist() == [0.98, 0]
    assert isinstance(counts, Lines)
    assert counts.y.log
    assert counts.lines[0].y[[0, -1]].tolist() == [50, 1]


def test_an_unfinished_run_gets_the_possible_charts(tmp_path: Path) -> None:
    run = make_classification_run(tmp_path / "a")
    for name in ("clients.csv", "classes.csv", "summary.json"):
        (run / name).unlink()
    assert list(pictures_of(run)) == ["rounds.png", "stages.png", "partition.png"]


def test_a_single_stage_has_no_chart_of_stages(tmp_path: Path) -> None:
    run = make_classification_run(tmp_path / "a")
    line = classification_record(1, stages_local=[0.5], stages_global=[0.25])
    (run / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    (run / "partition.csv").unlink()  # as in a deployment
    classes = "class,train_samples,third,test_samples,accuracy_global,accuracy_local\nx,,,4,,0.5\n"
    (run / "classes.csv").write_text(classes)
    assert list(pictures_of(run)) == [CHARTS[0], "rounds.png", "classes.png"]


def test_the_partition_has_all_stages_and_classes(tmp_path: Path) -> None:
    [section] = partition_section(make_classification_run(tmp_path / "a"))
    first, second = section.charts
    # The classes in the order of the labels, not of their first appearance.
    assert (first.columns, first.rows) == (["bee", "ant", "cat"], ["c0", "c1"])
    assert np.nan_to_num(first.cells).tolist() == [[0, 60, 0], [9, 30, 0]]
    assert np.nan_to_num(second.cells).tolist() == [[0, 0, 3], [0, 0, 0]]
    assert first.span == second.span == (3, 60)


def test_classes_that_are_numbers_are_in_order() -> None:
    counts = {"a": np.array([[1, 2, 300]]), "b": np.zeros((1, 3), dtype=np.int64)}
    [chart] = partition_charts(counts, ["10", "9", "1"])
    assert chart.columns == ["1", "9", "10"]
    assert np.nan_to_num(chart.cells).tolist() == [[300, 2, 1], [0, 0, 0]]
    assert chart.log
    assert "holds between 0 and 3 classes, and 0 to 303 samples" in chart.text
