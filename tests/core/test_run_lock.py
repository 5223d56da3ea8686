"""The lock on a run's folder, held by real processes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedproto_app.core import run_lock
from fedproto_app.core.errors import SettingsError
from fedproto_app.core.run_lock import LOCK, RunLock, require_unwritten

HOLD = """
import sys, time
from pathlib import Path
from fedproto_app.core.run_lock import RunLock
held = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(99)
"""


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_lock, "_DYING", 0.2)


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start another process that holds the lock on the test's folder."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_second_process_reads_who_holds_the_lock_and_since_when(
    tmp_path: Path, holder: subprocess.Popen[bytes]
) -> None:
    holder_text = (
        rf"process {holder.pid} on {socket.gethostname()} since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    )
    with pytest.raises(SettingsError, match=rf"^{tmp_path} is being written by {holder_text}$"):
        RunLock(tmp_path)
    with pytest.raises(SettingsError, match=holder_text):
        require_unwritten(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_lock_dies_with_its_process(
    tmp_path: Path, holder: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    holder.send_signal(number)
    with RunLock(tmp_path):
        assert f"process {os.getpid()} on " in (tmp_path / LOCK).read_text()


def test_a_lock_that_was_given_back_is_there_to_take(tmp_path: Path) -> None:
    first = RunLock(tmp_path)
    with pytest.raises(SettingsError, match=f"process {os.getpid()} on "):
        RunLock(tmp_path)  # nor may one process write a run twice
    first.close()
    assert (tmp_path / LOCK).read_bytes() == b""
    first.close()  # as often as one likes
    RunLock(tmp_path).close()
    require_unwritten(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS])
def test_without_locks_it_warns_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with RunLock(tmp_path):
        pass
    assert f"event=no-lock folder={tmp_path} reason=" in caplog.text


def test_other_faults_are_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RunLock(tmp_path / "nowhere")
