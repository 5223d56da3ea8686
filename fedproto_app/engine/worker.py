"""A worker process of the engine: the ClientApp of some nodes, order after order.

The engine starts one process of this module. It imports what all workers need, once, and forks into
as many workers as it was given sockets for. A worker ends with the engine, whatever ended the
engine: nobody writes into the lifeline, and it closes when the engine ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from flwr.app import Context, Error, Message, MessageType, RecordDict

from fedproto_app.client_app import app
from fedproto_app.core.errors import FedProtoError
from fedproto_app.core.wire import QUESTION, read_order
from fedproto_app.engine import frames
from fedproto_app.engine.flower_parts import RUN_ID, from_bytes, take_identity, to_bytes
from fedproto_app.node import orders, process

RAISED = 6  # the code of Flower's error for a ClientApp that raised
PHASES: dict[str, orders.Phase] = {
    MessageType.TRAIN: "train",
    MessageType.EVALUATE: "evaluate",
    QUESTION: "question",
}


class Worker:
    """The nodes that this process works for.

    A node is a share of the run's data, given by its number and how many there are.
    """

    def __init__(self, config: dict[str, Any], nodes: int) -> None:
        self._config, self._nodes = config, nodes
        self._contexts: dict[int, Context] = {}

    def answer(self, order: frames.OrderFrame) -> bytes:
        """The reply of a node, or this process's part of it, as the engine reads it."""
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


def serve(engine: Connection, number: int = 0) -> None:
    """Answer the engine's requests until it hangs up. number: this worker's."""
    worker: Worker | None = None
    while True:
        try:
            request = engine.recv_bytes()
        except (EOFError, OSError):
            return
        kind, content = request[:1], request[1:]
        answer = frames.DONE
        if kind == frames.START:
            told = json.loads(content)
            process.become_worker(told["memory"], told["nodes"], number)
            worker = Worker(told["config"], told["nodes"])
        elif kind == frames.ORDER:
            assert worker is not None, "an order before the start"
            answer = worker.answer(frames.read_order_frame(content))
        else:
            answer = flushed()
        engine.send_bytes(answer)


def flushed() -> bytes:
    """Write all state that waits; the answer, with the reason if that cannot be."""
    try:
        process.flush()
    except (FedProtoError, OSError) as fault:
        return frames.FAILED + orders.reason_of(fault).encode()
    return frames.DONE


def end_with(lifeline: int) -> None:
    """End this process, busy or not, when the other end of the pipe is closed."""

    def wait() -> None:
        os.read(lifeline, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """Arguments: the lifeline's file descriptor, then a socket's for each worker."""
    lifeline, *sockets = map(int, sys.argv[1:])
    take_identity()
    own = sockets[0]
    for socket in sockets[1:]:
        if os.fork() == 0:
            own = socket
            break
    for socket in sockets:
        if socket != own:
            os.close(socket)
    end_with(lifeline)
    serve(Connection(own), sockets.index(own))
    os._exit(0)  # no worker has anything to tidy up


if __name__ == "__main__":
    main()
