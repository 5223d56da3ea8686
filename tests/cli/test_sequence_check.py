"""``fedproto data check`` on labelled sequences, as a person calls it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.cli.conftest import Fedproto, rows
from tests.data.images.made_images import write_folder
from tests.helpers.real_data import real_data

GIVEN_SCHEME = "--set=data.clusters.scheme=given"


def archive(path: Path, labels: np.ndarray, clients: np.ndarray | None = None) -> Path:
    """Sequences of 3 to 5 steps of three values each. labels, clients: [n]."""
    lengths = 3 + np.arange(len(labels)) % 3
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    points = np.random.default_rng(0).normal(size=(int(offsets[-1]), 3))
    client_array = {} if clients is None else {"client": clients}
    np.savez(path, points=points, offsets=offsets, label=labels, **client_array)
    return path


def test_classes_and_what_dealing_them_comes_to(check: Fedproto, tmp_path: Path) -> None:
    data = archive(tmp_path / "x.npz", np.arange(120) % 4)
    outcome = check(
        data, *(f"--set=data.clusters.{key}" for key in ("clients=6", "clusters=2", "beta=0.5"))
    )
    assert outcome.code == 0, outcome.err
    table = rows(outcome.out)
    assert table[0] == ["class", "sequences", "clients", "cluster-0", "cluster-1"]
    assert [row[:2] for row in table[1:5]] == [[str(label), "30"] for label in range(4)]
    for column in (3, 4):  # each cluster's mix
        assert sum(int(row[column].rstrip("%")) for row in table[1:5]) in range(98, 103)
    assert table[1][3:] != ["25%", "25%"]
    assert "sequence-npz, for task = 'sequence-classification'" in outcome.out
    assert "3 shortest, 4 median, 5 longest, in steps" in outcome.out
    assert "dirichlet: clients 6, clusters 2, beta 0.5" in outcome.out
    assert "6, of them 6 usable" in outcome.out
    assert "clients in cluster-0 3, cluster-1 3" in outcome.out
    assert ["train", "14", "sequences", "a", "client"] in table
    assert ["validation", "2", "sequences", "a", "client"] in table
    assert ["test", "4", "sequences", "a", "client"] in table


def test_given_clients_a_hint_and_a_picture(check: Fedproto, tmp_path: Path) -> None:
    labels, clients = np.arange(60) % 2, np.repeat(["ann", "bob", "[red]cid"], [30, 28, 2])
    data, picture = archive(tmp_path / "x.npz", labels, clients), tmp_path / "mix.png"
    dealt = check(data, "--set=data.clusters.clients=3")
    assert "3: [red]cid, ann, bob" in dealt.out
    assert "scheme=given takes the source's own clients" in dealt.out
    outcome = check(data, "--picture", picture)
    assert outcome.code == 0, outcome.err
    assert "--set data.clusters.scheme=given" in outcome.out
    assert "given: clients as the source has them" in outcome.out
    assert "3, of them 2 usable" in outcome.out
    assert "refused [red]cid: no validation sequence among its 2: data.train-share" in outcome.out
    assert f"picture: {picture}" in outcome.out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_steps_and_scaling(check: Fedproto, tmp_path: Path) -> None:
    labels = np.arange(60) % 2
    np.savez(tmp_path / "x.npz", x=np.full((60, 1, 2), 7.0), y=labels)
    scaled = check(tmp_path / "x.npz")
    assert "60: all steps equal, or only one; scaling sequence turns them into zeros" in scaled.out
    assert "0 … 0, scaling sequence" in scaled.out
    raw = check(
        archive(tmp_path / "y.npz", labels),
        *(f"--set=data.sequences.{key}" for key in ("scaling=none", "steps=4")),
    )
    assert "constant" not in raw.out
    assert "20 sequences resampled to 4" in raw.out
    assert ", scaling none" in raw.out


def test_a_level_that_scaling_would_take_away(check: Fedproto, tmp_path: Path) -> None:
    labels = np.arange(60) % 2
    steps = np.random.default_rng(0).normal(size=(60, 5, 2))
    np.savez(tmp_path / "like.npz", x=steps, y=labels)
    np.savez(tmp_path / "apart.npz", x=steps + 3 * labels[:, None, None] * [0, 1], y=labels)
    warned = check(tmp_path / "apart.npz")
    assert "of the variance of the sequences' mean 'dimension-2'" in warned.out
    assert "try --set data.sequences.scaling=none or client" in " ".join(warned.out.split())
    for quiet in (
        check(tmp_path / "apart.npz", "--set=data.sequences.scaling=client"),
        check(tmp_path / "like.npz"),
    ):
        assert "between classes" not in quiet.out


def test_values_that_no_run_can_train_on_are_told(check: Fedproto, tmp_path: Path) -> None:
    targets = np.where(np.arange(30) == 7, -1e20, 0.5)
    data = archive(tmp_path / "x.npz", targets)
    outcome = check(data, GIVEN_SCHEME)
    assert "warning x: values up to 1e+20 in size" in outcome.out


def recordings(root: Path) -> Path:
    """Two clients with 60 steps, one with 15."""
    files = {
        f"{name}.csv": "\n".join(["u,charge", *(f"{t % 7},{t}" for t in range(steps))]).encode()
        for name, steps in (("ann", 60), ("bob", 60), ("cid", 15))
    }
    return write_folder(root, files)


def test_recordings_and_the_range_of_their_target(check: Fedproto, tmp_path: Path) -> None:
    outcome = check(
        *(recordings(tmp_path), "--source", "recordings", GIVEN_SCHEME, "--set=data.max-steps=40"),
        *(f"--set=data.sequences.{key}" for key in ("target=charge", "window=20", "stride=5")),
    )
    assert outcome.code == 0, outcome.err
    table = rows(outcome.out)
    assert table[0] == ["client", "group", "train", "validation", "test", "target"]
    assert table[1] == ["ann", "-", "3", "1", "1", "19", "…", "39"]
    assert table[3] == ["cid", "-", "0", "0", "0", "-"]
    assert "19 … 39, median 29: real numbers" in outcome.out
    assert "1: u" in outcome.out
    assert "refused cid: no sequence of data.sequences.window = 20 steps" in outcome.out


def test_real_targets_cannot_be_dealt(check: Fedproto) -> None:
    source = ("--source", "synthetic-air-writing", "--set=data.sequences.target=seconds")
    assert check(*source).code == 0  # by the writers
    outcome = check(*source, "--set=data.clusters.clients=5")
    assert outcome.code == 1
    assert "2: left, right" in outcome.out
    assert "refused data.clusters.scheme = 'dirichlet': clusters differ in" in outcome.out


def test_basic_motions_of_the_archive(check: Fedproto) -> None:
    folder = real_data("BasicMotions")
    outcome = check(folder, GIVEN_SCHEME)
    assert outcome.code == 0, outcome.err
    assert "80, 40 of them test" in outcome.out
    assert "the source names no clients, so one has all" in outcome.out
    assert ["Badminton", "20", "1"] in rows(outcome.out)
