"""Every record that crosses the network: names, shapes, dtypes.

The only room that builds a RecordDict. A message is one of the strict models below, as JSON in a
field of bytes, and the arrays beside it. Everything per client stands in the order of ``names``.
`replies` decides what the server believes of an answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from io import BytesIO
from typing import Annotated, Any, TypeVar, cast

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
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fedproto_app.core.messages import (
    Arrays,
    MaskingOrder,
    MaskingReply,
    MaskingStep,
    NodeRoster,
    Order,
    PublicKeys,
    Reply,
)
from fedproto_app.core.metrics import Model, metric_row
from fedproto_app.core.version import __version__

ROSTER, ALIVE = f"{MessageType.QUERY}.roster", f"{MessageType.QUERY}.alive"
QUESTION = f"{MessageType.QUERY}.question"  # of a method, between the phases of a round
MASKING = f"{MessageType.QUERY}.masking"  # a step of a masked sum
TOLD, ARRAYS = "told", "arrays"  # records
OF_MASKING, VECTOR = "masking", "vector"  # records of a masked sum beside them
JSON, SECONDS = "json", "seconds"  # fields of what is told
# Fields of a roster query and its answer: server and node must have the same protocol. Raise it
# with every change of a message that the other side would misread.
PROTOCOL_FIELD, VERSION_FIELD = "protocol", "version"
PROTOCOL = 2
MOST_BYTES = 32 * 2**20  # of JSON: 20,000 clients of a node have room for 80 numbers each
MOST_REASON = 4096  # characters of a text
MOST_FAULTS = 100  # that are looked at one by one

# Control characters, and those that change the direction of what follows.
_CODES = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

T = TypeVar("T")
Many = Annotated[list[T], Field(fail_fast=True)]


def _without_codes(name: str) -> str:
    """Names stand in logs and tables: no code of a terminal, nothing that turns a line around."""
    if _CODES.search(name):
        raise ValueError("holds codes that are no text")
    return name


Name = Annotated[str, Field(max_length=256), AfterValidator(_without_codes)]
Reason = Annotated[str, Field(max_length=MOST_REASON)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
MetricRow = tuple[Name, Model, bool, Name]  # of `metric_row`


class Unusable(ValueError):
    """The whole message is refused, for the reason given."""


class _Told(BaseModel):
    """Fields named as those of the message. Floats may be NaN: a loss may have become so."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants"
    )


class OrderTold(_Told):
    """An `Order` without its arrays."""

    run: Name
    token: Name
    server_round: Whole
    clients: Many[Name]
    evaluate: bool
    guided: Many[Name]
    classes: Many[Count]
    options: dict[Name, float]


class ReplyTold(_Told):
    """A `Reply` without its arrays; losses and metrics have a value for each of the names.

    Its seconds have a field of eight bytes: written out, their digits would make the bytes of two
    runs with one seed differ.
    """

    names: Many[Name]
    samples: Many[Whole]
    losses: dict[Name, Many[float]]
    metrics: Many[tuple[MetricRow, Many[float]]]
    kept_rounds: Many[Whole]
    failed: dict[Name, Reason]
    classes: Many[Many[Whole]]


class RosterTold(_Told):
    """A `NodeRoster`."""

    label: Name
    partitions: Count
    samples: dict[Name, Whole]
    groups: dict[Name, Name]
    missing_shares: dict[Name, Share]
    refused: dict[Name, Reason]
    error: Reason
    inputs: Annotated[tuple[Annotated[int, Field(gt=0, lt=2**63)], ...], Field(max_length=8)]
    classes: tuple[Name, ...]
    class_counts: dict[Name, tuple[tuple[Count, ...], ...]]
    notes: dict[Name, Reason]
    times: dict[Name, tuple[Name, Whole, Whole, Whole]]  # `SampleTimes`


_Numbered = dict[Annotated[int, Field(ge=0, lt=2**32)], bytes]


class MaskingOrderTold(_Told):
    """A `MaskingOrder`."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    run: Name
    token: Name
    server_round: Whole
    session: Name
    step: MaskingStep
    publics: Many[PublicKeys]
    sealed: _Numbered
    survivors: Many[Count]


class MaskingReplyTold(_Told):
    """A `MaskingReply`."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    own: PublicKeys | None
    sealed: _Numbered
    seeds: _Numbered
    privates: _Numbered
    fault: Reason


ToldT = TypeVar("ToldT", bound=_Told)


def _record(kind: type[_Told], message: object, **changed: object) -> ConfigRecord:
    """What the message says; its reader checks the values."""
    told = {name: getattr(message, name) for name in kind.model_fields} | changed
    return ConfigRecord({JSON: kind.model_construct(**told).model_dump_json().encode()})


