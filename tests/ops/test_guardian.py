"""The guardian ends the processes that a killed program leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.parts import wait_until
from fedproto_app.ops.guardian import Guardian, marked_processes

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="the system has no /proc"
)

# It starts what Flower starts: a process in a session of its own, deaf to SIGTERM, with a child.
PROGRAM = """
import os, subprocess, sys, time
from pathlib import Path
from fedproto_app.ops.guardian import Guardian
home = Path(sys.argv[1])
child = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(99)"
parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
with Guardian(home):
    subprocess.Popen(
        [sys.executable, "-c", parent],
        env={**os.environ, "FLWR_HOME": str(home)},
        start_new_session=True,
    )
    time.sleep(99)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_program_started_ends_and_its_folder_goes(
    tmp_path: Path, number: signal.Signals
) -> None:
    home, other_home = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    (home / "config.toml").write_text("")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    strange = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(99)"],
        env={**os.environ, "FLWR_HOME": str(other_home)},
    )
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, str(home)], env=environment)
    try:
        wait_until(lambda: len(marked_processes(home)) == 2, "both processes", 20)
        program.send_signal(number)
        program.wait()
        wait_until(lambda: not home.exists(), "the end of its folder", 20)
        assert marked_processes(home) == {}
        assert strange.poll() is None  # another's
    finally:
        for process in (program, strange):
            process.kill()
            process.wait()


def test_who_ends_in_order_needs_no_guardian(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(99)"],
        env={**os.environ, "FLWR_HOME": str(tmp_path)},
    )
    try:
        with Guardian(tmp_path):
            pass
        assert (tmp_path / "mine").read_text() == "kept"
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
