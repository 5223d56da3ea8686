"""Validate nodes' replies (design rule 5).

A reply may hold anything: records of other types, arrays with false headers, NaN, or counts that
were never declared. `wire` checks the form. The readers in this module check every value before it
is used. They return the valid part, and a `Refusal` for each invalid part. Whatever a message
holds, they raise only the documented errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import NDArray

from fedproto_app.core.messages import Arrays, NodeRoster, Refusal, Reply
from fedproto_app.core.metrics import Metric, Model, metric_of
from fedproto_app.core.sends import Expected
from fedproto_app.core.wire import (
    ARRAYS,
    FIELDS,
    SECONDS,
    VECTOR,
    ReplyFields,
    Unusable,
    protocol_fault,
    read_array,
    read_record,
)
from fedproto_app.maths.steps import length, mean_fault
from fedproto_app.trust.outliers import growth_fault, rows_of, value_fault

MOST_SAMPLES = 10**9  # a client that claims more would dominate every weighted mean
Fault = Callable[[Mapping[Metric, float]], str | None]  # returns why metrics cannot be true


@dataclass(frozen=True)
class Allowed:
    """What an order allows in a reply.

    server_round: the order's round. No kept model can come from a later round. start: the model
    that was sent, if the reply must report how far the clients have moved from it. longest_step:
    how far they may move, or 0 for any distance.
    """

    server_round: int
    start: Arrays = field(default_factory=dict)
    longest_step: float = 0.0


ANYTHING = Allowed(server_round=2**63)

_ROUNDED = 1 + 1e-6  # tolerance, because lengths are sent as decimal digits
MOST_STRANGERS = 1000  # clients without an order that are refused one by one in a reply
MOST_LOSSES = 32  # terms of a loss
LONGEST_LOSS_NAME = 64  # characters
# Bytes of a reply's JSON, enough for the names of metrics and for 5,000 numbers of each client.
MOST_JSON, MOST_JSON_PER_CLIENT = 2**20, 2**17
MOST_SECONDS = 1e9  # a node's own working time. The server adds these times up
LARGEST_LOSS = 1e38  # fits into float32, and the sum over any number of clients stays finite


def read_roster(message: Message, multiple: int) -> NodeRoster:
    """Return a node's roster, or raise `Unusable` with the reason if it is invalid.

    multiple: every client's number of train samples must be a multiple of this. A client that is
    never asked to train has 0.
    """
    if fault := protocol_fault(message.content, "node", "server"):
        raise Unusable(fault)
    roster = read_record(message.content, NodeRoster)
    names = roster.samples.keys()
    if not names == roster.groups.keys() == roster.missing_shares.keys():
        raise Unusable("malformed roster: clients without samples, group or missing share")
    if len(set(roster.columns)) != len(roster.columns):
        raise Unusable("malformed roster: a column is named twice")
    if len(set(roster.classes)) != len(roster.classes):
        raise Unusable(f"malformed roster: {len(roster.classes)} classes, not all different")
    stages = [stage for stages in roster.class_counts.values() for stage in stages]
    fits = all(
        len(stage) == len(roster.classes) and all(0 <= count <= MOST_SAMPLES for count in stage)
        for stage in stages
    )
    if not fits or not roster.class_counts.keys() <= names:
        raise Unusable("malformed roster: class counts that do not fit its clients and classes")
    for name, count in roster.samples.items():
        if not 0 <= count <= MOST_SAMPLES or count % multiple:
            raise Unusable(
                f"client {name!r} declares {count} train samples; expected a multiple of "
                f"{multiple} that is at most {MOST_SAMPLES:,}"
            )
    for name, (_, first, trained, end) in roster.times.items():
        if trained - first != roster.samples.get(name) or end <= trained:
            raise Unusable(
                f"client {name!r}: samples from {first} to {trained} and {end} do not fit the "
                "number that it declares"
            )
    return roster


def read_reply(
    message: Message,
    node: str,
    samples: Mapping[str, int],
    spec: Expected,
    metrics: Collection[Metric],
    fault: Fault,
    before: float = 0.0,
    allowed: Allowed = ANYTHING,
) -> tuple[Reply | None, list[Refusal]]:
    """Return the usable part of a node's reply, and the refusals of the other parts.

    samples: for each client of the order, the largest number of samples that it can have. spec: the
    required arrays. metrics: the metrics that a client must have if its kept model is reported.
    fault: returns why a client's metrics are impossible, or None. before: the root mean square of
    the model in the order. allowed: further limits that the order sets.
    If one client is at fault (a NaN in its prototype, a wrong count, a name without an order), only
    this client is refused. If a part that clients share is at fault (an averaged model, missing
    records), the node's whole reply is refused.
    """
    try:
        reply = _decode(message, spec, metrics, len(samples))
        if strangers := reply.failed.keys() - samples.keys():
            raise Unusable(f"malformed reply: {len(strangers)} clients failed that were not asked")
        bad = _bad_clients(reply, samples, fault)
        bad |= _bad_values(reply, spec, before)
        bad |= _beyond_allowed(reply, allowed)
        if bad and (spec.mean or spec.masked):
            client, reason = next(iter(bad.items()))
            aggregate = "masked sum" if spec.masked else "mean"
            raise Unusable(f"its {aggregate} includes client {client!r}, refused: {reason}")
        if allowed.start and reply.names:
            moved = length({name: reply.arrays[name] for name in spec.mean}, allowed.start)
            if why := mean_fault(moved, reply.steps, reply.samples):
                raise Unusable(why)
    except Unusable as unusable:
        return None, [Refusal(node, "", str(unusable))]
    refusals = [Refusal(node, client, reason) for client, reason in bad.items()]
    reasons = set(reply.failed.values())
    if not reply.names and len(reasons) == 1:  # the node itself failed, perhaps with a full disk
        refusals.append(Refusal(node, "", reasons.pop()))
    else:
        refusals += [Refusal(node, client, reason) for client, reason in reply.failed.items()]
    return without(reply, bad, spec), refusals


def received_bytes(message: Message) -> int:
    """Return the bytes of a reply's records as Flower counts them, or 0 if Flower cannot."""
    try:
        return sum(record.count_bytes() for record in message.content.values())
    except Exception:  # a malformed record breaks Flower's count in many ways
        return 0


