"""The engine's worker processes, each with a thread in this process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from fedproto_app.core.errors import FederationError
from fedproto_app.engine import frames

# One thread a worker: else every worker's libraries would use all cores, and sums their order.
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_GRACE = 10.0  # seconds until workers must have ended


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class WorkerPool:
    """A pool of workers for a ``with`` block.

    import_path: a folder whose modules workers may import (a user's own data source), or None.
    log: the file for their output. Call `start` once, then `ask`.
    """

    def __init__(self, count: int, log: Path, import_path: Path | None = None) -> None:
        if not hasattr(os, "fork"):
            raise FederationError("this system cannot fork workers; use --engine flower")
        self.count = count
        pairs = [socket.socketpair() for _ in range(count)]
        ending, self._lifeline = os.pipe()  # closed by the system, too, however this process ends
        worker_ends = [pair[1].fileno() for pair in pairs]
        with log.open("ab") as output:
            self._first = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "fedproto_app.engine.worker",
                    *map(str, [ending, *worker_ends]),
                ],
                pass_fds=[ending, *worker_ends],
                env=worker_environment(import_path),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # only this process handles Ctrl-C
            )
        os.close(ending)
        for _, end in pairs:
            end.close()
        self._connections = [Connection(pair[0].detach()) for pair in pairs]
        self._threads = [ThreadPoolExecutor(1, f"worker-{number}") for number in range(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, run_config: Mapping[str, object], nodes: int, memory: int) -> None:
        """Send the run's settings to all workers, without waiting for them."""
        frame = frames.start_frame(run_config, nodes, memory)
        for number in range(self.count):
            self.ask(number, frame)

    def flush(self) -> None:
        """Let all workers write their state, and wait for them.

        Raises `FederationError` if one cannot.
        """
        for future in [self.ask(number, frames.FLUSH) for number in range(self.count)]:
            answer = future.result()
            if answer[:1] == frames.FAILED:
                raise FederationError(f"a worker process {answer[1:].decode()}")

    def ask(self, worker: int, request: bytes) -> Future[bytes]:
        """Return the future answer; a worker answers its requests one after the other."""
        return self._threads[worker].submit(self._exchange, worker, request)

    def close(self) -> None:
        """End the workers at once, busy or not."""
        if self._lifeline < 0:
            return
        os.close(self._lifeline)
        self._lifeline = -1
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)
        for connection in self._connections:
            connection.close()
        try:
            self._first.wait(_GRACE)
        except subprocess.TimeoutExpired:
            self._first.kill()
            self._first.wait()

    def _exchange(self, worker: int, request: bytes) -> bytes:
        connection = self._connections[worker]
        try:
            connection.send_bytes(request)
            return connection.recv_bytes()
        except (EOFError, OSError):
            raise FederationError(
                f"worker process {worker + 1} of {self.count} has ended; the run stands as of its "
                "newest checkpoint"
            ) from None


def worker_environment(import_path: Path | None = None) -> dict[str, str]:
    """Return the environment of a process with one thread that finds this package.

    import_path: a folder whose modules it may import too, as it may those of this process's script.
    """
    prefixes = {sys.prefix, sys.base_prefix}
    others = [path for path in sys.path if not any(map(Path(path).is_relative_to, prefixes))]
    first = [import_path, Path(__file__).parents[2], os.environ.get("PYTHONPATH")]
    paths = dict.fromkeys(filter(None, [*first, *others]))
    return {
        **os.environ,
        **dict.fromkeys(_ONE_THREAD, "1"),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
    }
