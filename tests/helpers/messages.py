"""Good messages of a node, to be read as they are or spoilt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import Message

from fedproto_app.core.messages import NodeRoster, Order, Refusal, Reply, SampleTimes
from fedproto_app.core.metrics import Metric, Model
from fedproto_app.core.sends import Expected
from fedproto_app.core.wire import write_order, write_reply, write_roster
from fedproto_app.server.replies import read_reply

SAMPLES = {"a": 10, "b": 20, "c": 5}
SPEC = Expected(per_client={"head": (3,)}, per_class={"prototypes": (2,)}, classes=5)
MSE, KEPT_MSE = Metric("mse"), Metric("mse", Model.KEPT)
REPLY = Reply(
    names=["a", "b"],
    samples=[10, 7],
    losses={"total": [0.1, 1e-320]},
    metrics={MSE: [0.1 + 0.2, 2.0], KEPT_MSE: [1.0, 1 / 3], Metric("mse", shared=True): [3.0, 4.0]},
    kept_rounds=[1, 0],
    failed={"c": "its disk is full"},
    arrays={
        "head": np.arange(6, dtype=np.float32).reshape(2, 3),
        "prototypes": np.ones((3, 2), np.float32),
    },
    seconds=0.25,
    classes=[[0, 4], [2]],
)
ROSTER = NodeRoster(
    label="n",
    partitions=2,
    samples={"a": 10, "b": 20},
    groups={"a": "", "b": "g"},
    missing_shares={"a": 0.0, "b": 0.1},
    refused={"c": "too short"},
    inputs=(3, 4),
    classes=("x", "y"),
    columns=("temperature", "weather=fog"),
    class_counts={"a": ((1, 9),), "b": ((5, 5), (10, 0))},
    notes={"b": "half of it is missing"},
    times={"a": SampleTimes("1 hours", 7, 17, 20)},
)


def node_roster(label: str, *clients: str, **changes: Any) -> NodeRoster:
    """Return what a node with these clients says of itself, each with 48 train samples."""
    samples, groups = dict.fromkeys(clients, 48), dict.fromkeys(clients, "")
    return replace(
        NodeRoster(label, 0, samples, groups, dict.fromkeys(clients, 0.0), {}), **changes
    )


def fault(metrics: Mapping[Metric, float]) -> str | None:
    """Why these metrics cannot be true."""
    bad = [str(metric) for metric, value in metrics.items() if not 0 <= value < math.inf]
    return f"not finite and positive: {bad[0]}" if bad else None


def order_message(order: Order | None = None) -> Message:
    message = write_order(order or Order("run", "token", 1, ["a", "b"]), 1, "train")
    message.metadata.__dict__["_message_id"] = "order"
    return message


def message_of(reply: Reply = REPLY) -> Message:
    return write_reply(reply, reply_to=order_message())


def roster_message() -> Message:
    return write_roster(ROSTER, reply_to=order_message())


def read(message: Message) -> tuple[Reply | None, list[Refusal]]:
    return read_reply(message, "n", SAMPLES, SPEC, (MSE, KEPT_MSE), fault)
