"""A simulation: the ServerApp runs in this process, the nodes' ClientApps in worker processes.

Flower's messages are serialised as for a network, so a run gives the same results as in Flower's
own simulation. Nodes write their state with each checkpoint, every few seconds. If only this
process has the nodes' code, for instance in a notebook, they work here, one after the other.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Message, UserConfig

from fedproto_app.core.wire import ALIVE, ROSTER, write_reply
from fedproto_app.engine import frames
from fedproto_app.engine.flower_parts import (
    FIRST_ID,
    EngineGrid,
    from_bytes,
    number,
    take_identity,
    to_bytes,
)
from fedproto_app.engine.local import LocalGrid
from fedproto_app.engine.pool import WorkerPool
from fedproto_app.node import process
from fedproto_app.node.merging import merged
from fedproto_app.node.orders import forget_data
from fedproto_app.report.artefacts import RunFolder
from fedproto_app.report.listeners import Shown
from fedproto_app.server.rounds import Persistence
from fedproto_app.server_app import conduct, reporting_errors
from fedproto_app.settings import Settings, flat_settings

Show = Callable[[Mapping[str, object]], None]

CHECKPOINT_EVERY = 5.0  # seconds of work that a killed run may have to repeat
_RARITY = 4  # the pause after a checkpoint is at least this many times as long as writing it
_SHARE_OF_ALL, _SHARE_OF_FREE = 0.6, 0.8  # shares of the memory that all nodes' state may take


@dataclass(frozen=True)
class PendingReply:
    """A node's reply to an order, in parts from the workers that share the order.

    The parts are read by the thread that wants the reply. If the threads of several workers read
    parts at once, Python 3.11 may fail, because numpy parses the headers of arrays as Python
    (https://github.com/python/cpython/issues/106905).
    """

    order: Message
    parts: list[Future[bytes]]

    def has_arrived(self) -> bool:
        return all(part.done() for part in self.parts)

    def read(self, timeout: float | None = None) -> Message:
        """Return the reply. If a worker had an error, the reply is that error."""
        answers = [part.result(timeout) for part in self.parts]
        for answer in answers:
            if answer[:1] == frames.REPLY:
                return from_bytes(answer[1:])
        replies = [reply for answer in answers for reply in frames.read_part(answer[1:])]
        return from_bytes(to_bytes(write_reply(merged(replies), reply_to=self.order)))


class WorkerGrid(EngineGrid):
    """A grid of nodes that run in the first workers of a pool.

    Normally a node belongs to one worker. If there are more workers than nodes, several work for
    the same node, each on some of the cohorts of its order. Their replies are joined here.
    """

    def __init__(self, pool: WorkerPool, nodes: int, workers: int) -> None:
        self._pool, self._nodes, self._workers = pool, nodes, workers
        self._replies: dict[str, PendingReply] = {}  # not yet pulled; keys: the messages' ids
        self._arrived, self._news = threading.Condition(), False

    def workers_of(self, node: int) -> list[int]:
        """Return the workers of a node. If there are several, they serve no other node."""
        if self._workers <= self._nodes:
            return [node % self._workers]
        return list(range(node, self._workers, self._nodes))

    def get_node_ids(self) -> Iterable[int]:
        return [FIRST_ID + node for node in range(self._nodes)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(number(message))
            self._replies[ids[-1]] = self._dispatch(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers that have arrived, or raise `FederationError` if a worker ended."""
        self._news = False
        done = [i for i in message_ids if i in self._replies and self._replies[i].has_arrived()]
        return [self._replies.pop(message_id).read() for message_id in done]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        replies = [self._replies.pop(message_id) for message_id in self.push_messages(messages)]
        return [reply.read(timeout) for reply in replies]

    def wait(self, seconds: float) -> None:
        """Wait until an answer arrives, but no longer than this.

        It returns at once if one has arrived since the last pull. Older answers, which nobody wants
        any more, do not end the wait.
        """
        with self._arrived:
            self._arrived.wait_for(lambda: self._news, seconds)

    def _dispatch(self, message: Message) -> PendingReply:
        node = message.metadata.dst_node_id - FIRST_ID
        workers = self.workers_of(node)
        if message.metadata.message_type in (ROSTER, ALIVE):
            workers = workers[:1]  # one answer is enough
        data = to_bytes(message)
        parts = [
            self._pool.ask(
                worker, frames.order_frame(frames.OrderFrame(node, part, len(workers), data))
            )
            for part, worker in enumerate(workers)
        ]
        reply = PendingReply(message, parts)

        def take(_: Future[bytes]) -> None:
            if reply.has_arrived():
                with self._arrived:
                    self._news = True
                    self._arrived.notify_all()

        for part in parts:
            part.add_done_callback(take)
        return reply


class WithState(Persistence):
    """Makes a checkpoint after the first round, then every few seconds.

    Before each checkpoint, the workers write their nodes' state. If writing takes long, checkpoints
    are rarer, so that at most a fifth of the time is spent on it. interval: seconds between
    checkpoints, or 0 for a checkpoint after every round. It must be 0 unless state is cached in
    memory: without a cache, every round changes the state on disk, which must suit the checkpoint.
    """

    def __init__(self, pool: WorkerPool, interval: float = CHECKPOINT_EVERY) -> None:
        self._pool, self._interval, self._next = pool, interval, -math.inf

    def is_due(self, *, last: bool) -> bool:
        return last or time.monotonic() >= self._next

    def prepare(self) -> None:
        start = time.monotonic()
        self._pool.flush()
        end = time.monotonic()
        self._next = end + max(self._interval, _RARITY * (end - start)) if self._interval else end


def simulate(
    settings: Settings, nodes: int, pool: WorkerPool, workers: int, show: Show
) -> RunFolder:
    """Run on this number of nodes and return the folder of the finished run.

    workers: how many of the pool's workers to use. show: called with each line of rounds.jsonl. If
    an error stops the run, writes it to ``error.txt`` and raises it as a `FedProtoError`.
    """
    take_identity()
    if settings.aggregation.secure:  # only one process may hold a node's secrets
        workers = min(workers, nodes)
    grid = WorkerGrid(pool, nodes, workers)
    with reporting_errors() as started:
        folder = started.folder = RunFolder(settings)
        memory = _memory_for(nodes, workers)
        pool.start(flat_settings(settings), nodes, memory)
        persistence = WithState(pool, CHECKPOINT_EVERY if memory else 0.0)
        conduct(grid, folder, persistence, [Shown(show)])
        return folder


def simulate_without_workers(settings: Settings, nodes: int, show: Show) -> RunFolder:
    """Do the same as `simulate`, but with all nodes in this process."""
    take_identity()
    forget_data()  # of an earlier run: in a notebook, files and functions may have changed
    configs: list[UserConfig] = [
        {"partition-id": node, "num-partitions": nodes} for node in range(nodes)
    ]
    with process.as_worker(), reporting_errors() as started:
        folder = started.folder = RunFolder(settings)
        conduct(LocalGrid(settings, configs), folder, watching=[Shown(show)])
        return folder


def _memory_for(nodes: int, workers: int) -> int:
    """Return the bytes of memory for a node's state, or 0 if several workers share its state."""
    if workers > nodes:
        return 0
    all_of_it = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min(_SHARE_OF_ALL * all_of_it, _SHARE_OF_FREE * _free_memory(all_of_it)) / nodes)


def _free_memory(otherwise: int) -> int:
    """Return the bytes that programs can allocate without swapping.

    otherwise: returned if the system does not report them.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux
        return otherwise
    kilobytes = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return 1024 * int(next(kilobytes, otherwise // 1024))


@contextmanager
def flowers_log(file: Path, echo: Callable[[str], None] | None) -> Iterator[None]:
    """Redirect Flower's log from stderr to this file. echo: is also called with each line."""
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
    """Passes each line to a function."""

    def __init__(self, echo: Callable[[str], None]) -> None:
        super().__init__()
        self._echo = echo

    def emit(self, record: logging.LogRecord) -> None:
        self._echo(self.format(record))
