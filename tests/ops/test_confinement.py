"""Code apart is timed and limited, and nothing that it started outlives it.

A gate ends all that comes of its process, so each case has a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import pytest

PREFACE = """
import os, resource, signal, subprocess, sys, time
from pathlib import Path
from fedproto_app.ops.gate.confinement import Apart, Ended, frame, limit_memory, parts_of
def judged(work, job=b"job", seconds=20.0, most=10**6, user=None):
    apart = Apart(work, user)
    try:
        print("answer", apart.do(job, seconds, most)[:50])
    except Ended as error:
        print("ended:", error)
    finally:
        print("left", apart.end())
"""


def run(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PREFACE + textwrap.dedent(code)],
        env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_a_job_is_done_in_a_folder_of_its_own_that_goes_with_it() -> None:
    output = run("""
        def work(job):
            Path.home().joinpath("planted").write_text("x")
            return job.upper() + b" " + os.environ["HOME"].encode()
        judged(work, b"many bytes " * 2)
        print(sum("order-" in name for name in os.listdir(os.environ["TMPDIR"])))
        assert [*parts_of(frame(b"", b"ab", b"c" * 300))] == [b"", b"ab", b"c" * 300]
    """, TMPDIR="/tmp")  # fmt: skip
    assert output.startswith("answer b'MANY BYTES MANY BYTES  /tmp/order-")
    assert "left 0" in output


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ("lambda job: time.sleep(60)", "not done within 1 s"),
        ("lambda job: os.kill(os.getpid(), 9)", "was ended by signal 9"),
        ("lambda job: os._exit(3)", "exit code 3"),
        ("lambda job: 1 / 0", "exit code 1"),
        ("lambda job: b'x' * 2_000_000", "answered with 2000000 bytes, more than 1000000"),
        ("trickle", "not done within 1 s"),
        ("lambda job: [os.close(n) for n in range(3, 30)] and time.sleep(60)", "Bad file|closed"),
    ],
)
def test_why_there_is_no_answer_is_said(work: str, reason: str) -> None:
    import re

    start = time.monotonic()
    output = run(f"""
        def tolerant(job):
            for number in range(3, 30):
                try: os.close(number)
                except OSError: pass
            time.sleep(60)
        def trickle(job):
            pipes = [n for n in range(3, 30) if os.path.exists(f"/proc/self/fd/{{n}}")]
            for byte in [b"\\x10\\x27\\0\\0\\0\\0\\0\\0"] + [b"x"] * 600:  # of 10,000
                for number in pipes:
                    try: os.write(number, byte)
                    except OSError: pass
                time.sleep(0.05)
        judged({"tolerant" if "range" in work else work}, seconds=1)
    """)
    assert re.search(rf"ended: .*({reason})", output), output
    assert time.monotonic() - start < 15


def test_a_process_that_does_not_take_its_order_holds_nobody_up() -> None:
    """The order is larger than what the system keeps for a reader."""
    output = run("""
        apart = Apart(lambda job: job, None)
        os.kill(apart._pid, signal.SIGSTOP)
        try:
            apart.do(b"x" * 10**7, 0.5, 10**8)
        except Ended as error:
            print("ended:", error)
        finally:
            os.kill(apart._pid, signal.SIGCONT)
            apart.end()
    """)
    assert "ended: did not take its order within 0.5 s" in output


def test_a_daemon_does_not_outlive_its_order() -> None:
    """It forks twice, leads a session of its own, and ignores signals."""
    output = run("""
        def work(job):
            read, write = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    os.write(write, str(os.getpid()).encode())
                    time.sleep(60)
                os._exit(0)
            return os.read(read, 20)
        judged(work)
    """)
    pid = int(output.split("'")[1])
    assert "left 1" in output
    assert not is_alive(pid)


def test_memory_has_a_limit() -> None:
    output = run("""
        def work(job):
            limit_memory(200)
            try:
                return str(len(bytearray(10**9))).encode()
            except MemoryError:
                return b"MemoryError"
        judged(work)
    """)
    assert "answer b'MemoryError'" in output


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_as_another_user_it_reaches_neither_the_gate_nor_its_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    secret.chmod(0o600)
    output = run(f"""
        def work(job):
            reached = []
            for what, attempt in (
                ("signal", lambda: os.kill(os.getppid(), 0)),
                ("memory", lambda: open(f"/proc/{{os.getppid()}}/mem", "rb")),
                ("environment", lambda: open(f"/proc/{{os.getppid()}}/environ").read()),
                ("file", lambda: open({str(secret)!r}).read()),
                ("root", lambda: os.setuid(0)),
                ("descriptor", lambda: os.read(50, 1)),
            ):
                try:
                    attempt()
                    reached.append(what)
                except OSError:
                    pass
            return repr((os.getuid(), os.getgroups(), reached)).encode()
        held = os.open({str(secret)!r}, os.O_RDONLY)
        os.dup2(held, 50)
        judged(work, user=10001)
    """)
    assert "answer b'(10001, [], [])'" in output
