"""A Flower Grid whose nodes run in processes of this machine.

A node belongs to one worker. Where there are more workers than nodes, several work for a node, each
on some cohorts of an order, and their parts are put together here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from fedproto_app.core.wire import ALIVE, ROSTER, write_reply
from fedproto_app.engine import frames
from fedproto_app.engine.flower_parts import from_bytes, number, to_bytes
from fedproto_app.engine.pool import WorkerPool
from fedproto_app.node.part_reply import merged

_FIRST = 1000  # Flower's id of node 0


class WorkerGrid(Grid):
    """The nodes of a simulation, over the first workers of a pool."""

    def __init__(self, pool: WorkerPool, nodes: int, workers: int) -> None:
        self._pool, self._nodes, self._workers = pool, nodes, workers
        self._answers: dict[str, Future[Message]] = {}  # not yet pulled, by the message's id
        self._arrived, self._news = threading.Condition(), False

    def workers_of(self, node: int) -> list[int]:
        """Return the workers of a node; if it has several, they serve no other node."""
        if self._workers <= self._nodes:
            return [node % self._workers]
        return list(range(node, self._workers, self._nodes))

    def get_node_ids(self) -> Iterable[int]:
        return [_FIRST + node for node in range(self._nodes)]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            ids.append(number(message))
            self._answers[ids[-1]] = self._dispatch(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the answers that have arrived; raise `FederationError` if a worker has ended."""
        self._news = False
        done = [
            message_id
            for message_id in message_ids
            if message_id in self._answers and self._answers[message_id].done()
        ]
        return [self._answers.pop(message_id).result() for message_id in done]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        futures = [self._answers.pop(message_id) for message_id in self.push_messages(messages)]
        return [future.result(timeout) for future in futures]

    def wait(self, seconds: float) -> None:
        """Wait until an answer has come since the last pull, but no longer than this.

        Those that came before it and that nobody wants any more end no wait.
        """
        with self._arrived:
            self._arrived.wait_for(lambda: self._news, seconds)

    def _dispatch(self, message: Message) -> Future[Message]:
        node = message.metadata.dst_node_id - _FIRST
        workers = self.workers_of(node)
        if message.metadata.message_type in (ROSTER, ALIVE):
            workers = workers[:1]  # each of them could answer
        data = to_bytes(message)
        parts = [
            self._pool.ask(
                worker, frames.order_frame(frames.OrderFrame(node, part, len(workers), data))
            )
            for part, worker in enumerate(workers)
        ]
        reply: Future[Message] = Future()
        missing = threading.Semaphore(len(parts) - 1)

        def take(_: Future[bytes]) -> None:
            if missing.acquire(blocking=False):  # others are still at work
                return
            try:
                reply.set_result(_put_together([part.result() for part in parts], message))
            except BaseException as error:  # raised again when the answer is pulled
                reply.set_exception(error)
            with self._arrived:
                self._news = True
                self._arrived.notify_all()

        for part in parts:
            part.add_done_callback(take)
        return reply

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise AssertionError("the app asks for no run")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated in Flower")


def _put_together(answers: list[bytes], message: Message) -> Message:
    """Return the node's reply; an error of one worker is the node's error."""
    for answer in answers:
        if answer[:1] == frames.REPLY:
            return from_bytes(answer[1:])
    parts = [frames.read_part(answer[1:]) for answer in answers]
    return from_bytes(to_bytes(write_reply(merged(parts), to=message)))
