from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedproto_app.data.inspection import source_of
from fedproto_app.data.sequences.inspection import (
    class_counts,
    constant_sequences,
    inspect_dealing,
)
from fedproto_app.errors import DataError
from fedproto_app.settings import ClusterSettings, DataSettings, SequenceSettings
from tests.data.images.made_images import encoded, noise, write_folder, write_zip
from tests.data.sequences.made_sequences import measured, pool_of

GIVEN = DataSettings(clusters=ClusterSettings(scheme="given"))
STEPS = b"u,v\n1,2\n3,4\n"


@pytest.mark.parametrize(
    ("arrays", "source"),
    [
        ({"points": (9, 3), "offsets": (3,), "label": (2,)}, "sequence-npz"),
        ({"points": (9,), "other": (3,)}, "npz"),  # two clients of those names
        ({"x": (5, 4, 3), "y": (5,)}, "sequence-npz"),
        ({"x": (50,), "y": (50,)}, "npz"),
        ({"values": (50, 3)}, "npz"),
        ({"x_train": (5, 4, 30)}, "sequence-npz"),
        ({"x_train": (5, 8, 8, 3)}, "image-npz"),
    ],
)
def test_npz_archives_are_told_by_their_arrays(
    tmp_path: Path, arrays: dict[str, tuple[int, ...]], source: str
) -> None:
    np.savez(tmp_path / "a.npz", **{name: np.zeros(shape) for name, shape in arrays.items()})
    assert source_of(tmp_path / "a.npz") == source


@pytest.mark.parametrize(("width", "source"), [(28, "image-npz"), (2, "sequence-npz")])
def test_grey_images_are_wider_than_steps_of_bytes(tmp_path: Path, width: int, source: str) -> None:
    np.savez(tmp_path / "a.npz", x_train=np.zeros((5, 8, width), np.uint8))
    assert source_of(tmp_path / "a.npz") == source


def test_a_damaged_archive_is_left_to_a_reader(tmp_path: Path) -> None:
    for name, source in (("a.npz", "npz"), ("a.zip", "class-folders")):
        (tmp_path / name).write_bytes(b"no archive")
        assert source_of(tmp_path / name) == source


@pytest.mark.parametrize(
    ("files", "source"),
    [
        (("up/1.csv", "down/1.csv.gz"), "sequence-folder"),
        (("ann/up/1.csv", "bob/up/1.csv"), "sequence-folder"),
        (("a.csv", "b.csv"), "csv-folder"),
        (("a.csv", "old/b.csv"), "csv-folder"),
        (("A_TRAIN.ts", "A_TEST.ts"), "uea-ts"),
        (("train/cat/1.png", "lists/all.csv"), "class-folders"),
    ],
)
def test_folders_are_told_by_their_files(
    tmp_path: Path, files: tuple[str, ...], source: str
) -> None:
    image = encoded(noise(0, 4, 4, 3))
    contents = {name: image if name.endswith("png") else STEPS for name in files}
    assert source_of(write_folder(tmp_path / "data", contents)) == source
    if source in ("sequence-folder", "class-folders"):
        assert source_of(write_zip(tmp_path / "data.zip", contents)) == source


def test_a_ts_file(tmp_path: Path) -> None:
    assert source_of(tmp_path / "A.TS") == "uea-ts"  # whether it is there or not, its reader tells


def test_dealt_clients_and_groups_by_hand() -> None:
    pool = pool_of([0, 0, 1, 1, 2] * 2 + [0], ["ann"] * 5 + ["bob"] * 5 + ["cid"], {"bob": "left"})
    dealing = inspect_dealing(pool, GIVEN, seed=0)
    assert [one.name for one in dealing.clients] == ["ann", "bob", "cid"]
    assert list(dealing.refused) == ["cid"]
    assert {name: [one.name for one in own] for name, own in dealing.groups.items()} == {
        "left": ["bob"]
    }
    assert class_counts(dealing.clients, 3).tolist() == [[2, 2, 1], [2, 2, 1], [1, 0, 0]]
    ann = dealing.clients[0]
    assert len(ann.train) + len(ann.validation) + len(ann.test) == len(ann.targets) == 5


def test_values_as_models_would_see_them() -> None:
    """Sequence i is i at all steps, all are constant: 10 … 19, or zeros once each is scaled."""
    pool = measured(20, ["ann"] * 2 + ["bob"] * 18)
    assert constant_sequences(pool) == 20
    raw = DataSettings(clusters=GIVEN.clusters, sequences=SequenceSettings(scaling="none"))
    assert inspect_dealing(pool, raw, 0).value_range == (2, 19)  # ann has too few to take part
    assert inspect_dealing(pool, GIVEN, 0).value_range == (0, 0)
    nobody = inspect_dealing(measured(2, ["ann", "bob"]), GIVEN, 0)
    assert nobody.value_range is None


def test_too_few_to_deal() -> None:
    with pytest.raises(DataError, match="enough for at most 4 clients"):
        inspect_dealing(pool_of([0, 1, 2, 0]), DataSettings(), seed=0)
