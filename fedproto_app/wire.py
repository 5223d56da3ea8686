"""Every record that crosses the network: names, shapes, dtypes; encode, decode, refuse.

The only room that builds or reads a RecordDict. Everything per client carries a leading client
axis in the order of ``names``. The server never trusts a reply: the readers here check it against
what was asked and hand back the good part and a `Refusal` for each bad one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

Arrays = dict[str, NDArray[np.float32]]
PerClient = dict[str, list[float]]

ROSTER = f"{MessageType.QUERY}.roster"
_ARRAYS, _ORDER, _METRICS, _CLIENTS = "arrays", "order", "metrics", "clients"
_SAMPLES, _SECONDS = "num-examples", "seconds"


@dataclass(frozen=True)
class Refusal:
    """A client of a node, or the whole node (client ""), whose reply was not used."""

    node: str
    client: str
    reason: str


@dataclass(frozen=True)
class Order:
    """What the server asks of a node in one phase of one round.

    run, token: the run's name and its own random mark, which key the node's state. clients: the
    node's clients to work on.
    evaluate: also evaluate the personal models after training. arrays: what the method sends.
    guided: the clients that per-client arrays speak of. options: further numbers of the method.
    """

    run: str
    token: str
    server_round: int
    clients: list[str]
    evaluate: bool = False
    arrays: Arrays = field(default_factory=dict)
    guided: list[str] = field(default_factory=list)
    options: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What a node answers: its clients' numbers, and the method's arrays.

    names: the clients that worked. samples: their train samples. losses and metrics: values per
    client. kept_rounds: the round each client's kept model comes from (empty if not evaluated).
    failed: clients that could not, with the reason. seconds: the node's own working time.
    """

    names: list[str]
    samples: list[int]
    losses: PerClient = field(default_factory=dict)
    metrics: PerClient = field(default_factory=dict)
    kept_rounds: list[int] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True)
class NodeRoster:
    """A node's answer to the roster query: its clients, or why some or all cannot take part.

    label: the node's own name for itself, stable over restarts, or "". partitions: how many nodes
    the simulation has, 0 in deployment. error: why the node has no clients at all, or "".
    """

    label: str
    partitions: int
    samples: dict[str, int]
    groups: dict[str, str]
    missing_shares: dict[str, float]
    refused: dict[str, str]
    error: str = ""


@dataclass(frozen=True)
class ArraySpec:
    """The arrays expected in a reply: name → shape, without the client axis if per client."""

    shapes: Mapping[str, tuple[int, ...]]
    per_client: bool


def _config(**values: ConfigRecordValues) -> ConfigRecord:
    """A record of these values ("_" becomes "-") without empty lists: Flower cannot count those."""
    kept = {
        k.replace("_", "-"): v for k, v in values.items() if not (isinstance(v, list) and not v)
    }
    return ConfigRecord(kept)


def _strings(config: ConfigRecord, key: str) -> list[str]:
    return list(cast(list[str], config.get(key, [])))


def _integers(record: ConfigRecord | MetricRecord, key: str) -> list[int]:
    return list(cast(list[int], record.get(key, [])))


class _Unusable(Exception):
    """The whole reply is refused, for the reason given."""


# --- the node's side --------------------------------------------------------------------------


def read_order(message: Message) -> Order:
    """The order in a train or evaluate message."""
    config = message.content.config_records[_ORDER]
    values = cast(list[float], config.get("option-values", []))
    return Order(
        run=cast(str, config["run"]),
        token=cast(str, config["token"]),
        server_round=cast(int, config["server-round"]),
        clients=_strings(config, "clients"),
        evaluate=cast(bool, config["evaluate"]),
        arrays=_arrays(message.content.array_records.get(_ARRAYS, ArrayRecord())),
        guided=_strings(config, "guided"),
        options=dict(zip(_strings(config, "options"), values, strict=True)),
    )


