"""What must survive a loss of power is on the disk, with its name, before its writer returns."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedproto_app.core.errors import SettingsError
from fedproto_app.node.folder import own_secret
from fedproto_app.ops.gate.audit import AuditLog
from fedproto_app.ops.keys import make_keys
from fedproto_app.server.node_register import NodeRegister


def ban(folder: Path) -> None:
    with NodeRegister(folder / "nodes.json").changing() as names:
        names.banned["harbour"] = ["SHA256:x"]


def log_an_order(folder: Path) -> None:
    AuditLog(folder / "audit.jsonl").write("order", run=1)


def make_pair_and_authority(folder: Path) -> None:
    make_keys(folder / "keys", ["fl.example.org"], ["harbour"])


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> dict[int, Path]:
    """The inodes of the files and folders that were flushed, with the names they had then."""
    inodes: dict[int, Path] = {}

    def fsync(handle: int) -> None:
        inodes[os.fstat(handle).st_ino] = Path(os.readlink(f"/proc/self/fd/{handle}"))

    monkeypatch.setattr(os, "fsync", fsync)
    return inodes


@pytest.mark.parametrize(
    ("write", "files"),
    [
        (ban, ["nodes.json"]),
        (log_an_order, ["audit.jsonl"]),
        (own_secret, ["secret"]),
        (
            make_pair_and_authority,
            ["keys/ca.key", "keys/server.key", "keys/nodes/harbour", "keys/nodes/harbour.pub"],
        ),
    ],
)
def test_file_and_name_are_flushed(
    tmp_path: Path, flushed: dict[int, Path], write: Callable[[Path], object], files: list[str]
) -> None:
    write(tmp_path)
    for path in map(tmp_path.joinpath, files):
        assert path.stat().st_ino in flushed
        assert path.parent.stat().st_ino in flushed


def test_a_register_that_cannot_be_locked_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(SettingsError, match=r"nodes\.lock: cannot be locked \(No locks available"):
        ban(tmp_path)
    assert not (tmp_path / "nodes.json").exists()
