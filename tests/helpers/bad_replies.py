"""Replies as a broken or hostile node would send them."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, Error, Message, MessageType

from fedproto_app.core.metrics import Metric
from fedproto_app.core.wire import array_record, numpy_arrays
from tests.helpers.local_grid import BAD_NODE, Tamper
from tests.helpers.reported import fields_of, with_fields, with_metric

Change = Callable[[Message], Message]


def on_reply(
    change: Callable[[Message], Message | None],
    kind: str = MessageType.TRAIN,
    server_round: int = 2,
    node: int = BAD_NODE,
) -> Tamper:
    """Change the bad node's reply to the messages of this kind in a round."""

    def tamper(node_id: int, reply: Message) -> Message | None:
        metadata = reply.metadata
        is_meant = (node_id, metadata.message_type, metadata.group_id) == (
            node,
            kind,
            str(server_round),
        )
        return change(reply) if is_meant else reply

    return tamper


def change_arrays(change: Callable[[dict[str, Any]], None]) -> Change:
    def tamper(reply: Message) -> Message:
        record = reply.content.array_records["arrays"]
        arrays = {name: array.copy() for name, array in numpy_arrays(record).items()}
        change(arrays)
        reply.content["arrays"] = array_record(arrays)
        return reply

    return tamper


def first(arrays: dict[str, Any]) -> str:
    return sorted(arrays)[0]


def put_nan(arrays: dict[str, Any]) -> None:
    arrays[first(arrays)].reshape(-1)[0] = np.nan


def set_row(name: str, row: int, value: Any) -> Change:
    """Other values in a row of this array."""

    def change(arrays: dict[str, Any]) -> None:
        arrays[name][row] = value

    return change_arrays(change)


def say(**changes: Any) -> Change:
    """Other values of these fields."""
    return lambda message: with_fields(message, fields_of(message) | changes)


def set_metric(metric: Metric, values: Any) -> Change:
    """Report other values of a metric, or leave it out (None)."""
    return lambda reply: with_fields(reply, with_metric(fields_of(reply), metric, values))


def put(field: str, value: Any) -> Change:
    """Another value in the record of the fields: "json", "seconds"."""

    def change(message: Message) -> Message:
        message.content.config_records["told"][field] = value
        return message

    return change


def say_bytes(content: Any) -> Change:
    """Anything in the place of JSON."""
    return put("json", content)


def replace_record(record: Any) -> Change:
    """Put another record in the place of the fields, or leave it out (None)."""

    def change(message: Message) -> Message:
        del message.content["told"]
        if record is not None:
            message.content["told"] = record
        return message

    return change


def broken_array(data: bytes) -> Change:
    """Replace one array's bytes, while its record still claims the right dtype and shape."""

    def tamper(reply: Message) -> Message:
        record = reply.content.array_records["arrays"]
        good = record[first(dict(record))]
        record[first(dict(record))] = Array(good.dtype, good.shape, good.stype, data)
        return reply

    return tamper


def npy_header(shape: tuple[int, ...]) -> bytes:
    file = BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


def fail(reply: Message) -> Message:
    """Return Flower's error in the place of the reply."""
    failed = Message(Error(code=6, reason="it broke"), reply_to=reply)
    order = reply.metadata.reply_to_message_id
    failed.metadata.__dict__["_reply_to_message_id"] = order  # Flower answers the order itself
    return failed