def write_reply(reply: Reply, to: Message) -> Message:
    """The node's answer to a train or evaluate message."""
    metrics = MetricRecord({_SECONDS: float(reply.seconds)})
    if reply.names:
        metrics[_SAMPLES] = list(reply.samples)
        for prefix, values in (("loss/", reply.losses), ("metric/", reply.metrics)):
            for name, per_client in values.items():
                metrics[prefix + name] = [float(value) for value in per_client]
    clients = _config(
        names=list(reply.names),
        kept_rounds=list(reply.kept_rounds),
        failed=list(reply.failed),
        reasons=list(reply.failed.values()),
    )
    content = RecordDict({_METRICS: metrics, _CLIENTS: clients})
    if reply.arrays:
        content[_ARRAYS] = array_record(reply.arrays)
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
    )
    return Message(RecordDict({_CLIENTS: config}), reply_to=to)


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
        options=list(order.options),
        option_values=list(order.options.values()),
    )
    content = RecordDict({_ORDER: config})
    if order.arrays:
        content[_ARRAYS] = array_record(order.arrays)
    return Message(
        content,
        dst_node_id=node_id,
        message_type=message_type,
        group_id=str(order.server_round),
    )


def roster_query(node_id: int) -> Message:
    """Ask a node for its clients."""
    return Message(RecordDict(), dst_node_id=node_id, message_type=ROSTER, group_id="0")


