"""A simulation in this process: the ServerApp here, the nodes' ClientApps in workers beside it.

Flower's messages are serialised and read as over a network, so a run ends as it does in Flower's
own simulation. State is written with the checkpoints, of which there is one every few seconds.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedproto_app.engine.flower_parts import take_identity
from fedproto_app.engine.grid import WorkerGrid
from fedproto_app.engine.pool import WorkerPool
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.listeners import Shown
from fedproto_app.server.persistence import Persistence
from fedproto_app.server_app import conduct, telling_of_errors
from fedproto_app.settings import Settings, flat_settings

Show = Callable[[Mapping[str, Any]], None]

CHECKPOINT_EVERY = 5.0  # seconds; what a killed run has to do again
_RARITY = 4  # a checkpoint waits so many times as long as the nodes' state took to write
_OF_ALL, _OF_FREE = 0.6, 0.8  # of this machine's memory, for the state of all nodes


class WithState(Persistence):
    """A checkpoint after the first round, then every few seconds.

    Before each the workers write their nodes' state; where that takes long, checkpoints are rarer,
    so that a fifth of the time at most goes into it. every: seconds between two; 0 where state does
    not wait in memory: the disk keeps the newest states, so it must not run ahead.
    """

    def __init__(self, pool: WorkerPool, every: float = CHECKPOINT_EVERY) -> None:
        self._pool, self._every, self._next = pool, every, -math.inf

    def is_due(self, *, last: bool) -> bool:
        return last or time.monotonic() >= self._next

    def prepare(self) -> None:
        start = time.monotonic()
        self._pool.flush()
        now = time.monotonic()
        self._next = now + max(self._every, _RARITY * (now - start)) if self._every else now


def simulate(
    settings: Settings, nodes: int, pool: WorkerPool, workers: int, show: Show
) -> RunFolder:
    """Run on this number of nodes; returns the folder of the finished run.

    workers: how many of the pool's work. show: called with each line of rounds.jsonl. Raises
    `FedProtoError` for what stops the run, after writing it to ``error.txt``.
    """
    take_identity()
    if settings.aggregation.secure:  # a node's secrets are one process's
        workers = min(workers, nodes)
    grid = WorkerGrid(pool, nodes, workers)
    with telling_of_errors() as known:
        folder = known.folder = RunFolder(settings)
        memory = _memory_for(nodes, workers)
        pool.start(flat_settings(settings), nodes, memory)
        persistence = WithState(pool, CHECKPOINT_EVERY if memory else 0.0)
        conduct(grid, settings, folder, persistence, [Shown(show)])
        return folder


def _memory_for(nodes: int, workers: int) -> int:
    """Bytes for the state of a node; none where several workers share the state of one."""
    if workers > nodes:
        return 0
    all_of_it = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(_OF_ALL * all_of_it, _OF_FREE * _free_memory(all_of_it)) / nodes)


def _free_memory(otherwise: int) -> int:
    """Bytes that programs can have without any other's being moved to the disk, if that is told."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return otherwise
    told = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return 1024 * int(next(told, otherwise // 1024))


@contextmanager
def flowers_log(file: Path, echo: Callable[[str], None] | None) -> Iterator[None]:
    """Flower's log goes to this file instead of stderr; echo: also there, line by line."""
    from flwr.common.logger import FLOWER_LOGGER

    written = logging.FileHandler(file)
    handlers: list[logging.Handler] = [written]
    if echo is not None:
        handlers.append(_Echo(echo))
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(levelname)s :      %(message)s"))
    before, FLOWER_LOGGER.handlers = FLOWER_LOGGER.handlers, handlers
    try:
        yield
    finally:
        FLOWER_LOGGER.handlers = before
        written.close()


class _Echo(logging.Handler):
    """Hands each line on."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        super().__init__()
        self._echo = echo

    def emit(self, record: logging.LogRecord) -> None:
        self._echo(self.format(record))
