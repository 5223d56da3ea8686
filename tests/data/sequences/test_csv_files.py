"""Sequences from CSV files: in a folder per class, and recordings that are cut into windows."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.formats.csv_sequences import parse_steps
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.settings import DataSettings, SequenceSettings
from tests.data.images.made_images import write_folder, write_zip
from tests.data.sequences.made_sequences import sequences_of


def steps_of(content: bytes, **settings: Any) -> tuple[tuple[str, ...], list[list[float]]]:
    names, values = parse_steps(content, "a.csv", DataSettings(**settings))
    return names, values.tolist()


@pytest.mark.parametrize(
    ("content", "settings", "expected"),
    [
        (b"\xef\xbb\xbfx, y\r\n1,2\r\n-3.5,4e1\r\n\r\n", {}, (("x", "y"), [[1, 2], [-3.5, 40]])),
        (gzip.compress(b"Time,x\n2014-01-01,1\nlater,2\n", mtime=0), {}, (("x",), [[1], [2]])),
        (b"x,time\n1,2\n", {}, (("x", "time"), [[1, 2]])),  # only the first can be the time
        (
            b"1,5;2\n3;-4,25\n",
            {"decimal": "comma", "header": "false"},
            (("column-1", "column-2"), [[1.5, 2], [3, -4.25]]),
        ),
    ],
)
def test_steps_of_a_file(content: bytes, settings: dict[str, Any], expected: Any) -> None:
    assert steps_of(content, **settings) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"time\n1\n", "no column of values in the header"),
        (b"x,,y\n1,2,3\n", "a column of values has no name in the header"),
        (b"x,x\n1,2\n", "two columns are named 'x'"),
        (b"x,y\n1,2\n\n3,4\n", "line 3 has 1 cells, line 1 has 2"),
        (b"x,y\n1,2\n3,\n", "column 'y', line 3: no value"),
        (b"time,x,y\n1,2,3\n3,4,nan\n", "column 'y', line 3: no value"),
        (b"\x1f\x8b\x08", "cannot be read"),
    ],
)
def test_bad_files_are_refused(content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^a.csv: .*{message}"):
        steps_of(content)


FIRST, SECOND = b"x,y\n1,2\n3,4\n", b"x,y\n5,6\n"
WITHOUT_CLIENTS = {
    "wave/a.csv": FIRST,
    "nod/b.csv": SECOND,
    "nod/a.CSV": FIRST,
    "README.md": b"no sequence",
}
WITH_CLIENTS = {"ann/wave/a.csv": FIRST, "bob/nod/a.csv": SECOND}


@pytest.mark.parametrize(("zipped", "prefix"), [(False, ""), (True, ""), (True, "all/")])
def test_classes_are_folders_and_clients_the_outer_folders(
    tmp_path: Path, zipped: bool, prefix: str
) -> None:
    def read(files: dict[str, bytes], name: str) -> SequencePool:
        files = {prefix + file: content for file, content in files.items()}
        write = write_zip if zipped else write_folder
        return sequences_of("sequence-folder", write(tmp_path / name, files))

    pool = read(WITHOUT_CLIENTS, "without")
    assert pool.dimensions == ("x", "y")
    assert pool.classes == ("nod", "wave")
    assert pool.targets.tolist() == [0, 0, 1]
    assert pool.clients is None
    assert [steps.tolist() for steps in pool.sequences[:2]] == [[[1, 2], [3, 4]], [[5, 6]]]
    pool = read(WITH_CLIENTS, "with")
    assert pool.clients.tolist() == ["ann", "bob"]
    assert pool.targets.tolist() == [1, 0]
    if not zipped:  # the folder of a single client
        assert read({"ann/wave/a.csv": FIRST}, "single").clients.tolist() == ["ann"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"README.md": b""}, "no file .*<sequence>.csv"),
        ({"a.csv": FIRST}, "a.csv: expected"),
        ({"a/b/c/d.csv": FIRST}, "a/b/c/d.csv: expected"),
        (WITHOUT_CLIENTS | WITH_CLIENTS, "nod/a.CSV lies in no folder of a client, but ann/wave/"),
        ({"a/a.csv": FIRST, "a/b.csv": b"y,x\n1,2\n"}, "a/b.csv has the columns y, x, but a/a.csv"),
        ({"a/a.csv": b"x\nno\n"}, "a/a.csv: column 'x', line 2: 'no' is not a number"),
        ({"a/a.csv": b"x\n1e39\n"}, "sequence 0: x at step 0 is inf"),
    ],
)
def test_bad_folders_are_refused(tmp_path: Path, files: Mapping[str, bytes], message: str) -> None:
    with pytest.raises(DataError, match=f"^{tmp_path}: .*{message}"):
        sequences_of("sequence-folder", write_folder(tmp_path, files))


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "x.zip", WITHOUT_CLIENTS)
    path.write_bytes(path.read_bytes().replace(b"5,6", b"5,7"))
    with pytest.raises(DataError, match=r"x\.zip: nod/b\.csv cannot be read: Bad CRC"):
        sequences_of("sequence-folder", path)


def recording(steps: int) -> bytes:
    """Speed counts the steps, charge falls from 100, load is twice the speed."""
    rows = "".join(f"{step},{100 - step},{2 * step}\n" for step in range(steps))
    return f"speed,charge,load\n{rows}".encode()


def windows_of(path: Path, settings: dict[str, Any] | None = None, **changes: Any) -> SequencePool:
    cut = SequenceSettings(**{"window": 3, "stride": 2, "target": "charge", **changes})
    data = DataSettings(source="recordings", path=str(path), sequences=cut, **(settings or {}))
    return load_sequences(data)


def test_windows_of_one_file(tmp_path: Path) -> None:
    path = write_folder(tmp_path, {"van.csv": recording(8)}) / "van.csv"
    pool = windows_of(path)
    assert pool.dimensions == ("speed", "load")
    assert pool.classes == ()
    assert [steps[:, 0].tolist() for steps in pool.sequences] == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert pool.sequences[1][:, 1].tolist() == [4, 6, 8]
    assert pool.targets.tolist() == [98, 96, 94]  # at the window's last step
    assert pool.clients.tolist() == ["van"] * 3
    assert windows_of(path, {"max_steps": 5}).targets.tolist() == [98, 96]


def test_a_file_per_client_and_a_recording_that_is_too_short(tmp_path: Path) -> None:
    steps = {"b.csv": 2, "c.csv": 3, "a.csv": 9}
    files = {name: recording(number) for name, number in steps.items()}
    pool = windows_of(write_folder(tmp_path, files | {"x.md": b""}), stride=3)
    assert pool.clients.tolist() == ["a", "a", "a", "c"]
    assert pool.groups == {"a": "", "b": "", "c": ""}


def test_columns_of_recordings_come_in_the_order_of_the_choice(tmp_path: Path) -> None:
    """Sites whose files differ in their columns' names and order make the same inputs."""
    text = b"stamp,v,note,i,charge\nmo,1,x,2,3\ntu,4,y,5,6\n"
    path = write_folder(tmp_path, {"car.csv": text}) / "car.csv"
    pool = windows_of(path, {"columns": "i,v"}, window=2)
    assert (pool.dimensions, pool.sequences[0].tolist()) == (("i", "v"), [[2, 1], [5, 4]])
    with pytest.raises(DataError, match=r"data\.columns: .* has no column 'u'; it has stamp, v"):
        windows_of(path, {"columns": "u"})
    with pytest.raises(DataError, match=r"data\.sequences\.target = ''"):
        windows_of(path, {"columns": "i"}, target="")


@pytest.mark.parametrize(
    ("files", "target", "message"),
    [
        ({"a.csv": recording(9)}, "heat", r"data\.sequences\.target = 'heat': .* speed"),
        ({"a.csv": recording(9)}, "", r"data\.sequences\.target = ''"),
        ({"a.csv": b"charge\n1\n2\n3\n"}, "charge", "beside the target 'charge' there is no colu"),
        ({"a.csv": recording(2)}, "charge", r"no recording has data\.sequences\.window = 3 .* 2"),
        ({"x.md": b""}, "charge", "no file <client>.csv"),
        ({"in/a.csv": recording(9)}, "charge", "in/a.csv: expected <client>.csv, not in a folder"),
        ({"a.csv": recording(9), "a.CSV": recording(9)}, "charge", "two files of client 'a'"),
        ({"a.csv": recording(9), "b.csv": b"x,y\n1,2\n"}, "charge", "b.csv has the columns x, y"),
        ({"a.csv": b"speed,charge\n1,\n"}, "charge", "a.csv: column 'charge', line 2: no value"),
    ],
)
def test_bad_recordings_are_refused(
    tmp_path: Path, files: Mapping[str, bytes], target: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        windows_of(write_folder(tmp_path, files), target=target)
