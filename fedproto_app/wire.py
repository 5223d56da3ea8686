"""Every record that crosses the network: names, shapes, dtypes.

The only room that builds a RecordDict. Everything per client carries a leading client
axis in the order of ``names``. What the server believes of an answer is decided in `replies`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    ConfigRecordValues,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from numpy.typing import NDArray

from fedproto_app.messages import Arrays, NodeRoster, Order, Reply

ROSTER, ALIVE = f"{MessageType.QUERY}.roster", f"{MessageType.QUERY}.alive"
ARRAYS, ORDER, METRICS, CLIENTS = "arrays", "order", "metrics", "clients"  # records
SAMPLES, SECONDS = "num-examples", "seconds"  # metrics
LOSS, METRIC = "loss/", "metric/"  # prefixes of metrics per client


def _config(**values: ConfigRecordValues) -> ConfigRecord:
    """A record of these values ("_" becomes "-") without empty lists: Flower cannot count those."""
    kept = {
        k.replace("_", "-"): v for k, v in values.items() if not (isinstance(v, list) and not v)
    }
    return ConfigRecord(kept)


def _strings(config: ConfigRecord, key: str) -> list[str]:
    return list(cast(list[str], config.get(key, [])))


# --- the node's side --------------------------------------------------------------------------


def read_order(message: Message) -> Order:
    """The order in a train or evaluate message."""
    config = message.content.config_records[ORDER]
    values = cast(list[float], config.get("option-values", []))
    return Order(
        run=cast(str, config["run"]),
        token=cast(str, config["token"]),
        server_round=cast(int, config["server-round"]),
        clients=_strings(config, "clients"),
        evaluate=cast(bool, config["evaluate"]),
        arrays=numpy_arrays(message.content.array_records.get(ARRAYS, ArrayRecord())),
        guided=_strings(config, "guided"),
        classes=list(cast(list[int], config.get("classes", []))),
        options=dict(zip(_strings(config, "options"), values, strict=True)),
    )


def write_reply(reply: Reply, to: Message) -> Message:
    """The node's answer to a train or evaluate message."""
    metrics = MetricRecord({SECONDS: float(reply.seconds)})
    if reply.names:
        metrics[SAMPLES] = list(reply.samples)
        for prefix, values in ((LOSS, reply.losses), (METRIC, reply.metrics)):
            for name, per_client in values.items():
                metrics[prefix + name] = [float(value) for value in per_client]
    clients = _config(
        names=list(reply.names),
        kept_rounds=list(reply.kept_rounds),
        failed=list(reply.failed),
        reasons=list(reply.failed.values()),
        class_numbers=[len(classes) for classes in reply.classes],
        classes=[one for classes in reply.classes for one in classes],
    )
    content = RecordDict({METRICS: metrics, CLIENTS: clients})
    if reply.arrays:
        content[ARRAYS] = array_record(reply.arrays)
    return Message(content, reply_to=to)


def write_roster(roster: NodeRoster, to: Message) -> Message:
    """The node's answer to the roster query."""
    config = _config(
        label=roster.label,
        partitions=roster.partitions,
        names=list(roster.samples),
        samples=list(roster.samples.values()),
        groups=list(roster.groups.values()),
        missing_shares=list(roster.missing_shares.values()),
        refused=list(roster.refused),
        reasons=list(roster.refused.values()),
        error=roster.error,
        inputs=list(roster.inputs),
        classes=list(roster.classes),
        counted=list(roster.class_counts),
        stage_numbers=[len(stages) for stages in roster.class_counts.values()],
        class_counts=[n for stages in roster.class_counts.values() for row in stages for n in row],
        noted=list(roster.notes),
        notes=list(roster.notes.values()),
    )
    return Message(RecordDict({CLIENTS: config}), reply_to=to)


def write_alive(to: Message) -> Message:
    """The node's answer to the question whether it is alive: that it answers."""
    return Message(RecordDict(), reply_to=to)


# --- the server's side ------------------------------------------------------------------------


def write_order(order: Order, node_id: int, message_type: str) -> Message:
    """The message that carries an order to a node, with a RecordDict of its own."""
    config = _config(
        run=order.run,
        token=order.token,
        server_round=order.server_round,
        clients=list(order.clients),
        evaluate=order.evaluate,
        guided=list(order.guided),
        classes=list(order.classes),
        options=list(order.options),
        option_values=list(order.options.values()),
    )
    content = RecordDict({ORDER: config})
    if order.arrays:
        content[ARRAYS] = array_record(order.arrays)
    return Message(
        content,
        dst_node_id=node_id,
        message_type=message_type,
        group_id=str(order.server_round),
    )


def roster_query(node_id: int) -> Message:
    """Ask a node for its clients."""
    return Message(RecordDict(), dst_node_id=node_id, message_type=ROSTER, group_id="0")


def alive_query(node_id: int) -> Message:
    """Ask a node for a sign of life, which is an empty answer."""
    return Message(RecordDict(), dst_node_id=node_id, message_type=ALIVE, group_id="0")


def flower_average_input(
    reply: Reply, message: Message, averaged: Collection[str], weight: int
) -> Message:
    """The reply as Flower's own strategies want it: one ArrayRecord, one scalar weight.

    averaged: the names of the arrays to average. weight: that of the node.
    """
    content = RecordDict(
        {
            ARRAYS: array_record({name: reply.arrays[name] for name in averaged}),
            METRICS: MetricRecord({SAMPLES: weight}),
        }
    )
    clean = Message(content, reply_to=message)
    clean.metadata.__dict__.update(message.metadata.__dict__)
    return clean


def array_record(arrays: Arrays) -> ArrayRecord:
    """NumPy arrays as Flower's record."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in arrays.items()})


def numpy_arrays(record: ArrayRecord) -> Arrays:
    """Flower's record as NumPy arrays."""
    return {name: cast("NDArray[np.float32]", array.numpy()) for name, array in record.items()}


def sent_bytes(message: Message) -> int:
    """Bytes of a message's records as Flower counts them."""
    return sum(record.count_bytes() for record in message.content.values())
