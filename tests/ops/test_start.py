"""The first step of a gate: it keeps Flower's token alive, takes turns, and ends a lost attempt."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fedproto_app.ops.gate.audit import entries
from fedproto_app.ops.gate.start import TURNS, report

TOKEN = "the-token-of-a-task"
ALIVE, ENDED = (200, b"\x08\x01"), (401, b"")
GATE = """
import os, signal, sys
from fedproto_app.ops.gate import start
os.dup2({read}, 3)
start._TOKEN_LIFE = {life}
started = start.Start(sys.argv[1:])
{then}
"""
FINISH = "started.finish(); print(sys.argv[-1], flush=True)"

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


class Runtime(HTTPServer):
    """Flower's Runtime API, which gives one answer to every call."""

    def __init__(self, status: int, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Call)
        self.status, self.content = status, content
        self.calls = list[tuple[str, str | None]]()
        self.called = threading.Event()

    @property
    def flags(self) -> list[str]:
        return ["--insecure", "--runtime-api-address", f"127.0.0.1:{self.server_port}"]


class Call(BaseHTTPRequestHandler):
    server: Runtime

    def do_POST(self) -> None:
        self.server.calls.append((self.path, self.headers["flwr-task-token"]))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.content)
        self.server.called.set()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    with Runtime(*request.param) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def gate_of(
    runtime: Runtime, then: str, environment: dict[str, str], life: float = 30.0
) -> subprocess.Popen[str]:
    """Start a gate that does nothing but its first step."""
    read, write = os.pipe()
    os.write(write, TOKEN.encode())
    os.close(write)
    code = GATE.format(read=read, life=life, then=then)
    process = subprocess.Popen(
        [sys.executable, "-c", code, *runtime.flags],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=[read],
    )
    os.close(read)
    return process


@pytest.mark.parametrize(
    ("runtime", "alive"),
    [(ALIVE, True), ((200, b""), False), (ENDED, False), ((404, b""), None), ((503, b""), None)],
    indirect=["runtime"],
)
def test_flower_says_whether_it_still_has_the_task(runtime: Runtime, alive: bool | None) -> None:
    assert report(runtime.flags, TOKEN) is alive
    assert runtime.calls == [("/v1/runtime/send-task-heartbeat", TOKEN)]


def test_nobody_answers() -> None:
    with Runtime(*ALIVE) as server:
        flags = server.flags
    assert report(flags, TOKEN) is None


@pytest.mark.parametrize("runtime", [ALIVE], indirect=True)
def test_a_gate_waits_for_its_turn_while_its_token_is_kept(
    runtime: Runtime, tmp_path: Path
) -> None:
    turns = tmp_path / "turns"
    with turns.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        gate = gate_of(runtime, FINISH, {TURNS: str(turns)})
        assert runtime.called.wait(timeout=60)
        assert gate.stdout is not None
        assert not select.select([gate.stdout], [], [], 0)[0]
    output, errors = gate.communicate(timeout=60)
    assert (output.strip(), errors, gate.returncode) == (TOKEN, "", 0)
    with turns.open() as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("runtime", [ENDED], indirect=True)
@pytest.mark.parametrize("life", [0.0, 30.0])
def test_a_lost_attempt_ends_and_says_so_if_the_host_is_slow(
    runtime: Runtime, life: float, tmp_path: Path
) -> None:
    audit = tmp_path / "audit.jsonl"
    gate = gate_of(runtime, "signal.pause()", {"FEDPROTO_AUDIT": str(audit)}, life)
    _, errors = gate.communicate(timeout=60)
    assert gate.returncode == -signal.SIGKILL
    if life:  # Flower has ended the task in time, because the run was stopped
        assert errors == ""
        assert not audit.exists()
    else:
        assert errors.startswith("event=too-slow")
        assert errors.count("\n") == 1
        assert "(FEDPROTO_CPUS)" in errors
        assert [event for _, event in entries(audit)] == ["too-slow"]
