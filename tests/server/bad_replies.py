"""Replies as a broken or hostile node would send them."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, Error, Message, MessageType

from fedproto_app.core.metrics import Metric, Model
from fedproto_app.core.wire import array_record, numpy_arrays
from fedproto_app.report.artefacts import RunFolder
from tests.reported import fields_of, with_fields, with_metric

BAD_NODE = 1001


def rounds(folder: RunFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder.path / "rounds.jsonl").read_text().splitlines()]


def on_reply(
    change: Callable[[Message], Message | None],
    kind: str = MessageType.TRAIN,
    server_round: int = 2,
) -> Callable[[int, Message], Message | None]:
    """Change the bad node's reply to the messages of this kind in a round."""

    def tamper(node_id: int, reply: Message) -> Message | None:
        metadata = reply.metadata
        if (node_id, metadata.message_type, metadata.group_id) == (
            BAD_NODE,
            kind,
            str(server_round),
        ):
            return change(reply)
        return reply

    return tamper


def change_arrays(change: Callable[[dict[str, Any]], None]) -> Callable[[Message], Message]:
    def tamper(reply: Message) -> Message:
        arrays = {
            n: a.copy() for n, a in numpy_arrays(reply.content.array_records["arrays"]).items()
        }
        change(arrays)
        reply.content["arrays"] = array_record(arrays)
        return reply

    return tamper


def first(arrays: dict[str, Any]) -> str:
    return sorted(arrays)[0]


def put_nan(arrays: dict[str, Any]) -> None:
    arrays[first(arrays)].reshape(-1)[0] = np.nan


def wrong_shape(arrays: dict[str, Any]) -> None:
    arrays[first(arrays)] = arrays[first(arrays)][..., :-1]


def wrong_dtype(arrays: dict[str, Any]) -> None:
    arrays[first(arrays)] = arrays[first(arrays)].astype(np.float64)


def missing(arrays: dict[str, Any]) -> None:
    del arrays[first(arrays)]


def extra(arrays: dict[str, Any]) -> None:
    arrays["one more"] = arrays[first(arrays)]


def of_third(name: str, value: Any) -> Callable[[Message], Message]:
    """What the third client of the node sends in this array."""

    def change(arrays: dict[str, Any]) -> None:
        arrays[name][2] = value

    return change_arrays(change)


def say(**changes: Any) -> Callable[[Message], Message]:
    """Other values of these fields."""
    return lambda reply: with_fields(reply, fields_of(reply) | changes)


def set_metric(metric: Metric, values: Any) -> Callable[[Message], Message]:
    """Other values of a metric; None: it is left out."""
    return lambda reply: with_fields(reply, with_metric(fields_of(reply), metric, values))


def set_seconds(value: Any) -> Callable[[Message], Message]:
    def tamper(reply: Message) -> Message:
        reply.content["told"]["seconds"] = value
        return reply

    return tamper


def say_nothing(reply: Message) -> Message:
    del reply.content["told"]
    return reply


def broken_array(data: bytes) -> Callable[[Message], Message]:
    """One array's bytes replaced; its record still claims the right dtype and shape."""

    def tamper(reply: Message) -> Message:
        record = reply.content.array_records["arrays"]
        name = sorted(record)[0]
        good = record[name]
        record[name] = Array(good.dtype, good.shape, good.stype, data)
        return reply

    return tamper


def npy_header(shape: tuple[int, ...]) -> bytes:
    file = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def count_nothing(reply: Message) -> Message:
    reply.content["told"]["empty"] = []
    return reply


def fail(reply: Message) -> Message:
    failed = Message(Error(code=6, reason="it broke"), reply_to=reply)
    order = reply.metadata.reply_to_message_id
    failed.metadata.__dict__["_reply_to_message_id"] = order  # Flower answers the order itself
    return failed


# what the bad node does, the reason in the log, clients refused by name under FUELS ("" = node)
FAULTS = [
    (change_arrays(put_nan), "NaN", 1),
    (change_arrays(wrong_shape), "shape", 0),
    (change_arrays(wrong_dtype), "dtype float64", 0),
    (change_arrays(missing), "arrays missing", 0),
    (say(names=["office-00", "x", "y", "z"]), "not a client of this node", 4),
    (say(names=["x"]), "4 sample counts for 1", 0),
    (say(samples=[-1] * 4), "expected 1 … ", 4),
    (say(samples=[10**9] * 4), "expected 1 … ", 4),
    (say(samples=[1]), "1 sample counts for 4", 0),
    (say(losses={"total": [float("nan")] * 4}), "not finite", 4),
    (say_nothing, "malformed", 0),
    (fail, "it broke", 0),
    (broken_array(b""), "cannot be read", 0),
    (broken_array(b"PK\x03\x04 no zip"), "cannot be read", 0),
    (broken_array(b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4', "), "cannot be read", 0),
    (broken_array(npy_header((10**12,))), "shape", 0),
    (set_metric(Metric("mse", Model.LOCAL), [float("nan")] * 4), "not finite", 4),
    (set_metric(Metric("mse", Model.LOCAL), [-1.0] * 4), "not finite", 4),
    (say(kept_rounds=[-1] * 4), "kept round", 4),
    (say(kept_rounds=["x"] * 4), "kept_rounds.0: Input should be a valid integer", 0),
    (set_metric(Metric("mse", Model.KEPT), None), "all of its kept metrics", 0),
    (set_seconds(-1.0), "seconds = -1.0", 0),
    (say(names=[1, 2, 3, 4]), "names.0: Input should be a valid string", 0),
    (say(names=["x" * 1000] * 4), "at most 256 are possible", 0),
]
NAMES = ["nan", "shape", "dtype", "missing", "foreign", "few", "negative", "absurd", "count"]
NAMES += ["loss", "nothing", "error", "empty-array", "zip", "cut-header", "huge-header"]
NAMES += ["nan-metric", "negative-metric", "kept-round", "text-round"]
NAMES += ["half-evaluated", "seconds", "number-names", "long-names"]
