"""Converts messages to the records that cross the network, and back.

Only this module builds a RecordDict. It consists of a dataclass from `messages`, or of one of the
two below, as JSON in a bytes field, and of arrays. Values per client are in the order of
``names``. `replies` validates replies for the server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, make_dataclass
from io import BytesIO
from typing import Any, TypeVar, cast, get_type_hints

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from fedproto_app.core.messages import (
    MOST_REASON,
    STRICT,
    Arrays,
    Count,
    FailFastList,
    Guidance,
    Integer,
    Length,
    MaskingOrder,
    MaskingReply,
    Name,
    NodeRoster,
    Order,
    Reason,
    Reply,
    name_fault,
)
from fedproto_app.core.metrics import Model, metric_row
from fedproto_app.core.stored import AnyArray
from fedproto_app.core.version import __version__

ROSTER, ALIVE = f"{MessageType.QUERY}.roster", f"{MessageType.QUERY}.alive"
QUESTION = f"{MessageType.QUERY}.question"  # from a method, between the phases of a round
MASKING = f"{MessageType.QUERY}.masking"  # a step of a masked sum
FIELDS, ARRAYS, FIRST_PHASE = "told", "arrays", "first-phase"  # records
OF_MASKING, VECTOR = "masking", "vector"  # further records of a masked sum
JSON, SECONDS = "json", "seconds"  # fields of the first record
# Fields of a roster query and its answer. Server and node must have the same protocol. Raise its
# number with every change of a message that the other side would misread.
PROTOCOL_FIELD, VERSION_FIELD = "protocol", "version"
PROTOCOL = 3
MOST_BYTES = 32 * 2**20  # limit of JSON, enough for 80 numbers from each of 20,000 clients
MOST_FAULTS = 100  # if there are more validation errors, none is examined

MetricRow = tuple[Name, Model, bool, Name]  # what `metric_row` returns


class Unusable(ValueError):
    """Raised if a whole message is refused. The text is the reason."""


@dataclass(frozen=True)
class OrderFields:
    """An `Order` and its `Guidance`, without arrays. ``guided`` is the guidance's `clients`."""

    run: Name
    token: Name
    server_round: Integer
    clients: FailFastList[Name]
    evaluate: bool
    guided: FailFastList[Name]
    classes: FailFastList[Count]
    options: dict[Name, float]
    most_samples: Count
    longest_step: Length


@dataclass(frozen=True)
class ReplyFields:
    """A `Reply` without its arrays. Losses and metrics have a value for each of the names.

    The seconds are sent in a float64 field of their own. As decimal digits they would make the
    messages of two runs with the same seed differ in size.
    """

    names: FailFastList[Name]
    samples: FailFastList[Integer]
    losses: dict[Name, FailFastList[float]]
    metrics: FailFastList[tuple[MetricRow, FailFastList[float]]]
    kept_rounds: FailFastList[Integer]
    failed: dict[Name, Reason]
    classes: FailFastList[FailFastList[Integer]]
    steps: FailFastList[Length]


FieldsT = TypeVar("FieldsT")


def _complete(kind: type[Any]) -> type[Any]:
    """Return the dataclass without defaults, because every field of a message must be sent."""
    types = get_type_hints(kind, include_extras=True).items()
    return make_dataclass(kind.__name__, types, namespace={"__pydantic_config__": STRICT})


_KINDS = (OrderFields, ReplyFields, NodeRoster, MaskingOrder, MaskingReply)
_COMPLETE = {kind: _complete(kind) for kind in _KINDS}
_ADAPTERS: dict[type, TypeAdapter[Any]] = {k: TypeAdapter(c) for k, c in _COMPLETE.items()}


def _record(kind: type[Any], message: object, **changed: object) -> ConfigRecord:
    """Return the message's fields as JSON in a record. Its reader validates the values."""
    unchanged = (field.name for field in fields(kind) if field.name not in changed)
    values = {name: getattr(message, name) for name in unchanged} | changed
    # As bytes, because Flower's ConfigRecord.count_bytes fails on an empty text or list.
    return ConfigRecord({JSON: _ADAPTERS[kind].dump_json(_COMPLETE[kind](**values))})


def read_record(
    content: RecordDict, kind: type[FieldsT], name: str = FIELDS, most_bytes: int = MOST_BYTES
) -> FieldsT:
    """Return a message's fields. For anything unreadable it raises `Unusable` and nothing else.

    most_bytes: the largest size of the JSON. More than `MOST_BYTES` is never read.
    """
    record = content.get(name)
    text = record.get(JSON) if isinstance(record, ConfigRecord) else None
    if not isinstance(text, bytes):
        raise Unusable(f"malformed message: no {JSON!r} in a record {name!r}")
    if len(text) > (most_bytes := min(most_bytes, MOST_BYTES)):
        raise Unusable(f"malformed message: {len(text)} bytes of JSON, more than {most_bytes}")
    try:
        message = _ADAPTERS[kind].validate_json(text)
    except ValidationError as error:
        raise Unusable(f"malformed message: {_first_fault(error)}") from None
    return kind(**vars(message))


