from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.sequences.sources import load_sequences
from fedproto_app.settings import DataSettings, SequenceSettings
from tests.data.images.made_images import write_folder


def recording(steps: int) -> bytes:
    """Speed counts the steps, charge falls from 100, load is twice the speed."""
    rows = "".join(f"{step},{100 - step},{2 * step}\n" for step in range(steps))
    return f"speed,charge,load\n{rows}".encode()


def load(path: Path, max_steps: int = 0, **changes: Any) -> SequencePool:
    cut = SequenceSettings(**{"window": 3, "stride": 2, "target": "charge", **changes})
    return load_sequences(
        DataSettings(source="recordings", path=str(path), max_steps=max_steps, sequences=cut)
    )


def test_windows_of_one_file(tmp_path: Path) -> None:
    write_folder(tmp_path, {"van.csv": recording(8)})
    pool = load(tmp_path / "van.csv")
    assert pool.dimensions == ("speed", "load")
    assert pool.classes == ()
    assert [steps[:, 0].tolist() for steps in pool.sequences] == [[0, 1, 2], [2, 3, 4], [4, 5, 6]]
    assert pool.sequences[1][:, 1].tolist() == [4, 6, 8]
    assert pool.targets.tolist() == [98, 96, 94]  # at the window's last step
    assert pool.clients is not None
    assert pool.clients.tolist() == ["van"] * 3


def test_a_file_per_client_and_a_recording_that_is_too_short(tmp_path: Path) -> None:
    write_folder(
        tmp_path, {"b.csv": recording(2), "c.csv": recording(3), "a.csv": recording(9), "x.md": b""}
    )
    pool = load(tmp_path, stride=3)
    assert pool.clients is not None
    assert pool.clients.tolist() == ["a", "a", "a", "c"]
    assert pool.groups == {"a": "", "b": "", "c": ""}


def test_the_first_steps_only(tmp_path: Path) -> None:
    write_folder(tmp_path, {"van.csv": recording(8)})
    assert load(tmp_path, max_steps=5).targets.tolist() == [98, 96]


@pytest.mark.parametrize(
    ("files", "changes", "message"),
    [
        (
            {"a.csv": recording(9)},
            {"target": "heat"},
            r"data\.sequences\.target = 'heat': .* speed",
        ),
        ({"a.csv": recording(9)}, {"target": ""}, r"data\.sequences\.target = ''"),
        ({"a.csv": b"charge\n1\n2\n3\n"}, {}, "beside the target 'charge' there is no column"),
        ({"a.csv": recording(2)}, {}, r"no recording has data\.sequences\.window = 3 .* has 2"),
        ({"x.md": b""}, {}, "no file <client>.csv"),
        ({"in/a.csv": recording(9)}, {}, "in/a.csv: expected <client>.csv, not in a folder"),
        ({"a.csv": recording(9), "a.CSV": recording(9)}, {}, "two files of client 'a'"),
        ({"a.csv": recording(9), "b.csv": b"x,y\n1,2\n"}, {}, "b.csv has the columns x, y, but a"),
        (
            {"a.csv": b"speed,charge\n1,\n"},
            {},
            "a.csv: column 'charge', line 2: no value",
        ),
    ],
)
def test_bad_recordings_are_refused(
    tmp_path: Path, files: Mapping[str, bytes], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        load(write_folder(tmp_path, files), **changes)
