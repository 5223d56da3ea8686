"""The cross-check against another library: its exports and its tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.cross_check import split
from benchmarks.cross_check.comparison import Figures, equality_table, paired, spread_table
from benchmarks.cross_check.methods import EPOCHS, METHODS, RATE, ROWS, TWICE, filled
from benchmarks.cross_check.network import SmallNetwork
from fedproto_app.data.images.clients import LabelledImages
from fedproto_app.settings import settings_from
from fedproto_app.tasks.table import load_shard

CLIENTS = 4
SEED = 3


def labelled(images: LabelledImages) -> list[tuple[bytes, int]]:
    pairs = zip(images.pixels, images.labels.tolist(), strict=True)
    return [(pixels.tobytes(), label) for pixels, label in pairs]


def test_both_sides_read_the_apps_split(tmp_path: Path) -> None:
    dealt = split.deal(CLIENTS, SEED)
    arrays = split.archive(dealt, SEED)
    path = tmp_path / "images.npz"
    split.write(arrays, path)

    settings = settings_from({**split.data_settings(path, SEED), "method": "fedavg"})
    read = load_shard(settings, 0, 1)
    assert sorted(read.clients) == sorted(dealt.clients)
    sizes = []
    for name in sorted(dealt.clients):
        before, after = (vars(shard.clients[name])["stages"][0] for shard in (dealt, read))
        np.testing.assert_array_equal(after.test.pixels, before.test.pixels)
        np.testing.assert_array_equal(after.test.labels, before.test.labels)
        labels = labelled(after.train)
        assert set(labels) <= set(labelled(before.train))
        assert len(after.validation) == 0
        sizes.append(len(labels))
    # Each client is dealt 405, and a quarter, a half, three quarters or all of them stay.
    assert sizes == [101, 202, 304, 405]
    assert split.largest_client(arrays) == 405


def test_both_sides_start_from_the_parameters_of_the_module(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    split.write(split.archive(split.deal(CLIENTS, SEED), SEED), path)
    parameters = split.start(path, SEED)
    network = SmallNetwork((1, 8, 8), 10)
    assert {name: value.shape for name, value in parameters.items()} == {
        name: tuple(value.shape) for name, value in network.named_parameters()
    }
    assert any(
        (value != split.start(path, SEED + 1)[name]).any() for name, value in parameters.items()
    )


def test_a_client_keeps_a_quarter_to_all_of_its_images() -> None:
    assert [split.train_images(100, number, 4) for number in range(4)] == [25, 50, 75, 100]
    assert split.train_images(100, 0, 1) == 25
    assert split.train_images(1, 0, 4) == 1


def test_the_interval_equals_a_paired_t_tests() -> None:
    ours, peers = [0.9, 0.8, 0.7], [0.8, 0.8, 0.9]
    # Differences 0.1, 0, −0.2 have the mean −1/30 and the deviation √(7/300), and t is 4.3027.
    difference = paired(ours, peers)
    assert difference.mean == pytest.approx(-1 / 30)
    assert difference.std == pytest.approx((7 / 300) ** 0.5)
    assert difference.limit == pytest.approx(4.30265 * (7 / 900) ** 0.5, rel=1e-5)
    assert difference.is_chance
    assert stats.ttest_rel(ours, peers).pvalue > 0.05
    assert not paired([0.9, 0.91, 0.92], [0.5, 0.5, 0.5]).is_chance
    assert paired([0.9, 0.8], [0.9, 0.8]).is_chance  # no difference and no spread


def test_tables_of_made_up_figures() -> None:
    key = (ROWS[0].method, ROWS[0].judged)
    ours: Figures = {key: [[0.5, 1.0], [0.7, 1.0]]}
    peers: Figures = {key: [[0.5, 1.0], [0.5, 1.0]], ("nothing of ours", "averaged"): [[1.0]]}
    title = ROWS[0].title
    _, *lines = spread_table(ours, peers, "peer")
    assert lines == [[title, "80.0 ± 7.1", "75.0 ± 0.0", "+5.0 ± 7.1", "± 63.5", "yes"]]
    _, *lines = equality_table(ours, peers, "peer")
    assert lines == [[title, "80.00", "75.00", "3 of 4", "20.0"]]


def test_every_row_has_a_method_whose_settings_the_app_takes() -> None:
    names = [method.name for method in METHODS]
    assert {row.method for row in ROWS} == set(names)
    assert len(set(names)) == len(names)
    for method in METHODS:
        settings_from({"task": "classification", "keep": "last", **filled(method.ours, 2, 0.1)})
    options = filled({"a": EPOCHS, "b": TWICE, "c": RATE, "d": "else", "e": {"f": 1}}, 3, 0.5)
    assert options == {"a": 3, "b": 6, "c": 0.5, "d": "else", "e": {"f": 1}}