def _first_fault(error: ValidationError) -> str:
    if error.error_count() > MOST_FAULTS:
        return f"{error.error_count()} faults"  # listing them would take gigabytes
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, fault['loc']))[:200]}: {fault['msg']}".removeprefix(": ")


def protocol_fault(content: RecordDict, sender: str, reader: str) -> str | None:
    """Return why sender and reader cannot work together, or None if their protocols agree.

    content: a roster query or its answer. sender, reader: one is "server", the other "node".
    """
    record = content.get(FIELDS)
    fields = record if isinstance(record, ConfigRecord) else ConfigRecord()
    if fields.get(PROTOCOL_FIELD) == PROTOCOL:
        return None
    version, sender_version = fields.get(VERSION_FIELD), "of an unknown version"
    if isinstance(version, str) and len(version) <= 40 and not name_fault(version):
        sender_version = version
    return (
        f"the {sender} runs fedproto-app {sender_version}, this {reader} {__version__}: they "
        "cannot read each other's messages, so install the same version on both"
    )


def _with_protocol(record: ConfigRecord) -> ConfigRecord:
    record[PROTOCOL_FIELD], record[VERSION_FIELD] = PROTOCOL, __version__
    return record


# --- the node's side --------------------------------------------------------------------------


def read_order(message: Message) -> Order:
    """Return the order in a message of any phase, or raise `Unusable` if there is none."""
    order = dict(vars(read_record(message.content, OrderFields)))
    arrays, first_phase = (_arrays_of(message.content, name) for name in (ARRAYS, FIRST_PHASE))
    guided, classes, options = (order.pop(name) for name in ("guided", "classes", "options"))
    return Order(**order, guidance=Guidance(arrays, guided, classes, options, first_phase))


def _arrays_of(content: RecordDict, name: str) -> Arrays:
    record = content.get(name, ArrayRecord())
    if not isinstance(record, ArrayRecord):
        raise Unusable(f"malformed message: {name!r} are a {type(record).__name__}")
    return {array_name: read_array(array_name, array) for array_name, array in record.items()}


def read_array(
    name: str,
    array: Array,
    shape: tuple[int, ...] | None = None,
    kind: type[np.number[Any]] = np.float32,
) -> AnyArray:
    """Return an array of numbers from Flower's NumPy serialisation, or raise `Unusable`.

    Memory is allocated only for bytes that were received. shape: the expected shape, or None to
    accept any shape and any kind of numbers. kind: the expected kind of numbers.
    """
    try:
        file = BytesIO(array.data)
        major = np.lib.format.read_magic(file)[0]
        readers = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        array_shape, fortran, dtype = readers[major](file)
        values = file.read()
    except Exception as error:  # NumPy may raise anything for a broken header
        raise Unusable(f"array {name!r} cannot be read: {str(error)[:200]!r}") from None
    if shape is not None and array_shape != shape:
        raise Unusable(f"array {name!r} has shape {str(array_shape)[:100]}, expected {shape}")
    if dtype.kind not in "fiub" if shape is None else dtype != kind:
        raise Unusable(f"array {name!r} has dtype {str(dtype)[:100]}, expected {kind.__name__}")
    if min(array_shape, default=0) < 0 or len(values) != dtype.itemsize * math.prod(array_shape):
        raise Unusable(f"array {name!r} has {len(values)} bytes for shape {str(array_shape)[:100]}")
    flat = np.frombuffer(values, dtype=dtype)
    try:
        return flat.reshape(array_shape, order="F" if fortran else "C").copy()
    except ValueError:  # no values, but a shape that no array can have
        raise Unusable(f"array {name!r} has shape {str(array_shape)[:100]}") from None


def write_reply(
    reply: Reply, reply_to: Message, vector: NDArray[np.uint64] | None = None
) -> Message:
    """Return the node's reply as a message. vector: the masked sums that replace its arrays."""
    metrics = [(metric_row(metric), values) for metric, values in reply.metrics.items()]
    record = _record(ReplyFields, reply, metrics=metrics, failed=_cut(reply.failed))
    record[SECONDS] = float(reply.seconds)
    content = _content(record, reply.arrays)
    if vector is not None:
        content[VECTOR] = ArrayRecord({VECTOR: Array(vector)})
    return Message(content, reply_to=reply_to)


