"""Pictures of clusters: the right clients in the right rows, and what is unknown left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fedproto_app.tasks.sequences.cluster_pictures import (
    Clusters,
    cluster_pictures,
    draw_similarity,
    draw_timeline,
    group_bounds,
    read_clusters,
)

from tests.report.made_sequences import make_sequence_run


def write(folder: Path, **changes: Any) -> Path:
    """clusters.npz of four clients in three rounds; a None leaves an array out."""
    similarity = np.arange(16, dtype=np.float32).reshape(1, 4, 4)
    arrays = {
        "names": np.array(["d", "a", "c", "b"]),
        "nodes": np.array(["n"] * 4),
        "groups": np.array(["y", "y", "x", "x"]),
        "rounds": np.array([3, 4, 6]),
        "labels": np.array([[0, 1, 2, -1], [0, 1, 2, 2], [1, 1, 0, 0]]),
        "forgetting_factor": np.array([0.0, 0.5, 0.25]),
        "rand_index": np.array([0.5, 0.75, 1.0]),
        "similarity": similarity,
        "similarity_rounds": np.array([6]),
        **changes,
    }
    folder.mkdir(exist_ok=True)
    np.savez(folder / "clusters.npz", **{k: v for k, v in arrays.items() if v is not None})
    return folder


def read(folder: Path) -> Clusters:
    return read_clusters(folder / "clusters.npz")


def test_clients_stand_by_true_group_then_name(tmp_path: Path) -> None:
    found = read(write(tmp_path))
    assert found.names.tolist() == ["b", "c", "a", "d"]
    assert found.groups.tolist() == ["x", "x", "y", "y"]
    assert found.labels.tolist() == [[-1, 2, 1, 0], [2, 2, 1, 0], [0, 0, 1, 1]]
    # b is the fourth row and column of the file, c the third.
    assert found.similarity[0, :2].tolist() == [[15, 14, 13, 12], [11, 10, 9, 8]]


def test_without_groups_clients_stand_by_their_last_cluster(tmp_path: Path) -> None:
    found = read(write(tmp_path, groups=np.array([""] * 4), labels=np.array([[0, 2, 0, 1]] * 3)))
    assert found.names.tolist() == ["c", "d", "b", "a"]


def test_groups_side_by_side_have_bounds() -> None:
    assert group_bounds(np.array(["x", "x", "y", "z"])) == [0, 2, 3, 4]
    assert group_bounds(np.array(["x"])) == [0, 1]


def test_the_timeline_has_a_row_a_client_and_a_column_a_round(tmp_path: Path) -> None:
    figure = draw_timeline(read(write(tmp_path)), "run")
    [axes] = figure.axes
    [image] = axes.images
    drawn = np.asarray(image.get_array()).tolist()
    # Nobody answered in round 5.
    assert drawn == [[-1, 2, -1, 0], [2, 2, -1, 0], [1, 1, -1, 1], [0, 0, -1, 1]]
    assert image.get_extent() == [2.5, 6.5, 3.5, -0.5]
    colours = image.cmap(image.norm(np.array([-1, 0, 1, 2])))
    assert len(np.unique(colours, axis=0)) == 4
    assert [text.get_text() for text in axes.get_yticklabels()] == ["b", "c", "a", "d"]
    [right] = axes.child_axes
    assert [text.get_text() for text in right.get_yticklabels()] == ["x", "y"]
    assert right.get_yticks().tolist() == [0.5, 2.5]
    [legend] = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["cluster 0", "cluster 1", "cluster 2", "none"]


def test_all_heat_maps_share_the_scale_of_what_lies_beside_the_diagonal(tmp_path: Path) -> None:
    matrix = np.array([[1, 0.25], [0.25, 1]], dtype=np.float32)
    unheard = np.array([[1, np.nan], [np.nan, np.nan]], dtype=np.float32)
    found = read(
        write(
            tmp_path,
            names=np.array(["a", "b"]),
            groups=np.array(["x", "y"]),
            labels=np.zeros((3, 2), dtype=np.int64),
            similarity=np.stack([unheard, matrix, 2 * matrix]),
            similarity_rounds=np.array([3, 4, 6]),
        )
    )
    figure = draw_similarity(found, "run")
    shown = [axes for axes in figure.axes if axes.images and axes.get_title()]
    assert [axes.get_title() for axes in shown] == ["round 3", "round 4", "round 6"]
    assert {axes.images[0].get_clim() for axes in shown} == {(0.25, 0.5)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["clusters.png", "similarity.png", "forgetting.png"]),
        # IFCA has neither; of so many clients no matrix is kept.
        (
            {
                "similarity": None,
                "similarity_rounds": None,
                "forgetting_factor": np.full(3, np.nan),
            },
            ["clusters.png", "forgetting.png"],
        ),
        (
            {"rand_index": np.full(3, np.nan), "forgetting_factor": np.full(3, np.nan)},
            ["clusters.png", "similarity.png"],
        ),
    ],
)
def test_what_is_unknown_is_left_out(
    tmp_path: Path, changes: dict[str, Any], expected: list[str]
) -> None:
    assert list(cluster_pictures(write(tmp_path, **changes))) == expected


def test_a_method_without_clusters_has_no_such_pictures(tmp_path: Path) -> None:
    assert cluster_pictures(tmp_path) == {}


@pytest.mark.parametrize(
    ("clients", "groups", "known"), [(1, 1, True), (45, 30, True), (45, 9, False)]
)
def test_few_and_many_clients_and_clusters_can_be_drawn(
    tmp_path: Path, clients: int, groups: int, known: bool
) -> None:
    run = make_sequence_run(
        tmp_path / "a", clients=clients, groups=groups, rounds=2, known_groups=known
    )
    for name, figure in cluster_pictures(run).items():
        figure.savefig(tmp_path / name, dpi=20)
        assert (tmp_path / name).stat().st_size > 0
