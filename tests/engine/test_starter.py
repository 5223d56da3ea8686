"""Processes that the starter forks into are like new ones in this process's surroundings."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from fedproto_app.core.errors import FederationError
from fedproto_app.engine import pool, starter


def tell(end: int) -> None:
    """In a started process: write what it has from its parent and its program."""
    print("a line")
    facts = [os.getppid(), os.getcwd(), os.environ.get("OF_A_TEST"), os.environ["OMP_NUM_THREADS"]]
    os.write(end, json.dumps(facts).encode())
    raise ValueError("a reason")


def started() -> tuple[list[object], str]:
    """Return what `tell` wrote in a new process, and what that printed."""
    read, write = os.pipe()
    with open(read) as facts, tempfile.TemporaryFile() as output:
        starter.start(f"{__name__}:tell", [write], output)
        os.close(write)
        reported = json.loads(facts.read())  # until the process has ended
        output.seek(0)
        return reported, output.read().decode()


def test_all_processes_have_one_parent_and_todays_surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_A_TEST", "first")
    (parent, *first), output = started()
    assert first == [os.getcwd(), "first", "1"]
    assert output.startswith("a line\nTraceback")
    assert output.endswith("ValueError: a reason\n")
    monkeypatch.delenv("OF_A_TEST")
    monkeypatch.syspath_prepend(Path.cwd())  # this module, wherever the folder is
    monkeypatch.chdir(tmp_path)
    assert started()[0] == [parent, str(tmp_path), None, "1"]


def test_a_starter_that_was_ended_is_replaced() -> None:
    (parent, *_), _ = started()
    assert isinstance(parent, int)
    os.kill(parent, 9)
    os.waitid(os.P_PID, parent, os.WEXITED | os.WNOWAIT)
    assert started()[0][0] != parent


def test_more_workers_than_a_message_can_pass_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FederationError, match="workers = 250: at most 249"):
        pool.WorkerPool(250, tmp_path / "log")