def _decode(
    message: Message, spec: Expected, expected: Collection[Metric], asked_clients: int
) -> Reply:
    most_bytes = MOST_JSON + MOST_JSON_PER_CLIENT * asked_clients
    fields = read_record(message.content, ReplyFields, most_bytes=most_bytes)
    clients, metrics = len(fields.names), {metric_of(row): values for row, values in fields.metrics}
    if clients > asked_clients + MOST_STRANGERS:
        raise Unusable(f"malformed reply: {clients} clients, where {asked_clients} were asked")
    if len(set(fields.names)) != clients or len(fields.samples) != clients:
        raise Unusable(
            f"malformed reply: {len(fields.samples)} sample counts for {clients} clients"
        )
    if len(fields.losses) > MOST_LOSSES:
        raise Unusable(f"malformed reply: {len(fields.losses)} losses, more than {MOST_LOSSES}")
    if longest := max(
        (name for name in fields.losses if len(name) > LONGEST_LOSS_NAME), default=""
    ):
        raise Unusable(
            f"malformed reply: a loss's name has {len(longest)} characters, more than "
            f"{LONGEST_LOSS_NAME}"
        )
    if len(metrics) != len(fields.metrics):
        raise Unusable("malformed reply: a metric is reported twice")
    for name, values in (*fields.losses.items(), *metrics.items()):
        if len(values) != clients:
            raise Unusable(f"{str(name)!r} does not have one value for each of {clients} clients")
    complete = len(fields.kept_rounds) == clients and set(expected) <= set(metrics)
    evaluates = fields.kept_rounds or any(metric.model is not Model.LOCAL for metric in metrics)
    if clients and evaluates and not complete:
        raise Unusable("malformed reply: an evaluation without all of its kept metrics")
    seconds = message.content.config_records[FIELDS].get(SECONDS)
    if not isinstance(seconds, float) or not 0 <= seconds <= MOST_SECONDS:
        raise Unusable(f"malformed reply: seconds = {seconds!r}")
    classes = _classes(fields.classes, clients, spec) if spec.per_class and clients else []
    record = message.content.array_records.get(ARRAYS, ArrayRecord())
    arrays = _arrays(record, spec, clients, sum(map(len, classes)))
    read = {"metrics": metrics, "classes": classes, "arrays": arrays, "seconds": seconds}
    return Reply(**vars(fields) | read)


def _arrays(record: ArrayRecord, spec: Expected, clients: int, rows: int) -> Arrays:
    """Return the required arrays, or raise `Unusable` if arrays are missing, or have wrong shapes
    or dtypes.

    rows: the clients' numbers of classes, added up. A node without clients sends no arrays.
    """
    expected: dict[str, tuple[int, ...]] = {}
    if clients or record:
        expected |= spec.mean
        expected |= {name: (clients, *shape) for name, shape in spec.per_client.items()}
        expected |= {name: (rows, *shape) for name, shape in spec.per_class.items()}
    if set(record) != set(expected):
        missing, extra = set(expected) - set(record), set(record) - set(expected)
        raise Unusable(f"arrays missing: {sorted(missing)}, not expected: {sorted(extra)}")
    return {name: read_array(name, record[name], shape) for name, shape in expected.items()}