def read_record(content: RecordDict, kind: type[ToldT], name: str = TOLD) -> ToldT:
    """What a message says; raises `Unusable`, whatever it holds."""
    record = content.get(name)
    told = record.get(JSON) if isinstance(record, ConfigRecord) else None
    if not isinstance(told, bytes):
        raise Unusable(f"malformed message: no {JSON!r} in a record {name!r}")
    if len(told) > MOST_BYTES:
        raise Unusable(f"malformed message: {len(told)} bytes of JSON, more than {MOST_BYTES}")
    try:
        return kind.model_validate_json(told)
    except ValidationError as error:
        raise Unusable(f"malformed message: {_first_fault(error)}") from None


def _first_fault(error: ValidationError) -> str:
    if error.error_count() > MOST_FAULTS:
        return f"{error.error_count()} faults"  # telling them apart would take gigabytes
    fault = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, fault['loc']))[:200]}: {fault['msg']}".removeprefix(": ")


def protocol_fault(content: RecordDict, sender: str, reader: str) -> str | None:
    """Why sender and reader cannot work together, None if their messages are of one protocol.

    content: of a roster query or its answer. sender, reader: "server" and "node", or "node" and
    "server".
    """
    record = content.get(TOLD)
    fields = record if isinstance(record, ConfigRecord) else ConfigRecord()
    if fields.get(PROTOCOL_FIELD) == PROTOCOL:
        return None
    version, theirs = fields.get(VERSION_FIELD), "before 0.2"
    if isinstance(version, str) and len(version) <= 40 and not _CODES.search(version):
        theirs = version
    return (
        f"the {sender} runs fedproto-app {theirs}, this {reader} {__version__}: they cannot read "
        "each other's messages; install the same version on both"
    )


def _with_protocol(record: ConfigRecord) -> ConfigRecord:
    record[PROTOCOL_FIELD], record[VERSION_FIELD] = PROTOCOL, __version__
    return record


# --- the node's side --------------------------------------------------------------------------


def read_order(message: Message) -> Order:
    """The order in a message of any phase; raises `Unusable` if there is none."""
    told = read_record(message.content, OrderTold)
    record = message.content.get(ARRAYS, ArrayRecord())
    if not isinstance(record, ArrayRecord):
        raise Unusable(f"malformed message: {ARRAYS!r} are a {type(record).__name__}")
    arrays = {name: read_array(name, array) for name, array in record.items()}
    return Order(**dict(told), arrays=arrays)


def read_array(
    name: str,
    array: Array,
    shape: tuple[int, ...] | None = None,
    kind: type[np.number[Any]] = np.float32,
) -> NDArray[Any]:
    """The array in Flower's NumPy serialisation, of numbers; raises `Unusable`, whatever it holds.

    Nothing is allocated unless the bytes are there. shape: numbers of this kind in this shape are
    expected.
    """
    try:
        file = BytesIO(array.data)
        major = np.lib.format.read_magic(file)[0]
        readers = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        found, fortran, dtype = readers[major](file)
        values = file.read()
    except Exception as error:  # what a broken header raises is NumPy's own business
        raise Unusable(f"array {name!r} cannot be read: {str(error)[:200]!r}") from None
    if shape is not None and found != shape:
        raise Unusable(f"array {name!r} has shape {str(found)[:100]}, expected {shape}")
    if dtype.kind not in "fiub" if shape is None else dtype != kind:
        raise Unusable(f"array {name!r} has dtype {str(dtype)[:100]}, expected {kind.__name__}")
    if min(found, default=0) < 0 or len(values) != dtype.itemsize * math.prod(found):
        raise Unusable(f"array {name!r} has {len(values)} bytes for shape {str(found)[:100]}")
    flat = np.frombuffer(values, dtype=dtype)
    try:
        return flat.reshape(found, order="F" if fortran else "C").copy()
    except ValueError:  # of no values, but in a shape that no array can have
        raise Unusable(f"array {name!r} has shape {str(found)[:100]}") from None


def write_reply(reply: Reply, to: Message, vector: NDArray[np.uint64] | None = None) -> Message:
    """The node's answer to such a message. vector: masked sums in place of its arrays."""
    metrics = [(metric_row(metric), values) for metric, values in reply.metrics.items()]
    told = _record(ReplyTold, reply, metrics=metrics, failed=_cut(reply.failed))
    told[SECONDS] = float(reply.seconds)
    content = _content(told, reply.arrays)
    if vector is not None:
        content[VECTOR] = ArrayRecord({VECTOR: Array(vector)})
    return Message(content, reply_to=to)


