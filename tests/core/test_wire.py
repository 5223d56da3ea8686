"""Messages as records: what is read is what was written, and versions that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Error, Message, MessageType, RecordDict

from fedproto_app import __version__
from fedproto_app.core.messages import (
    Guidance,
    MaskingOrder,
    MaskingReply,
    NodeRoster,
    Order,
    Reply,
)
from fedproto_app.core.wire import (
    FIELDS,
    JSON,
    OF_MASKING,
    OrderFields,
    ReplyFields,
    Unusable,
    add_masking,
    is_answer,
    masking_query,
    protocol_fault,
    read_array,
    read_order,
    read_record,
    roster_query,
    write_masking_reply,
    write_order,
    write_reply,
)
from tests.helpers.bad_replies import npy_header
from tests.helpers.messages import message_of, order_message, roster_message


def test_the_same_version_has_no_fault() -> None:
    assert protocol_fault(roster_query(1).content, "server", "node") is None


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({}, "of an unknown version"),
        ({"protocol": 1, "version": "0.1.7"}, "0.1.7"),
        ({"protocol": 4, "version": "0.3.0"}, "0.3.0"),
        ({"protocol": "2", "version": "x" * 1000}, "of an unknown version"),
        ({"protocol": 1.0, "version": "0\x1b[2J"}, "of an unknown version"),
    ],
)
def test_another_version_is_named(fields: dict[str, Any], version: str) -> None:
    fault = protocol_fault(RecordDict({FIELDS: ConfigRecord(fields)}), "server", "node")
    assert fault == (
        f"the server runs fedproto-app {version}, this node {__version__}: they cannot read each "
        "other's messages, so install the same version on both"
    )


def test_an_order_is_read_as_it_was_written() -> None:
    arrays = {"heads": np.ones((1, 3), np.float32)}
    guidance = Guidance(arrays, ["a"], [0, 2], {"mu": 0.1 + 0.2})
    order = Order("run", "token", 3, ["a"], True, guidance)
    received = read_order(order_message(order))
    assert list(received.guidance.arrays) == ["heads"]
    assert np.array_equal(received.guidance.arrays["heads"], arrays["heads"])
    assert replace(received, guidance=replace(received.guidance, arrays=arrays)) == order


def test_a_message_must_have_every_field() -> None:
    """Also those that have a default where the message is made."""
    query = masking_query(MaskingOrder("run", "token", 1, "session", "keys"), 5)
    for kind, name, message in (
        (OrderFields, FIELDS, order_message()),
        (ReplyFields, FIELDS, message_of()),
        (NodeRoster, FIELDS, roster_message()),
        (MaskingOrder, OF_MASKING, query),
        (MaskingReply, OF_MASKING, write_masking_reply(MaskingReply(), reply_to=query)),
    ):
        table = json.loads(message.content[name][JSON])
        for key in table:
            fewer = json.dumps({k: value for k, value in table.items() if k != key}).encode()
            message.content[name][JSON] = fewer
            with pytest.raises(Unusable, match=f"{key}: Field required"):
                read_record(message.content, kind, name)


def test_failed_clients_alone_are_no_answer() -> None:
    """As a node gives them that is leaving, or whose disk is full."""
    order = write_order(Order("run", "token", 1, ["a", "b"]), 5, MessageType.TRAIN)
    for name, answers in {"a": True, "z": False}.items():
        assert is_answer(write_reply(Reply([name], [10]), reply_to=order), order) == answers
    failed_reply = Reply([], [], failed={"a": "its disk is full"})
    assert not is_answer(write_reply(failed_reply, reply_to=order), order)
    assert not is_answer(Message(Error(code=0, reason="killed"), reply_to=order), order)
    assert not is_answer(Message(RecordDict(), reply_to=order), order)
    assert not is_answer(write_masking_reply(MaskingReply(), reply_to=order), order)


def test_masked_sums_are_answered_with_what_they_need() -> None:
    step = MaskingOrder("run", "token", 1, "session", "keys")
    query = masking_query(step, 5)
    assert is_answer(write_masking_reply(MaskingReply(), reply_to=query), query)
    refused = write_masking_reply(MaskingReply(fault="I will not"), reply_to=query)
    assert not is_answer(refused, query)
    order = write_order(Order("run", "token", 1, ["a"]), 5, MessageType.TRAIN)
    add_masking(replace(step, step="train"), message=order)
    plain, vector = Reply(["a"], [10]), np.zeros(3, np.uint64)
    assert not is_answer(write_reply(plain, reply_to=order), order)
    assert is_answer(write_reply(plain, reply_to=order, vector=vector), order)


@pytest.mark.parametrize("length", [2**63, 2**62])
def test_no_values_in_a_shape_that_no_array_can_have(length: int) -> None:
    data = npy_header((0, length, 3))
    array = Array(dtype="float32", shape=(0,), stype="numpy.ndarray", data=data)
    with pytest.raises(Unusable, match=rf"array 'w' has shape \(0, {length}, 3\)"):
        read_array("w", array)