def read_roster(message: Message) -> NodeRoster:
    """A node's roster; raises ValueError with the reason if it cannot be one."""
    try:
        config = message.content.config_records[_CLIENTS]
        names, samples = _strings(config, "names"), _integers(config, "samples")
        groups = _strings(config, "groups")
        missing = cast(list[float], config.get("missing-shares", []))
        reasons = zip(_strings(config, "refused"), _strings(config, "reasons"), strict=True)
        roster = NodeRoster(
            label=cast(str, config["label"]),
            partitions=cast(int, config["partitions"]),
            samples=dict(zip(names, samples, strict=True)),
            groups=dict(zip(names, groups, strict=True)),
            missing_shares=dict(zip(names, missing, strict=True)),
            refused=dict(reasons),
            error=cast(str, config["error"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"malformed roster: {error!r}") from None
    if len(set(names)) != len(names):
        raise ValueError("malformed roster: a client name appears twice")
    if any(not isinstance(count, int) or count < 1 for count in samples):
        raise ValueError("malformed roster: a client's sample count is below 1")
    return roster


def read_reply(
    message: Message, node: str, asked: Mapping[str, int], spec: ArraySpec | None
) -> tuple[Reply | None, list[Refusal]]:
    """The usable part of a node's reply, and what was refused of it.

    asked: the clients that were asked, with the sample counts they declared in the roster.
    spec: the arrays that must come, or None. A fault of one client (a NaN in its prototype, a
    wrong count, a name that was not asked) refuses that client; a fault of what all its clients
    share (an averaged model, missing records) refuses the node's whole reply.
    """
    try:
        reply = _decode(message)
        bad = _bad_clients(reply, asked)
        if spec is not None:
            _check_arrays(reply, spec)
            bad |= _bad_arrays(reply, spec)
        if bad and spec is not None and not spec.per_client:
            client, reason = next(iter(bad.items()))
            raise _Unusable(f"its mean includes client {client!r}, refused: {reason}")
    except _Unusable as unusable:
        return None, [Refusal(node, "", str(unusable))]
    refusals = [Refusal(node, client, reason) for client, reason in bad.items()]
    refusals += [Refusal(node, client, reason) for client, reason in reply.failed.items()]
    return _without(reply, bad, per_client=spec is not None and spec.per_client), refusals


def flower_average_input(reply: Reply, message: Message) -> Message:
    """The reply as Flower's own strategies want it: one ArrayRecord, one scalar weight."""
    content = RecordDict(
        {
            _ARRAYS: array_record(reply.arrays),
            _METRICS: MetricRecord({_SAMPLES: sum(reply.samples)}),
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
    return _arrays(record)


def content_bytes(message: Message) -> int:
    """Bytes of a message's records as Flower counts them."""
    return sum(record.count_bytes() for record in message.content.values())


def content_values(message: Message) -> int:
    """Array values ("parameters" in the papers' tables) in a message."""
    records = message.content.array_records.values()
    return sum(math.prod(array.shape) for record in records for array in record.values())


def _arrays(record: ArrayRecord) -> Arrays:
    return {name: cast("NDArray[np.float32]", array.numpy()) for name, array in record.items()}


def _decode(message: Message) -> Reply:
    content = message.content
    try:
        metrics, clients = content.metric_records[_METRICS], content.config_records[_CLIENTS]
        names = _strings(clients, "names")
        failed = zip(_strings(clients, "failed"), _strings(clients, "reasons"), strict=True)
        return Reply(
            names=names,
            samples=_integers(metrics, _SAMPLES),
            losses=_group(metrics, "loss/", len(names)),
            metrics=_group(metrics, "metric/", len(names)),
            kept_rounds=_integers(clients, "kept-rounds"),
            failed=dict(failed),
            arrays=_arrays(content.array_records.get(_ARRAYS, ArrayRecord())),
            seconds=float(cast(float, metrics[_SECONDS])),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _Unusable(f"malformed reply: {error!r}") from None


def _group(metrics: MetricRecord, prefix: str, clients: int) -> PerClient:
    values = {}
    for key, value in metrics.items():
        if key.startswith(prefix):
            if not isinstance(value, list) or len(value) != clients:
                raise _Unusable(f"{key} does not have one value for each of {clients} clients")
            values[key.removeprefix(prefix)] = [float(v) for v in value]
    return values


def _bad_clients(reply: Reply, asked: Mapping[str, int]) -> dict[str, str]:
    if len(reply.samples) != len(reply.names):
        raise _Unusable(f"{len(reply.samples)} sample counts for {len(reply.names)} clients")
    if len(set(reply.names)) != len(reply.names):
        raise _Unusable("a client appears twice")
    if reply.kept_rounds and len(reply.kept_rounds) != len(reply.names):
        raise _Unusable(f"{len(reply.kept_rounds)} kept rounds for {len(reply.names)} clients")
    bad = {}
    for row, (name, count) in enumerate(zip(reply.names, reply.samples, strict=True)):
        if name not in asked:
            bad[name] = "not a client of this node that was asked"
        elif count != asked[name]:
            bad[name] = f"reports {count} train samples, declared {asked[name]}"
        elif not all(math.isfinite(values[row]) for values in reply.losses.values()):
            bad[name] = "its loss is not finite"
    return bad


def _check_arrays(reply: Reply, spec: ArraySpec) -> None:
    if not reply.names and not reply.arrays:
        return  # every client failed: nothing to share
    if set(reply.arrays) != set(spec.shapes):
        missing, extra = set(spec.shapes) - set(reply.arrays), set(reply.arrays) - set(spec.shapes)
        raise _Unusable(f"arrays missing: {sorted(missing)}, not expected: {sorted(extra)}")
    for name, shape in spec.shapes.items():
        array = reply.arrays[name]
        expected = (len(reply.names), *shape) if spec.per_client else shape
        if array.shape != expected:
            raise _Unusable(f"array {name!r} has shape {array.shape}, expected {expected}")
        if array.dtype != np.float32:
            raise _Unusable(f"array {name!r} has dtype {array.dtype}, expected float32")
        if not spec.per_client and not np.isfinite(array).all():
            raise _Unusable(f"array {name!r} holds NaN or infinite values")


def _bad_arrays(reply: Reply, spec: ArraySpec) -> dict[str, str]:
    if not spec.per_client:
        return {}
    return {
        client: f"its {name!r} holds NaN or infinite values"
        for name, array in reply.arrays.items()
        for row, client in enumerate(reply.names)
        if not np.isfinite(array[row]).all()
    }


def _without(reply: Reply, bad: Mapping[str, str], *, per_client: bool) -> Reply:
    if not bad:
        return reply
    rows = [row for row, name in enumerate(reply.names) if name not in bad]

    def pick(values: Sequence[float]) -> list[float]:
        return [values[row] for row in rows]

    return Reply(
        names=[reply.names[row] for row in rows],
        samples=[reply.samples[row] for row in rows],
        losses={name: pick(values) for name, values in reply.losses.items()},
        metrics={name: pick(values) for name, values in reply.metrics.items()},
        kept_rounds=[reply.kept_rounds[row] for row in rows] if reply.kept_rounds else [],
        failed=reply.failed,
        arrays={n: a[rows] for n, a in reply.arrays.items()} if per_client else reply.arrays,
        seconds=reply.seconds,
    )
