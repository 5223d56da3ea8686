"""Changes inside a process of Flower's, for benchmarks. The product has no such hooks.

A copy of this file called ``sitecustomize.py`` on a process's PYTHONPATH is run by Python before
anything else. The environment variable FAULT says what the process then does wrong:

    poison               this node's replies of rounds 1 … 5 hold forbidden values
    junk-MB              this node adds four arrays of 40 or 300 MB to every reply
    duplicate            this node sends every reply twice, and all its earlier replies again
    announce             this node announces its reply of round 2 and sends none of its parts
    no-message           this node's reply of round 2 is announced as a message but is none
    crash-in-checkpoint  this server kills itself when a checkpoint's files are written and the
                         folder does not have its name yet, once, at round 2
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any


def poison(wire: Any) -> None:
    """Send NaN, a wrong shape, a huge weight, a negative count and another node's client, a round
    each."""
    write = wire.write_reply

    def write_reply(reply: Any, *, reply_to: Any, **masked: Any) -> Any:
        server_round = reply_to.metadata.group_id
        if reply.arrays and server_round in ("1", "2"):
            name = sorted(reply.arrays)[0]
            array = reply.arrays[name].copy()
            array[0] = float("nan")
            reply.arrays[name] = array if server_round == "1" else array[..., :-1]
        elif reply.samples and server_round in ("3", "4"):
            reply.samples[0] = 10**12 if server_round == "3" else -5
        elif reply.names and server_round == "5":
            from fedproto_app.data.formats.synthetic_traffic import SITE_TYPES

            reply.names[0] = f"{SITE_TYPES[0].name}-00"  # the first node's first client
        return write(reply, reply_to=reply_to, **masked)

    wire.write_reply = write_reply


def junk(megabytes: int) -> Callable[[Any], None]:
    """Add four arrays of bytes that cannot be compressed and that nobody asked for."""

    def change(wire: Any) -> None:
        write = wire.write_reply

        def write_reply(reply: Any, *, reply_to: Any, **masked: Any) -> Any:
            from flwr.app import Array, ArrayRecord
            from numpy.random import default_rng

            message = write(reply, reply_to=reply_to, **masked)
            random, size = default_rng(), megabytes * 2**20
            arrays = {str(i): Array(random.integers(256, size=size, dtype="u1")) for i in range(4)}
            message.content["junk"] = ArrayRecord(arrays)
            return message

        wire.write_reply = write_reply

    return change


def duplicate(supernode: Any) -> None:
    """Send a reply with its objects, and then this and all earlier replies once more."""
    push = supernode._push_messages
    calls = []

    def push_twice(state: Any, object_store: Any, send: Any, push_object: Any) -> None:
        def send_and_note(*arguments: Any) -> Any:
            calls.append(arguments)
            return send(*arguments)

        push(state=state, object_store=object_store, send=send_and_note, push_object=push_object)
        for arguments in calls:
            send(*arguments)

    supernode._push_messages = push_twice


def announce(supernode: Any) -> None:
    """Announce a reply and keep its parts."""
    push = supernode._push_messages

    def push_few(state: Any, object_store: Any, send: Any, push_object: Any) -> None:
        withholds = False

        def send_and_note(message: Any, tree: Any, seconds: Any) -> Any:
            nonlocal withholds
            withholds = message.metadata.group_id == "2"
            return send(message, tree, seconds)

        def push_or_not(*arguments: Any) -> None:
            if not withholds:
                push_object(*arguments)

        push(state=state, object_store=object_store, send=send_and_note, push_object=push_or_not)

    supernode._push_messages = push_few


def no_message(supernode: Any) -> None:
    """Announce a reply whose one part is a record, where a message is expected."""
    push = supernode._push_messages

    def push_record(state: Any, object_store: Any, send: Any, push_object: Any) -> None:
        def send_record(message: Any, tree: Any, seconds: Any) -> Any:
            if message.metadata.group_id != "2":
                return send(message, tree, seconds)
            from flwr.app import ConfigRecord
            from flwr.proto.message_pb2 import ObjectTree

            record = ConfigRecord({"no": "message"})
            message.metadata.__dict__["_message_id"] = record.object_id
            _, session = send(message, ObjectTree(object_id=record.object_id), seconds)
            push_object(message.metadata.run_id, session, record.object_id, record.deflate())
            return set(), session

        push(state=state, object_store=object_store, send=send_record, push_object=push_object)

    supernode._push_messages = push_record


def crash_in_checkpoint(checkpoint: Any) -> None:
    """Crash as if the machine lost its power before the checkpoint had its name."""
    flush = checkpoint.flush

    def flush_or_die(path: Path) -> None:
        flush(path)
        root = path.parent
        if path.name == "new" and (root / "round-000001").exists():
            mark = root.parent / "crashed"
            if not mark.exists():
                mark.touch()
                os.truncate(path / "server.json", 100)  # not yet written to the disk
                os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.flush = flush_or_die


CHANGES: dict[str, tuple[str, Callable[[Any], None]]] = {
    "poison": ("fedproto_app.core.wire", poison),
    **{f"junk-{size}": ("fedproto_app.core.wire", junk(size)) for size in (40, 300)},
    "duplicate": ("flwr.supernode.start_client_internal", duplicate),
    "announce": ("flwr.supernode.start_client_internal", announce),
    "no-message": ("flwr.supernode.start_client_internal", no_message),
    "crash-in-checkpoint": ("fedproto_app.server.checkpoint", crash_in_checkpoint),
}


class ChangedModule(MetaPathFinder):
    """Import one module in the usual way, and then change it."""

    def __init__(self, module: str, change: Callable[[Any], None]) -> None:
        self._module, self._change = module, change

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._module:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next((candidate for candidate in specs if candidate is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_change(module: Any) -> None:
                execute(module)
                self._change(module)

            spec.loader.exec_module = execute_and_change  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize" and "FAULT" in os.environ:
    sys.meta_path.insert(0, ChangedModule(*CHANGES[os.environ["FAULT"]]))