def is_answer(reply: Message, order: Message) -> bool:
    """Whether at least part of a reply is usable: it is no error, and not all clients failed."""
    if reply.has_error():
        return False
    try:
        if order.metadata.message_type == MASKING:
            return not read_masking_reply(reply).fault
        if OF_MASKING in order.content and VECTOR not in reply.content:
            return False
        clients = read_record(order.content, OrderFields).clients
        return not set(clients).isdisjoint(read_record(reply.content, ReplyFields).names)
    except Unusable:
        return False


def read_masking_order(message: Message) -> MaskingOrder | None:
    """Return a message's masking order, or None. Raise `Unusable` if the order is malformed."""
    return required_masking_order(message) if OF_MASKING in message.content else None


def required_masking_order(message: Message) -> MaskingOrder:
    """Return the order of a step of a masked sum, or raise `Unusable` if there is none."""
    return read_record(message.content, MaskingOrder, OF_MASKING)


def write_masking_reply(reply: MaskingReply, reply_to: Message) -> Message:
    """Return the node's reply to a step of a masked sum as a message."""
    record = _record(MaskingReply, reply, fault=reply.fault[:MOST_REASON])
    return Message(RecordDict({OF_MASKING: record}), reply_to=reply_to)


def write_roster(roster: NodeRoster, reply_to: Message) -> Message:
    """Return the node's answer to the roster query."""
    cut = {"refused": _cut(roster.refused), "notes": _cut(roster.notes)}
    record = _record(NodeRoster, roster, error=roster.error[:MOST_REASON], **cut)
    return Message(_content(_with_protocol(record), {}), reply_to=reply_to)


def _cut(reasons: Mapping[str, str]) -> dict[str, str]:
    """Cut the reasons, because the server refuses a message if one of them is too long."""
    return {name: reason[:MOST_REASON] for name, reason in reasons.items()}


def write_alive(reply_to: Message) -> Message:
    """Return the node's empty answer to a probe."""
    return Message(RecordDict(), reply_to=reply_to)


# --- the server's side ------------------------------------------------------------------------


def write_order(order: Order, node_id: int, message_type: str) -> Message:
    """Return the message that carries an order to a node, with a new RecordDict."""
    guidance = order.guidance
    of_guidance = {"guided": list(guidance.clients), "classes": list(guidance.classes)}
    record = _record(OrderFields, order, **of_guidance, options=dict(guidance.options))
    content = _content(record, guidance.arrays)
    if guidance.first_phase:
        content[FIRST_PHASE] = array_record(guidance.first_phase)
    return Message(
        content, dst_node_id=node_id, message_type=message_type, group_id=str(order.server_round)
    )


def add_masking(order: MaskingOrder, message: Message) -> None:
    """Add what a node needs for a masked sum to its training order."""
    message.content[OF_MASKING] = _record(MaskingOrder, order)


def masking_query(order: MaskingOrder, node_id: int) -> Message:
    """Return the message that asks a node to take a step of a masked sum."""
    content = RecordDict({OF_MASKING: _record(MaskingOrder, order)})
    group = str(order.server_round)
    return Message(content, dst_node_id=node_id, message_type=MASKING, group_id=group)


def read_masking_reply(message: Message) -> MaskingReply:
    """Return the node's reply to a masking step, or raise `Unusable` if it is malformed."""
    return read_record(message.content, MaskingReply, OF_MASKING)


def roster_query(node_id: int) -> Message:
    """Return the message that asks a node for its clients."""
    content = RecordDict({FIELDS: _with_protocol(ConfigRecord())})
    return Message(content, dst_node_id=node_id, message_type=ROSTER, group_id="0")


def alive_query(node_id: int) -> Message:
    """Return a probe, a message that a node answers with an empty one."""
    return Message(RecordDict(), dst_node_id=node_id, message_type=ALIVE, group_id="0")


def flower_average_input(arrays: Arrays, weight: int) -> Message:
    """Return a model in the form that Flower's strategies expect: an ArrayRecord and a weight."""
    metrics = MetricRecord({"num-examples": weight})
    content = RecordDict({ARRAYS: array_record(arrays), "metrics": metrics})
    return Message(content, dst_node_id=0, message_type=MessageType.TRAIN)


def _content(record: ConfigRecord, arrays: Arrays) -> RecordDict:
    content = RecordDict({FIELDS: record})
    if arrays:
        content[ARRAYS] = array_record(arrays)
    return content


def array_record(arrays: Arrays) -> ArrayRecord:
    """Return NumPy arrays as Flower's record."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in arrays.items()})


def numpy_arrays(record: ArrayRecord) -> Arrays:
    """Return Flower's record as NumPy arrays."""
    return {name: cast("NDArray[np.float32]", array.numpy()) for name, array in record.items()}


def sent_bytes(message: Message) -> int:
    """Return how many bytes a message's records have, as Flower counts them."""
    return sum(record.count_bytes() for record in message.content.values())
