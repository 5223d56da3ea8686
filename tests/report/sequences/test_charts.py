"""Charts of clusters: the right clients in the right places."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedproto_app.report.sequences.charts import (
    Clusters,
    pictures,
    read_clusters,
    similarities,
    timeline,
)


def write(folder: Path, **changes: Any) -> Path:
    """clusters.npz of four clients in three rounds, where None leaves an array out."""
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


def test_clients_are_sorted_by_true_group_then_name(tmp_path: Path) -> None:
    chart = read(write(tmp_path))
    assert chart.names.tolist() == ["b", "c", "a", "d"]
    assert chart.groups.tolist() == ["x", "x", "y", "y"]
    assert chart.labels.tolist() == [[-1, 2, 1, 0], [2, 2, 1, 0], [0, 0, 1, 1]]
    # b is the fourth row and column of the file, c the third.
    assert chart.similarity[0, :2].tolist() == [[15, 14, 13, 12], [11, 10, 9, 8]]


def test_without_groups_clients_are_sorted_by_their_last_cluster(tmp_path: Path) -> None:
    chart = read(write(tmp_path, groups=np.array([""] * 4), labels=np.array([[0, 2, 0, 1]] * 3)))
    assert chart.names.tolist() == ["c", "d", "b", "a"]


def test_the_timeline_has_a_row_a_client_and_a_column_a_round(tmp_path: Path) -> None:
    chart = timeline("run", read(write(tmp_path)))
    # Nobody answered in round 5.
    expected = [[-1, 2, -1, 0], [2, 2, -1, 0], [1, 1, -1, 1], [0, 0, -1, 1]]
    assert np.nan_to_num(chart.cells, nan=-1).tolist() == expected
    assert list(chart.columns) == ["3", "4", "5", "6"]
    assert list(chart.rows) == ["b", "c", "a", "d"]
    assert list(chart.groups) == ["x", "x", "y", "y"]
    assert list(chart.kinds) == ["cluster 0", "cluster 1", "cluster 2"]
    assert "3 of 4 clients changed theirs" in chart.text


def test_heat_maps_share_the_scale_of_off_diagonal_values(tmp_path: Path) -> None:
    matrix = np.array([[1, 0.25], [0.25, 1]], dtype=np.float32)
    unheard = np.array([[1, np.nan], [np.nan, np.nan]], dtype=np.float32)
    clusters = read(
        write(
            tmp_path,
            names=np.array(["a", "b"]),
            groups=np.array(["x", "y"]),
            labels=np.zeros((3, 2), dtype=np.int64),
            similarity=np.stack([unheard, matrix, 2 * matrix]),
            similarity_rounds=np.array([3, 4, 6]),
        )
    )
    charts = similarities("run", clusters)
    assert [chart.title for chart in charts] == [
        f"run: similarity after round {number}" for number in (3, 4, 6)
    ]
    assert {chart.span for chart in charts} == {(0.25, 0.5)}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ["clusters.png", "similarity.png", "forgetting.png"]),
        # IFCA has neither, and no matrix is kept for so many clients.
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
def test_unknown_values_are_left_out(
    tmp_path: Path, changes: dict[str, Any], expected: list[str]
) -> None:
    assert list(pictures(write(tmp_path, **changes))) == expected


def test_a_method_without_clusters_has_no_such_pictures(tmp_path: Path) -> None:
    assert pictures(tmp_path) == {}
