"""Pictures are drawn from what is there, and clients are ordered so that alike ones meet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedproto_app.tasks.forecasting.divergence_picture import alike_together
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedproto_app.errors import FedProtoError
from fedproto_app.maths.even_choice import evenly
from fedproto_app.report.pictures import comparison_figure, draw, draw_comparison
from fedproto_app.report.runs import group_runs, read_run, read_task
from fedproto_app.tasks import partition_picture
from fedproto_app.tasks.forecasting import divergence_picture
from fedproto_app.tasks.table import report_for
from tests.report.made_runs import (
    add_divergence,
    classification_record,
    make_classification_run,
    make_run,
)

PNG = b"\x89PNG"


def figures_of(run: Path) -> dict[str, Figure]:
    """The run's pictures before they are files."""
    return report_for(read_task(run)).pictures(run)


def lines_of(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The points of each labelled line, without the share 0 in which a distribution starts."""
    return {
        str(line.get_label()): [(float(x), float(y)) for x, y in line.get_xydata() if y > 0]
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def approximately(lines: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    return {label: [pytest.approx(point) for point in points] for label, points in lines.items()}


def test_a_run_of_fuels_gets_three_pictures(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", errors=(0.01, 0.5, float("nan"), None))
    add_divergence(run, ["x", "y", "x"], np.array([[0, 0.6, 0.1], [0.6, 0, np.nan], [0.1, 0.5, 0]]))
    files = draw(run)
    assert [file.name for file in files] == ["clients-mse.png", "rounds.png", "divergence.png"]
    assert all(file.parent == run / "pictures" for file in files)
    assert all(file.read_bytes().startswith(PNG) for file in files)

    clients, rounds, divergence = figures_of(run).values()
    [axes] = clients.axes
    assert (axes.get_title(), axes.get_xscale()) == ("a\n2 clients", "log")
    assert axes.get_xlabel() == "test MSE (standardised) of a client"
    shares = {"kept model": [(0.01, 0.5), (0.5, 1)], "last model": [(0.02, 0.5), (1, 1)]}
    assert lines_of(axes) == approximately(shares)

    by_round, by_cost = rounds.axes
    curves = {"training": (2, 1, 2 / 3), "validation": (1, 1 / 2, 1 / 3), "test": (1.5, 0.75, 0.5)}
    for axes, places in ((by_round, (1, 2, 3)), (by_cost, (300, 600, 900))):
        at = {name: list(zip(places, its, strict=True)) for name, its in curves.items()}
        assert lines_of(axes) == approximately(at)
    assert (by_round.get_xlabel(), by_round.get_ylabel()) == ("round", "MSE (standardised)")
    assert by_cost.get_xlabel() == "parameters sent up and down, all clients"

    matrix, bar = divergence.axes
    assert [label.get_text() for label in matrix.get_yticklabels()] == ["x", "y"]
    shown = np.asarray(matrix.images[0].get_array())
    np.testing.assert_allclose(shown[:2, :2], [[0, 0.1], [0.1, 0]])  # the two of x
    assert len(matrix.lines) == 2  # the borders between the groups
    assert bar.get_ylabel() == "Jensen-Shannon divergence (nats)\nof prototypes"


def test_an_unfinished_run_gets_what_its_artefacts_allow(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a")
    (run / "clients.csv").unlink()
    (run / "summary.json").unlink()
    assert [file.name for file in draw(run)] == ["rounds.png"]


@pytest.mark.parametrize("clients", [1, 3])
def test_few_clients_without_groups_can_be_drawn(tmp_path: Path, clients: int) -> None:
    run = make_run(tmp_path / "a", errors=(None,) * clients)
    add_divergence(run, [""] * clients, 1 - np.eye(clients))
    assert len(draw(run)) == 3


def test_a_folder_with_nothing_to_draw_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedProtoError, match=r"no clients\.csv, rounds\.jsonl or divergence\.npz"):
        draw(tmp_path)


def test_drawing_leaves_matplotlib_as_it_was(tmp_path: Path) -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    draw(make_run(tmp_path / "a"))
    assert dict(matplotlib.rcParams) == before


def test_a_comparison_is_one_picture(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / f"{dataset}-{method}", dataset=dataset, method=method)
        for dataset in ("m4", "milano")
        for method in ("fuels", "solo")
    ]
    file = tmp_path / "out" / "comparison.png"
    groups = group_runs([read_run(folder) for folder in folders])[0]
    draw_comparison(groups, file)
    assert file.read_bytes().startswith(PNG)

    panels = comparison_figure(groups).axes
    assert [axes.get_title() for axes in panels] == [
        "m4: error over clients",
        "m4: error and cost",
        "milano: error over clients",
        "milano: error and cost",
    ]
    for left, right in zip(panels[::2], panels[1::2], strict=True):
        errors, costs = [(0.25, 0.5), (0.5, 1)], [(300, 1.5), (600, 0.75), (900, 0.5)]
        assert lines_of(left) == approximately({"fuels": errors, "solo": errors})
        assert lines_of(right) == approximately({"fuels": costs, "solo": costs})
        styles = [[line.get_color() for line in axes.lines] for axes in (left, right)]
        assert styles[0] == styles[1]  # a method looks the same everywhere
        assert right.get_xscale() == "symlog"


def test_alike_clients_meet_in_the_order() -> None:
    near, far = 0.1, 0.6
    cluster = np.array([0, 1, 0, 1, 0])
    divergence = np.where(cluster[:, None] == cluster, near, far)
    np.fill_diagonal(divergence, 0)
    order = alike_together(divergence, np.array([""] * 5))
    assert sorted(order) == [0, 1, 2, 3, 4]
    assert np.count_nonzero(np.diff(cluster[order])) == 1  # one border between the two


def test_true_groups_come_before_clustering() -> None:
    groups = np.array(["b", "a", "b", "a"])
    order = alike_together(np.ones((4, 4)) - np.eye(4), groups)
    assert list(groups[order]) == ["a", "a", "b", "b"]


def test_of_many_clients_every_group_is_shown_by_its_share() -> None:
    groups = np.array(["a", "b"] * 500 + ["c"] * 1000)
    shown = evenly(groups, 100)
    assert len(set(shown)) == 100
    assert (np.diff(shown) > 0).all()
    assert {g: int((groups[shown] == g).sum()) for g in "abc"} == {"a": 25, "b": 25, "c": 50}
    np.testing.assert_array_equal(evenly(np.array([""] * 7), 100), range(7))
    assert len(evenly(np.array([], dtype=np.str_), 100)) == 0


def test_a_file_with_the_matrix_of_some_names_these(tmp_path: Path) -> None:
    add_divergence(tmp_path, ["a", "b", "a", "b"], np.zeros((4, 4)))
    with np.load(tmp_path / "divergence.npz") as file:
        whole = dict(file)
    matrix = np.array([[0, 0.5], [0.5, 0]], np.float32)
    some = whole | {"divergence": matrix, "divergence_of": np.array([1, 2])}
    np.savez(tmp_path / "divergence.npz", allow_pickle=False, **some)
    names, groups, cells, total = divergence_picture.read_divergence(tmp_path)
    assert names.tolist() == ["c2", "c1"]
    assert groups.tolist() == ["a", "b"]
    assert np.array_equal(cells, matrix)
    assert total == 4


def test_only_the_clients_shown_are_clustered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clustered: list[tuple[int, ...]] = []

    def spy(divergence: np.ndarray, groups: np.ndarray) -> np.ndarray:
        clustered.append(divergence.shape)
        return alike_together(divergence, groups)

    monkeypatch.setattr(divergence_picture, "alike_together", spy)
    monkeypatch.setattr(divergence_picture, "_MOST_CLIENTS", 10)
    run = make_run(tmp_path / "a")
    add_divergence(run, [""] * 35, 1 - np.eye(35))
    assert len(draw(run)) == 3
    assert clustered == [(10, 10)]


CLASSIFICATION = [
    "clients-accuracy.png",
    "rounds.png",
    "stages.png",
    "classes.png",
    "partition.png",
]


@pytest.mark.parametrize("averages", [True, False])
def test_a_run_of_a_classifier_gets_five_pictures(tmp_path: Path, averages: bool) -> None:
    files = draw(make_classification_run(tmp_path / "a", (0.25, 0.5, None), averages))
    assert [file.name for file in files] == CLASSIFICATION
    assert all(file.read_bytes().startswith(PNG) for file in files)


def test_what_the_pictures_of_a_classifier_show(tmp_path: Path) -> None:
    run = make_classification_run(tmp_path / "a", (0.25, 0.5, None))
    clients, rounds, stages, classes, _ = figures_of(run).values()
    [axes] = clients.axes
    assert axes.get_title() == "a\n2 clients"
    own, averaged = [(25, 0.5), (50, 1)], [(15, 0.5), (40, 1)]
    expected = {"own model = kept model": own, "averaged model": averaged}
    assert lines_of(axes) == approximately(expected)

    curves = lines_of(rounds.axes[0])
    assert curves["own model (A_loc)"] == [pytest.approx(at) for at in [(1, 25), (2, 50), (3, 75)]]
    assert [y for _, y in curves["validation images"]] == pytest.approx([50, 75, 250 / 3])
    assert len(curves) == 4

    local, shared = stages.axes
    assert (local.get_title(), shared.get_title()) == ("own model", "averaged model")
    later = [(2, 20), (3, 30)]
    first = [(1, 90), (2, 45), (3, 30)]
    assert lines_of(local) == approximately({"stage 1": first, "stage 2": later})

    front, behind = classes.axes
    assert [label.get_text() for label in front.get_xticklabels()] == ["ant", "bee", "cat"]
    assert [bar.get_height() for bar in behind.patches] == [90, 9, 3]
    assert [text.get_text() for text in front.texts] == ["many", "medium", "few"]
    known = {label: line[:2] for label, line in lines_of(front).items()}
    by_class = {"own model": [(0, 100), (1, 25)], "averaged model": [(0, 75), (1, 50)]}
    assert known == approximately(by_class)


def test_without_averaging_there_is_no_line_of_an_averaged_model(tmp_path: Path) -> None:
    figures = figures_of(make_classification_run(tmp_path / "a", (0.25, 0.5), averages=False))
    assert "averaged model" not in lines_of(figures["clients-accuracy.png"].axes[0])
    assert [axes.get_title() for axes in figures["stages.png"].axes] == ["own model"]


def test_an_unfinished_classifier_gets_what_its_artefacts_allow(tmp_path: Path) -> None:
    run = make_classification_run(tmp_path / "a")
    for name in ("clients.csv", "classes.csv", "summary.json"):
        (run / name).unlink()
    assert [file.name for file in draw(run)] == ["rounds.png", "stages.png", "partition.png"]


def test_one_stage_needs_no_picture_of_stages(tmp_path: Path) -> None:
    run = make_classification_run(tmp_path / "a")
    line = classification_record(1, stages_local=[0.5], stages_global=[0.25])
    (run / "rounds.jsonl").write_text(json.dumps(line) + "\n")
    (run / "partition.csv").unlink()  # as in a deployment
    classes = "class,train_samples,third,test_samples,accuracy_global,accuracy_local\nx,,,4,,0.5\n"
    (run / "classes.csv").write_text(classes)
    assert [file.name for file in draw(run)] == [CLASSIFICATION[0], "rounds.png", "classes.png"]


def test_the_partition_is_drawn_with_all_stages_and_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[dict[str, list[list[int]]], list[str]]] = []

    def spy(counts: dict[str, np.ndarray], classes: list[str]) -> Figure:
        drawn.append(({client: table.tolist() for client, table in counts.items()}, list(classes)))
        return Figure()

    monkeypatch.setattr(partition_picture, "draw_partition_picture", spy)
    draw(make_classification_run(tmp_path / "a"))
    # The classes in the order of the labels, not of their first appearance.
    assert drawn == [({"c0": [[0, 60, 0], [0, 0, 3]], "c1": [[9, 30, 0]]}, ["bee", "ant", "cat"])]


def test_both_tasks_fit_one_comparison(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / "a"),
        make_classification_run(tmp_path / "b"),
        make_classification_run(tmp_path / "c", method="solo", averages=False),
    ]
    file = tmp_path / "comparison.png"
    groups = group_runs([read_run(folder) for folder in folders])[0]
    draw_comparison(groups, file)
    assert file.read_bytes().startswith(PNG)
    titles = {axes.get_title(): set(lines_of(axes)) for axes in comparison_figure(groups).axes}
    titles = {title: its for title, its in titles.items() if title.endswith("over clients")}
    assert titles == {
        "shapes: accuracy of own models over clients": {"fedavg", "solo"},
        "toy: error over clients": {"fuels"},
    }
