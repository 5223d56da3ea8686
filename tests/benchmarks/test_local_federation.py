"""The processes of a local federation, with a stand-in for Flower's programs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.local_federation import LocalFederation, MarkedProcess
from benchmarks.parts import wait_until
from fedproto_app.core.errors import FederationError

# Like SuperExec: a child that leaves the session.
PARENT = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"], start_new_session=True)
print("ready", flush=True)
time.sleep(99)
"""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="the system has no /proc"
)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[MarkedProcess]:
    parent = MarkedProcess("stand-in", tmp_path / "home", [sys.executable, "-c", PARENT])
    yield parent
    parent.kill()


def states(process: MarkedProcess) -> set[str]:
    stats = [Path(f"/proc/{pid}/stat").read_text() for pid in process.pids()]
    return {stat.rpartition(")")[2].split()[0] for stat in stats}


def wait_for_states(process: MarkedProcess, expected: set[str]) -> None:
    wait_until(lambda: states(process) == expected, f"processes in {expected}", 20)


def test_kill_ends_the_children_too_and_it_can_start_again(process: MarkedProcess) -> None:
    process.start()
    process.wait_for_log("ready")
    # A program that just began has no environment yet for a moment.
    wait_until(lambda: len(process.pids()) == 2, "two processes", 20)
    before = set(process.pids())
    process.kill()
    assert process.pids() == {}
    assert process.exit_code == -signal.SIGKILL
    process.start()
    process.wait_for_log("ready")
    assert before.isdisjoint(process.pids())
    assert process.log_text() == "ready\n"
    assert process.log.read_text() == "ready\nready\n"


def test_stop_freezes_the_children_too(process: MarkedProcess) -> None:
    process.start()
    process.wait_for_log("ready")
    process.stop()
    wait_for_states(process, {"T"})
    process.cont()
    wait_for_states(process, {"S"})
    process.stop()
    process.kill()  # works on a stopped one
    assert process.pids() == {}


def test_waiting_meets_the_end_and_the_deadline(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('broken')"]
    ended = MarkedProcess("site", tmp_path / "home", command)
    ended.start()
    assert ended.wait_until_ended() == 1
    with pytest.raises(FederationError, match=r"^site ended with code 1; its last lines:\nbroken"):
        ended.wait_for_log("ready")
    with pytest.raises(FederationError, match=r"^site: waited 0\.1 s for flwr-clientapp to start"):
        ended.child("flwr-clientapp", deadline=0.1)


def test_all_ends_with_the_block_even_if_the_superlink_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.local_federation._START_DEADLINE", 0.5)
    program = tmp_path / "python"  # which starts the SuperLink's program
    program.write_text(f"#!{sys.executable}\n{PARENT}")
    program.chmod(0o755)
    monkeypatch.setattr("benchmarks.local_federation._PROGRAMS", tmp_path)
    federation = LocalFederation(tmp_path / "federation")
    with pytest.raises(FederationError, match=r"^no SuperLink; its last lines:"), federation:
        pass
    assert federation.superlink.pids() == {}
