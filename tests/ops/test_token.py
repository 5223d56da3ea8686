"""The programs before Flower's own hide the token that Flower hands over as an argument."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedproto_app.ops.gate.confinement import RUN_AS

GATES = Path(__file__).parents[2] / "docker" / "gate"
TOKEN = "the-token-of-a-task"


def command_lines(process: int) -> list[bytes]:
    """Return the command lines of a process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(folder.name))
    family = [process]
    for member in family:
        family += children.get(member, [])
    return [Path(f"/proc/{member}/cmdline").read_bytes() for member in family]


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
@pytest.mark.parametrize("program", ["flwr-serverapp", "flwr-clientapp"])
def test_no_command_line_has_the_token(program: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(120)
        port = server.getsockname()[1]
        arguments = ["--insecure", "--runtime-api-address", f"127.0.0.1:{port}", "--token", TOKEN]
        gate = subprocess.Popen(
            [GATES / program, *arguments],
            env={
                **{name: value for name, value in os.environ.items() if name != RUN_AS},
                "FEDPROTO_PYTHON": sys.executable,
                "FLWR_HOME": str(tmp_path),
                "PYTHONPATH": str(GATES.parents[1]),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            request = b""
            while b"python-httpx" not in request:  # so Flower's program runs, not its keeper
                connection, _ = server.accept()
                connection.settimeout(120)
                request = connection.recv(10_000)
                lines = command_lines(gate.pid)
                connection.close()
        finally:
            gate.kill()
            gate.wait()
    assert len(lines) == 2  # the gate and its child
    assert all(b"fedproto_app.ops.gate" in line for line in lines)
    assert not any(TOKEN.encode() in line for line in lines)
