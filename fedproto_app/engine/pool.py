"""The engine's worker processes. A thread in this process serves each of them."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from fedproto_app.core.errors import FederationError
from fedproto_app.engine import frames, starter

MOST_WORKERS = starter.MOST_FILES - 1
_GRACE = 10.0  # seconds in which a worker may end by itself


class WorkerPool:
    """A pool of workers for a ``with`` block.

    import_path: a folder that workers may import modules from, such as a user's own data source,
    or None. log: the file for the workers' output. Call `start` once, then `ask`.
    """

    def __init__(self, count: int, log: Path, import_path: Path | None = None) -> None:
        if count > MOST_WORKERS:
            raise FederationError(f"workers = {count}: at most {MOST_WORKERS}")
        self.count, self._started = count, False
        pairs = [socket.socketpair() for _ in range(count)]
        ending, self._lifeline = os.pipe()  # the system closes it, however this process ends
        files = [ending, *(end.fileno() for _, end in pairs)]
        with log.open("ab") as output:
            starter.start("fedproto_app.engine.worker:main", files, output, import_path)
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
        self._started = True
        frame = frames.start_frame(run_config, nodes, memory)
        for number in range(self.count):
            self.ask(number, frame)

    def flush(self) -> None:
        """Let all workers write their state, and wait for them.

        Raises `FederationError` if a worker cannot write.
        """
        for future in [self.ask(number, frames.FLUSH) for number in range(self.count)]:
            answer = future.result()
            if answer[:1] == frames.FAILED:
                raise FederationError(f"a worker process {answer[1:].decode()}")

    def ask(self, worker: int, request: bytes) -> Future[bytes]:
        """Send a request, return a future for its answer. A worker does one request at a time."""
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
            with suppress(EOFError, OSError):  # EOF: the worker has ended
                while self._started and connection.poll(_GRACE):
                    connection.recv_bytes()
            connection.close()

    def _exchange(self, worker: int, request: bytes) -> bytes:
        connection = self._connections[worker]
        try:
            connection.send_bytes(request)
            return connection.recv_bytes()
        except (EOFError, OSError):
            raise FederationError(
                f"worker process {worker + 1} of {self.count} has ended; the run can be resumed "
                "from its newest checkpoint"
            ) from None


def end_with(lifeline: int) -> None:
    """End this process, busy or not, when the other end of the pipe is closed."""

    def wait() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
