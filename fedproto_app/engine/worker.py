"""A worker process of the engine. It runs the ClientApp of some nodes, order after order.

A run's first worker reads the data once and forks to make the others. A worker ends with the
engine, however the engine ends. It learns of this from the lifeline, a pipe into which nothing is
written and which closes when the engine ends.
"""

from __future__ import annotations

import json
import os
import traceback
from multiprocessing.connection import Connection

from flwr.app import Context, Error, Message, MessageType, RecordDict, UserConfig

from fedproto_app.client_app import app
from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.wire import QUESTION, read_order
from fedproto_app.engine import frames
from fedproto_app.engine.flower_parts import RAISED, RUN_ID, from_bytes, take_identity, to_bytes
from fedproto_app.engine.pool import end_with
from fedproto_app.node import orders, process, store
from fedproto_app.settings import settings_from
from fedproto_app.tasks.table import clients_of

PHASES: dict[str, orders.Phase] = {
    MessageType.TRAIN: "train",
    MessageType.EVALUATE: "evaluate",
    QUESTION: "question",
}


class Worker:
    """The nodes that this process serves.

    nodes: the number of nodes in the simulation. A node's number says which share of data it has.
    """

    def __init__(self, config: UserConfig, nodes: int) -> None:
        self._config, self._nodes = config, nodes
        self._contexts: dict[int, Context] = {}

    def answer(self, order: frames.OrderFrame) -> bytes:
        """Return a node's reply, or this process's part of it, as a frame for the engine."""
        message, context = from_bytes(order.message), self._context(order.node)
        try:
            if order.parts == 1:
                reply = app(message, context)
                return frames.REPLY + to_bytes(reply)
            phase = PHASES[message.metadata.message_type]
            part = orders.Part(order.part, order.parts)
            done = orders.carry_out_part(phase, read_order(message), context, part, simulated=True)
            return frames.PART + frames.part_bytes(done)
        except Exception as error:
            traceback.print_exc()
            failed = Message(Error(code=RAISED, reason=repr(error)), reply_to=message)
            return frames.REPLY + to_bytes(failed)

    def _context(self, node: int) -> Context:
        if node not in self._contexts:
            self._contexts[node] = Context(
                run_id=RUN_ID,
                node_id=node,
                node_config={"partition-id": node, "num-partitions": self._nodes},
                state=RecordDict(),
                run_config=self._config,
            )
        return self._contexts[node]


def serve(engine: Connection, request: bytes | None, number: int = 0) -> None:
    """Answer the engine's requests until it closes the connection.

    request: the first request, or None if it has not come yet. number: this worker's number.
    """
    worker: Worker | None = None
    while True:
        request = request or received(engine)
        if request is None:
            return
        kind, content = request[:1], request[1:]
        answer = frames.DONE
        if kind == frames.START:
            start = json.loads(content)
            process.become_worker(number)
            store.keep_state_in_memory(start["memory"], start["nodes"])
            worker = Worker(start["config"], start["nodes"])
        elif kind == frames.ORDER:
            assert worker is not None, "an order before the start"
            answer = worker.answer(frames.read_order_frame(content))
        else:
            answer = flushed()
        engine.send_bytes(answer)
        request = None


def received(engine: Connection) -> bytes | None:
    """Return the next request, or None if the engine has ended."""
    try:
        return engine.recv_bytes()
    except (EOFError, OSError):
        return None


def read_data(start: bytes) -> None:
    """Read the data of the run that this request starts, so that forked workers have them.

    A user's function is called only in the workers, because it may start threads, which a fork does
    not copy. Faults are ignored here: the nodes meet the same fault and tell the server.
    """
    config = json.loads(start[1:])["config"]
    try:
        settings = settings_from(config)
        if ":" not in settings.data.source:
            clients_of(settings.task).read(settings)
    except Exception:
        return


def flushed() -> bytes:
    """Write all cached state. Return the answer, which gives the reason if writing failed."""
    try:
        store.flush()
    except (FedProtoError, OSError) as fault:
        return frames.FAILED + orders.reason_of(fault).encode()
    return frames.DONE


def main(lifeline: int, *sockets: int) -> None:
    """Run a worker for each socket, the first in this process. Arguments: file descriptors."""
    take_identity()
    own_socket = sockets[0]
    request = received(first := Connection(own_socket))
    if request is None:
        return
    if request[:1] == frames.START:
        read_data(request)
    for socket in sockets[1:]:
        if os.fork() == 0:
            own_socket, request = socket, None
            break
    for socket in sockets:
        if socket != own_socket:
            os.close(socket)
    end_with(lifeline)
    engine = first if own_socket == sockets[0] else Connection(own_socket)
    serve(engine, request, sockets.index(own_socket))
