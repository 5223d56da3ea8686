"""Files that appear whole, old or new: who may read them, and what a killed writer leaves."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedproto_app.core.whole_file import make_private, write_whole


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_new_content_takes_the_place_of_the_old(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    for content in (b"one", b"two"):
        write_whole(file, content)
        assert file.read_bytes() == content
    assert list(tmp_path.iterdir()) == [file]


def test_a_failure_leaves_the_old_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.json"
    write_whole(file, b"one")

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=f"No space left on device: '{file}'"):
        write_whole(file, b"two")
    assert file.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [file]


def test_private_files_and_folders_are_for_this_user_alone(tmp_path: Path) -> None:
    make_private(tmp_path / "state")
    write_whole(tmp_path / "state" / "secret", b"x", private=True)
    assert (mode(tmp_path / "state"), mode(tmp_path / "state" / "secret")) == (0o700, 0o600)


def test_what_killed_writers_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    killed = tmp_path / f"a[1].json.{ended.pid}.new"
    another = tmp_path / f"b.json.{ended.pid}.new"
    at_work = tmp_path / f"a[1].json.{os.getppid()}.new"
    recent = tmp_path / f"a[1].json.1{ended.pid}.new"  # perhaps of a writer in another container
    users = tmp_path / "a[1].json.notes.new"
    for path in (killed, another, at_work, recent, users):
        path.write_text("half")
    long_ago = time.time() - 60
    for path in (killed, another, at_work, users):
        os.utime(path, (long_ago, long_ago))
    write_whole(tmp_path / "a[1].json", b"whole", concurrent=True)
    assert not killed.exists()
    assert all(path.exists() for path in (another, at_work, recent, users))
