"""The cost of an idle SuperNode to its SuperLink: it asks for messages every three seconds.

    python -m benchmarks.superlink_polls [--nodes 16 256] [--polls 2000]

A SuperLink with a database on loopback, without TLS, and so many nodes' gRPC connections in this
process, through Flower's own code for them, which signs each call with the node's key. It prints
the SuperLink's processor time for a call, which hardly depends on other work of the machine.
SuperNodes speak gRPC up to Flower 1.39.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from flwr.client.grpc_rere_client.connection import grpc_request_response
from flwr.supercore.retry import make_simple_grpc_retry_invoker
from rich.console import Console

from benchmarks.pages import print_table
from benchmarks.parts import end, processor_seconds
from fedproto_app.core.errors import FederationError
from fedproto_app.ops.superlink import free_port, tail

POLL_INTERVAL = 3.0  # seconds between two questions of a SuperNode, fixed by Flower
THREADS = 4
START = 60.0  # seconds that a SuperLink may take


class Cost(NamedTuple):
    """Milliseconds of the SuperLink's processor time to let a node in, and for a question."""

    nodes: int
    joining: float
    polling: float
    wall: float  # for a question, with THREADS at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 256], metavar="N")
    parser.add_argument("--polls", type=int, default=2000, metavar="N")
    arguments = parser.parse_args()
    if min(*arguments.nodes, arguments.polls) < 1:
        parser.error("--nodes and --polls: at least 1")
    rows = []
    for nodes in arguments.nodes:
        with Console().status(f"{nodes} nodes"):
            cost = measure(nodes, arguments.polls)
        figures = (f"{cost.joining:.1f}", f"{cost.polling:.2f}", f"{cost.wall:.2f}")
        rows.append((f"{nodes:,}", *figures, f"{POLL_INTERVAL * 1000 / cost.polling:,.0f}"))
    headings = ("nodes", "joining, ms", "a question, ms", "wall, ms", "nodes that fill a core")
    print_table([headings, *rows], texts=0)


def measure(nodes: int, polls: int) -> Cost:
    """Start a SuperLink, let the nodes join, and let them ask in turns."""
    with tempfile.TemporaryDirectory(prefix="bench-") as home, ExitStack() as open_ones:
        port, health = free_port(), free_port()
        process = _superlink(Path(home), port, health)
        open_ones.callback(end, process)
        _wait_for(port, process, Path(home) / "log")
        before = processor_seconds(process.pid)
        receivers = []
        for _ in range(nodes):
            connection = grpc_request_response(
                f"127.0.0.1:{port}", insecure=True, retry_invoker=make_simple_grpc_retry_invoker()
            )
            _, receive, *_ = open_ones.enter_context(connection)
            receivers.append(receive)
        joined, started = processor_seconds(process.pid), time.perf_counter()
        with ThreadPoolExecutor(THREADS) as pool:
            for message in pool.map(lambda n: receivers[n % nodes](), range(polls)):
                assert message is None
        wall = time.perf_counter() - started
        finished = processor_seconds(process.pid)
        per_poll = 1000 * (finished - joined) / polls
        return Cost(nodes, 1000 * (joined - before) / nodes, per_poll, 1000 * wall / polls)


def _superlink(home: Path, port: int, health: int) -> subprocess.Popen[bytes]:
    program = Path(sysconfig.get_path("scripts")) / "flower-superlink"
    command = [str(program), "--insecure", "--isolation", "process"]
    command += ["--fleet-api-address", f"127.0.0.1:{port}", "--database", str(home / "state.db")]
    command += ["--host", "127.0.0.1", "--port", str(health)]
    quiet = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
    with (home / "log").open("wb") as log:
        return subprocess.Popen(command, env={**os.environ, **quiet}, stdout=log, stderr=log)


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as trial:
            trial.settimeout(1)
            if trial.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise FederationError(f"flower-superlink did not start: {tail(log)}")


if __name__ == "__main__":
    main()
