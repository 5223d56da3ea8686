"""The bytes that the engine and its workers exchange.

A request is one letter and its content:

    S   start: the run's settings, the number of nodes, the memory for each, as JSON
    O   order: which node, which part of how many, then a Flower message
    F   flush: write all state that waits in memory

An answer has the same form. R is a reply: a Flower message. P is a part of a reply: the replies of
a process's cohorts (`part_bytes`). D means done. E is an error: the reason as text.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import NamedTuple

import numpy as np

from fedproto_app.core.messages import Reply
from fedproto_app.core.metrics import metric_of, metric_row
from fedproto_app.core.stored import AnyArray

START, ORDER, FLUSH = b"S", b"O", b"F"
REPLY, PART, DONE, FAILED = b"R", b"P", b"D", b"E"
_ORDER = struct.Struct("<III")
_TABLE = "table"
_ARRAYS = ("arrays", "totals")  # the fields of a cohort's reply that hold arrays


class OrderFrame(NamedTuple):
    """One worker's part of an order. message: Flower's message as bytes."""

    node: int
    part: int
    parts: int
    message: bytes


def start_frame(run_config: Mapping[str, object], nodes: int, memory: int) -> bytes:
    """Return the request that starts a worker.

    nodes: the number of nodes in the whole simulation. memory: bytes for each node's state, or 0.
    """
    return START + json.dumps({"config": run_config, "nodes": nodes, "memory": memory}).encode()


def order_frame(order: OrderFrame) -> bytes:
    return ORDER + _ORDER.pack(order.node, order.part, order.parts) + order.message


def read_order_frame(content: bytes) -> OrderFrame:
    """Read the content of a request. It is given without its letter."""
    node, part, parts = _ORDER.unpack_from(content)
    return OrderFrame(node, part, parts, content[_ORDER.size :])


def part_bytes(replies: Sequence[Reply]) -> bytes:
    """Return a process's replies as npz bytes: their arrays, and all else as JSON."""
    arrays: dict[str, AnyArray] = {}
    tables = []
    for number, reply in enumerate(replies):
        metrics = [(metric_row(metric), values) for metric, values in reply.metrics.items()]
        table = {**vars(reply), "metrics": metrics}
        for group in _ARRAYS:
            group_arrays = table.pop(group)
            arrays |= {f"{number}/{group}/{name}": array for name, array in group_arrays.items()}
        tables.append(table)
    file, text = BytesIO(), json.dumps(tables).encode()
    np.savez(file, allow_pickle=False, **{_TABLE: np.frombuffer(text, np.uint8)}, **arrays)
    return file.getvalue()


def read_part(content: bytes) -> list[Reply]:
    """Return the replies that `part_bytes` wrote."""
    with np.load(BytesIO(content), allow_pickle=False) as file:
        tables = json.loads(file[_TABLE].tobytes())
        groups: dict[tuple[int, str], dict[str, AnyArray]] = {}
        for key in file.files:
            if key != _TABLE:
                number, group, name = key.split("/", 2)
                groups.setdefault((int(number), group), {})[name] = file[key]
    replies = []
    for number, table in enumerate(tables):
        table |= {group: groups.get((number, group), {}) for group in _ARRAYS}
        table["metrics"] = {metric_of(row): values for row, values in table["metrics"]}
        replies.append(Reply(**table))
    return replies