def is_answer(reply: Message, order: Message) -> bool:
    """Whether a reply has anything of what was asked: neither an error nor failed clients alone."""
    if reply.has_error():
        return False
    try:
        if order.metadata.message_type == MASKING:
            return not read_record(reply.content, MaskingReplyTold, OF_MASKING).fault
        if OF_MASKING in order.content and VECTOR not in reply.content:
            return False
        asked = read_record(order.content, OrderTold).clients
        return not set(asked).isdisjoint(read_record(reply.content, ReplyTold).names)
    except Unusable:
        return False


def read_masking_order(message: Message) -> MaskingOrder | None:
    """What a message says of a masked sum, None if nothing; raises `Unusable` for anything else."""
    return required_masking_order(message) if OF_MASKING in message.content else None


def required_masking_order(message: Message) -> MaskingOrder:
    """What a step of a masked sum asks; raises `Unusable` if it asks nothing."""
    return MaskingOrder(**dict(read_record(message.content, MaskingOrderTold, OF_MASKING)))


def write_masking_reply(reply: MaskingReply, to: Message) -> Message:
    """The node's answer to a step of a masked sum."""
    told = _record(MaskingReplyTold, reply, fault=reply.fault[:MOST_REASON])
    return Message(RecordDict({OF_MASKING: told}), reply_to=to)


def write_roster(roster: NodeRoster, to: Message) -> Message:
    """The node's answer to the roster query."""
    cut = {name: _cut(getattr(roster, name)) for name in ("refused", "notes")}
    told = _record(RosterTold, roster, error=roster.error[:MOST_REASON], **cut)
    return Message(_content(_with_protocol(told), {}), reply_to=to)


def _cut(reasons: Mapping[str, str]) -> dict[str, str]:
    """Too long a reason would cost the whole message."""
    return {name: reason[:MOST_REASON] for name, reason in reasons.items()}


def write_alive(to: Message) -> Message:
    """The node's empty answer to the question whether it is alive."""
    return Message(RecordDict(), reply_to=to)


# --- the server's side ------------------------------------------------------------------------


def write_order(order: Order, node_id: int, message_type: str) -> Message:
    """The message that carries an order to a node, with a RecordDict of its own."""
    return Message(
        _content(_record(OrderTold, order), order.arrays),
        dst_node_id=node_id,
        message_type=message_type,
        group_id=str(order.server_round),
    )


def add_masking(order: MaskingOrder, to: Message) -> None:
    """Let an order to train bring what its node needs for a masked sum."""
    to.content[OF_MASKING] = _record(MaskingOrderTold, order)


def masking_query(order: MaskingOrder, node_id: int) -> Message:
    """Ask a node for a step of a masked sum."""
    content = RecordDict({OF_MASKING: _record(MaskingOrderTold, order)})
    group = str(order.server_round)
    return Message(content, dst_node_id=node_id, message_type=MASKING, group_id=group)


def read_masking_reply(message: Message) -> MaskingReply:
    """The node's answer; raises `Unusable` if it is none."""
    return MaskingReply(**dict(read_record(message.content, MaskingReplyTold, OF_MASKING)))


def roster_query(node_id: int) -> Message:
    """Ask a node for its clients."""
    content = RecordDict({TOLD: _with_protocol(ConfigRecord())})
    return Message(content, dst_node_id=node_id, message_type=ROSTER, group_id="0")


def alive_query(node_id: int) -> Message:
    """Ask a node for a sign of life, which is an empty answer."""
    return Message(RecordDict(), dst_node_id=node_id, message_type=ALIVE, group_id="0")


def flower_average_input(arrays: Arrays, weight: int) -> Message:
    """A model as Flower's own strategies want it: one ArrayRecord, one scalar weight."""
    metrics = MetricRecord({"num-examples": weight})
    content = RecordDict({ARRAYS: array_record(arrays), "metrics": metrics})
    return Message(content, dst_node_id=0, message_type=MessageType.TRAIN)


def _content(told: ConfigRecord, arrays: Arrays) -> RecordDict:
    content = RecordDict({TOLD: told})
    if arrays:
        content[ARRAYS] = array_record(arrays)
    return content


def array_record(arrays: Arrays) -> ArrayRecord:
    """NumPy arrays as Flower's record."""
    return ArrayRecord({name: Array(np.ascontiguousarray(a)) for name, a in arrays.items()})


def numpy_arrays(record: ArrayRecord) -> Arrays:
    """Flower's record as NumPy arrays."""
    return {name: cast("NDArray[np.float32]", array.numpy()) for name, array in record.items()}


def sent_bytes(message: Message) -> int:
    """Bytes of a message's records as Flower counts them."""
    return sum(record.count_bytes() for record in message.content.values())