def read_vector(message: Message, size: int) -> NDArray[np.uint64]:
    """Return the masked vector of a reply, or raise `Unusable` if there is none of this size."""
    record = message.content.array_records.get(VECTOR, ArrayRecord())
    if set(record) != {VECTOR}:
        raise Unusable("its arrays are not masked")
    return read_array(VECTOR, record[VECTOR], (size,), np.uint64)


def _classes(reported: list[list[int]], clients: int, spec: Expected) -> list[list[int]]:
    """Return, for each client, the classes that its rows in the arrays by class belong to."""
    if len(reported) != clients:
        raise Unusable(f"malformed reply: classes of {len(reported)} clients, expected {clients}")
    for classes in reported:
        if len(set(classes)) != len(classes) or not all(0 <= c < spec.classes for c in classes):
            raise Unusable(f"malformed reply: classes {classes[:10]} of {spec.classes}")
    return reported


def _bad_values(reply: Reply, spec: Expected, before: float) -> dict[str, str]:
    """Return the clients with impossible values. Raise `Unusable` if a mean has such values."""
    mean = {name: reply.arrays[name] for name in spec.mean if name in reply.arrays}
    wrong = [fault for name, array in mean.items() if (fault := value_fault(name, array))]
    if fault := next(iter(wrong), None) or growth_fault(mean, before):
        raise Unusable(fault)
    bad: dict[str, str] = {}
    for array_name, client, values in rows_of(reply, spec):
        if fault := value_fault(array_name, values):
            bad[client] = fault
    for row, client in enumerate(reply.names if spec.models else []):
        model = {name: reply.arrays[name][row] for name in spec.models}
        if client not in bad and (fault := growth_fault(model, before)):
            bad[client] = fault
    return bad


def _beyond_allowed(reply: Reply, allowed: Allowed) -> dict[str, str]:
    """Return the clients that moved further than allowed, or kept a model of a later round."""
    if len(reply.steps) != (len(reply.names) if reply.steps or allowed.start else 0):
        raise Unusable(f"malformed reply: {len(reply.steps)} steps of {len(reply.names)} clients")
    bad, limit = {}, allowed.longest_step or math.inf
    for row, name in enumerate(reply.names):
        if reply.steps and (step := reply.steps[row]) > limit * _ROUNDED:
            bad[name] = f"its model moved by {step:.3g}; at most {limit:.3g} was allowed"
        if reply.kept_rounds and (kept_round := reply.kept_rounds[row]) > allowed.server_round:
            bad[name] = f"its kept round is {kept_round}, after round {allowed.server_round}"
    return bad


def _bad_clients(reply: Reply, samples: Mapping[str, int], fault: Fault) -> dict[str, str]:
    bad = {}
    for row, (name, count) in enumerate(zip(reply.names, reply.samples, strict=True)):
        metrics = {metric: values[row] for metric, values in reply.metrics.items()}
        if name not in samples:
            bad[name] = "not a client of this node that was asked"
        elif not (least := min(1, samples[name])) <= count <= samples[name]:
            bad[name] = f"reports {count} train samples, expected {least} … {samples[name]}"
        elif not all(abs(values[row]) <= LARGEST_LOSS for values in reply.losses.values()):
            bad[name] = f"its loss is not finite, or beyond ±{LARGEST_LOSS:g}"
        elif reason := fault(metrics):
            bad[name] = reason
        elif reply.kept_rounds and reply.kept_rounds[row] < 0:
            bad[name] = f"its kept round is {reply.kept_rounds[row]}"
    return bad


def without(reply: Reply, bad: Collection[str], spec: Expected) -> Reply:
    """Return the reply without these clients."""
    if not bad:
        return reply
    rows = [row for row, name in enumerate(reply.names) if name not in bad]
    kept_rows = set(rows)
    by_class = [place for place, row in enumerate(reply.owners) if row in kept_rows]
    arrays = dict(reply.arrays)
    arrays |= {name: reply.arrays[name][rows] for name in spec.per_client if name in arrays}
    arrays |= {name: reply.arrays[name][by_class] for name in spec.per_class if name in arrays}

    def pick(values: Sequence[float]) -> list[float]:
        return [values[row] for row in rows]

    return replace(
        reply,
        names=[reply.names[row] for row in rows],
        samples=[reply.samples[row] for row in rows],
        losses={name: pick(values) for name, values in reply.losses.items()},
        metrics={name: pick(values) for name, values in reply.metrics.items()},
        kept_rounds=[reply.kept_rounds[row] for row in rows] if reply.kept_rounds else [],
        arrays=arrays,
        classes=[reply.classes[row] for row in rows] if reply.classes else [],
        steps=pick(reply.steps) if reply.steps else [],
    )
