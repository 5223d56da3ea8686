"""Charts of clusters and embeddings: the right clients in the right places."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.errors import FedProtoError
from fedproto_app.data.sequences.clients import ClientSequences, LabelledSequences
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.node.store import ClientStore
from fedproto_app.report.runs import read_run
from fedproto_app.report.sequences.charts import (
    Clusters,
    Embeddings,
    embedding_charts,
    main_plane,
    pictures,
    read_clusters,
    read_embeddings,
    similarities,
    timeline,
)
from fedproto_app.settings import Settings, settings_from
from tests.report.made_sequences import make_sequence_run


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


def part(*targets: int) -> LabelledSequences:
    return LabelledSequences([np.zeros((2, 3), np.float32)] * len(targets), np.array(targets))


CLIENTS = {
    "client-000": ClientSequences("client-000", part(0, 1), part(2), part(1), "x"),
    "client-001": ClientSequences("client-001", part(2), part(0), part(0), "y"),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose two clients have vectors of 4 and 3 sequences on the disk of their node."""
    folder = make_sequence_run(tmp_path / "run", clients=2, groups=2, rounds=1)
    store = ClientStore(folder / "state" / "n")
    store.write_vectors("client-000", "digest", torch.arange(20.0).reshape(4, 5) ** 2)
    store.write_vectors("client-001", "digest", torch.arange(15.0).reshape(3, 5))
    shard = Shard(CLIENTS, {}, DataShape((3,), ("ant", "bee", "cat")))
    monkeypatch.setattr("fedproto_app.tasks.sequences.clients.load_shard", lambda *_: shard)
    return folder


def settings_of(run: Path) -> Settings:
    return settings_from(read_run(run).settings)


def test_vectors_meet_the_targets_of_train_then_validation_then_test(run: Path) -> None:
    embeddings = read_embeddings(run, settings_of(run))
    assert embeddings.targets.tolist() == [0, 1, 2, 1, 2, 0, 0]
    assert embeddings.vectors[:, 1].tolist() == [1, 36, 121, 256, 1, 6, 11]
    assert embeddings.clients.tolist() == ["client-000"] * 4 + ["client-001"] * 3
    assert embeddings.groups.tolist() == ["x"] * 4 + ["y"] * 3
    assert embeddings.classes == ("ant", "bee", "cat")


def test_a_simulation_gets_the_picture_and_keeps_its_state(run: Path) -> None:
    state = sorted((run / "state").rglob("*"))
    charts = pictures(run)["embeddings.png"]
    assert [chart.title for chart in charts] == [
        "7 sequences by class",
        "7 sequences by true group",
    ]
    assert sorted((run / "state").rglob("*")) == state


def without_vectors(run: Path, *clients: str) -> None:
    for name in clients:
        (run / "state" / "n" / f"c-{name}" / "vectors.safetensors").unlink()


def damaged(run: Path) -> None:
    [file] = (run / "state").rglob("c-client-001/vectors.safetensors")
    file.write_bytes(file.read_bytes()[:20])


def test_only_clients_with_vectors_are_shown(run: Path) -> None:
    without_vectors(run, "client-001")
    assert set(read_embeddings(run, settings_of(run)).clients) == {"client-000"}


@pytest.mark.parametrize(
    "harm",
    [
        lambda run: without_vectors(run, *CLIENTS),
        lambda run: (run / "state").rename(run / "elsewhere"),  # deployed nodes keep their state
        damaged,
    ],
)
def test_what_cannot_be_read_costs_the_picture_only(
    run: Path, harm: Callable[[Path], object]
) -> None:
    harm(run)
    assert "embeddings.png" not in pictures(run)


def test_other_data_are_noticed_and_the_picture_left_out(
    run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fewer = {**CLIENTS, "client-001": ClientSequences("client-001", part(2), part(), part(0))}
    monkeypatch.setattr(
        "fedproto_app.tasks.sequences.clients.load_shard", lambda *_: Shard(fewer, {})
    )
    with pytest.raises(FedProtoError, match="'client-001' has 2 sequences, but had 3"):
        read_embeddings(run, settings_of(run))
    with caplog.at_level(logging.INFO):
        assert "embeddings.png" not in pictures(run)
    assert "has 2 sequences" in caplog.text
    monkeypatch.setattr("fedproto_app.tasks.sequences.clients.load_shard", lambda *_: Shard({}, {}))
    with pytest.raises(FedProtoError, match="'client-000' is not in the data"):
        read_embeddings(run, settings_of(run))


def test_vectors_of_two_encoders_are_not_mixed(run: Path) -> None:
    ClientStore(run / "state" / "n").write_vectors("client-001", "other", torch.zeros(3, 5))
    with pytest.raises(FedProtoError, match="different encoders"):
        read_embeddings(run, settings_of(run))


def test_the_plane_by_hand() -> None:
    """Around (9, 9, 9): widest along (0.6, −0.8, 0), whose sign turns, then along the third."""
    along = np.array([3.0, -3.0, 0.0, 0.0])[:, None] * [0.6, -0.8, 0]
    across = np.array([0.0, 0.0, 1.0, -1.0])[:, None] * [0, 0, 1]
    plane, shares = main_plane(9 + along + across)
    np.testing.assert_allclose(plane, [[-3, 0], [3, 0], [0, 1], [0, -1]], atol=1e-12)
    np.testing.assert_allclose(shares, [0.9, 0.1])


@pytest.mark.parametrize("vectors", [np.ones((1, 3)), np.ones((4, 3)), np.arange(4.0)[:, None]])
def test_few_dimensions_and_equal_vectors_have_a_plane_too(vectors: np.ndarray) -> None:
    plane, shares = main_plane(vectors)
    assert plane.shape == (len(vectors), 2)
    assert np.isfinite(plane).all()
    assert (plane[:, 1] == 0).all()
    assert len(shares) == 2
    assert sum(shares) <= 1 + 1e-9


def test_of_many_points_some_are_shown_in_any_order() -> None:
    draws = np.random.default_rng(0)
    vectors = draws.normal(size=(4000, 4)).astype(np.float32)
    names = np.repeat([f"c{number}" for number in range(25)], 160)
    embeddings = Embeddings(vectors, draws.normal(size=4000), (), names, np.array([""] * 4000))
    by_target, by_client = embedding_charts(embeddings)
    assert by_target.title == "3000 of 4000 sequences by target"
    assert (by_target.kinds, len(by_target.places)) == ((), 3000)
    assert by_client.title == "3000 of 4000 sequences by client"
    assert len(by_client.kinds) == 25


def test_a_point_has_the_colour_of_its_class() -> None:
    vectors = np.array([[0, 0], [1, 0], [9, 1], [8, 0]], dtype=np.float32)
    labels, owners = np.array([1, 1, 0, 0]), np.array([0, 1, 0, 1])
    clients = np.array(["a", "b"])[owners]
    charts = embedding_charts(Embeddings(vectors, labels, ("ant", "bee"), clients, clients))
    plane, _ = main_plane(vectors)
    for chart, kinds in zip(charts, (labels, owners), strict=True):
        expected = {tuple(place): kind for place, kind in zip(plane, kinds, strict=True)}
        assert {tuple(p): k for p, k in zip(chart.places, chart.values, strict=True)} == expected
