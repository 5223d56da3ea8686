"""The picture of what the encoder makes: the right targets, silence where it cannot be drawn."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from fedproto_app.tasks.sequences.embedding_picture import (
    Embeddings,
    draw_embeddings,
    embedding_picture,
    main_plane,
    read_embeddings,
)
from matplotlib.colors import to_rgb

from fedproto_app.data.sequences.clients import ClientSequences, LabelledSequences
from fedproto_app.data.shape import DataShape
from fedproto_app.data.shard import Shard
from fedproto_app.errors import FedProtoError
from fedproto_app.node.store import ClientStore
from fedproto_app.report.runs import read_run
from fedproto_app.settings import Settings, settings_from
from tests.report.made_sequences import make_sequence_run


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
    found = read_embeddings(run, settings_of(run))
    assert found.targets.tolist() == [0, 1, 2, 1, 2, 0, 0]
    assert found.vectors[:, 1].tolist() == [1, 36, 121, 256, 1, 6, 11]
    assert found.clients.tolist() == ["client-000"] * 4 + ["client-001"] * 3
    assert found.groups.tolist() == ["x"] * 4 + ["y"] * 3
    assert found.classes == ("ant", "bee", "cat")


def test_a_simulation_gets_the_picture_and_keeps_its_state(run: Path) -> None:
    state = sorted((run / "state").rglob("*"))
    [(name, figure)] = embedding_picture(run).items()
    assert name == "embeddings.png"
    assert [axes.get_title() for axes in figure.axes] == ["by class", "by true group"]
    assert sorted((run / "state").rglob("*")) == state


@pytest.mark.parametrize("clients", ["one", "none"])
def test_only_clients_with_vectors_are_shown(run: Path, clients: str) -> None:
    for name in ("client-000", "client-001")[clients == "one" :]:
        (run / "state" / "n" / f"c-{name}" / "vectors.safetensors").unlink()
    if clients == "one":
        assert set(read_embeddings(run, settings_of(run)).clients) == {"client-000"}
    else:
        assert embedding_picture(run) == {}


def test_deployed_nodes_keep_their_state(run: Path) -> None:
    (run / "state").rename(run / "elsewhere")
    assert embedding_picture(run) == {}


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
        assert embedding_picture(run) == {}
    assert "has 2 sequences" in caplog.text
    monkeypatch.setattr("fedproto_app.tasks.sequences.clients.load_shard", lambda *_: Shard({}, {}))
    with pytest.raises(FedProtoError, match="'client-000' is not in the data"):
        read_embeddings(run, settings_of(run))


def test_vectors_of_two_encoders_are_not_mixed(run: Path) -> None:
    ClientStore(run / "state" / "n").write_vectors("client-001", "other", torch.zeros(3, 5))
    with pytest.raises(FedProtoError, match="different encoders"):
        read_embeddings(run, settings_of(run))


def test_a_damaged_file_costs_the_picture_only(run: Path) -> None:
    [file] = (run / "state").rglob("c-client-001/vectors.safetensors")
    file.write_bytes(file.read_bytes()[:20])
    assert embedding_picture(run) == {}


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


def test_targets_that_are_numbers_have_a_colour_bar_and_unknown_groups_show_clients(
    tmp_path: Path,
) -> None:
    draws = np.random.default_rng(0)
    names = np.repeat([f"c{number}" for number in range(25)], 160)  # more than is shown or named
    found = Embeddings(
        draws.normal(size=(4000, 4)).astype(np.float32),
        draws.normal(size=4000),
        (),
        names,
        np.array([""] * 4000),
    )
    figure = draw_embeddings(found, "run")
    left, right, bar = figure.axes
    assert (left.get_title(), right.get_title()) == ("by target", "by client")
    assert bar.get_xlabel() == "target"
    assert len(left.collections[0].get_offsets()) == 3000
    assert right.get_legend() is None
    figure.savefig(tmp_path / "embeddings.png", dpi=20)


def test_a_point_has_the_colour_of_its_class() -> None:
    vectors = np.array([[0, 0], [1, 0], [9, 1], [8, 0]], dtype=np.float32)
    labels = np.array([1, 1, 0, 0])
    clients = np.array(["a", "b", "a", "b"])
    figure = draw_embeddings(Embeddings(vectors, labels, ("ant", "bee"), clients, clients), "run")
    plane, _ = main_plane(vectors)
    for axes, kinds in zip(figure.axes, (labels, np.array([0, 1, 0, 1])), strict=True):
        [dots] = axes.collections
        handles = axes.get_legend().legend_handles
        expected = [handles[kind].get_color() for kind in kinds]
        at = {tuple(place): colour for place, colour in zip(plane.tolist(), expected, strict=True)}
        offsets = np.asarray(dots.get_offsets()).tolist()
        for place, colour in zip(offsets, dots.get_facecolors(), strict=True):
            assert tuple(colour[:3]) == pytest.approx(to_rgb(at[tuple(place)]))
