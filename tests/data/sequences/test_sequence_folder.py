from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.settings import DataSettings
from tests.data.images.made_images import write_folder, write_zip

FIRST, SECOND = b"x,y\n1,2\n3,4\n", b"x,y\n5,6\n"
WITHOUT_CLIENTS = {
    "wave/a.csv": FIRST,
    "nod/b.csv": SECOND,
    "nod/a.CSV": FIRST,
    "README.md": b"no sequence",
}
WITH_CLIENTS = {"ann/wave/a.csv": FIRST, "bob/nod/a.csv": SECOND}


def load(path: Path) -> SequencePool:
    return load_sequences(DataSettings(source="sequence-folder", path=str(path)))


@pytest.mark.parametrize(("zipped", "prefix"), [(False, ""), (True, ""), (True, "all/")])
def test_classes_are_folders(tmp_path: Path, zipped: bool, prefix: str) -> None:
    files = {prefix + name: content for name, content in WITHOUT_CLIENTS.items()}
    pool = load(write_zip(tmp_path / "x.zip", files) if zipped else write_folder(tmp_path, files))
    assert pool.dimensions == ("x", "y")
    assert pool.classes == ("nod", "wave")
    assert pool.targets.tolist() == [0, 0, 1]
    assert pool.clients is None
    assert pool.sequences[0].tolist() == [[1, 2], [3, 4]]
    assert pool.sequences[1].tolist() == [[5, 6]]


@pytest.mark.parametrize("prefix", ["", "all/"])
def test_clients_are_the_outer_folders(tmp_path: Path, prefix: str) -> None:
    files = {prefix + name: content for name, content in WITH_CLIENTS.items()}
    pool = load(write_zip(tmp_path / "x.zip", files))
    assert pool.clients is not None
    assert pool.clients.tolist() == ["ann", "bob"]
    assert pool.targets.tolist() == [1, 0]


def test_the_folder_of_a_single_client(tmp_path: Path) -> None:
    pool = load(write_folder(tmp_path, {"ann/wave/a.csv": FIRST}))
    assert pool.clients is not None
    assert pool.clients.tolist() == ["ann"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"README.md": b""}, "no file .*<sequence>.csv"),
        ({"a.csv": FIRST}, "a.csv: expected"),
        ({"a/b/c/d.csv": FIRST}, "a/b/c/d.csv: expected"),
        (
            WITHOUT_CLIENTS | WITH_CLIENTS,
            "nod/a.CSV lies in no folder of a client, but ann/wave/a.csv does",
        ),
        (
            {"a/a.csv": FIRST, "a/b.csv": b"y,x\n1,2\n"},
            "a/b.csv has the columns y, x, but a/a.csv h",
        ),
        ({"a/a.csv": b"x\nno\n"}, "a/a.csv: column 'x', line 2: 'no' is not a number"),
        ({"a/a.csv": b"x\n1e39\n"}, "sequence 0: x at step 0 is inf"),
    ],
)
def test_bad_folders_are_refused(tmp_path: Path, files: Mapping[str, bytes], message: str) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path}: .*{message}"):
        load(write_folder(tmp_path, files))


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", WITHOUT_CLIENTS)
    path.write_bytes(path.read_bytes().replace(b"5,6", b"5,7"))
    with pytest.raises(DataError, match=r"x\.zip: nod/b\.csv cannot be read: Bad CRC"):
        load(path)
