"""Replies whose parts come late, never, or are not what was announced."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.serde_utils import metadata_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)

from fedproto_app.core.wire import alive_query
from fedproto_app.engine.flower_parts import number
from fedproto_app.server import polling_grid
from fedproto_app.server.polling_grid import PollingGrid


class SuperLink:
    """What a SuperLink answers: announced replies once, parts that it has."""

    def __init__(self) -> None:
        self.announced: list[tuple[ProtoMessage, ObjectTree]] = []
        self.parts: dict[str, bytes | None] = {}  # None: not yet here
        self.confirmed: list[str] = []
        self.pulled: list[str] = []

    def announce(self, reply: Message, root: InflatableObject | None = None) -> list[str]:
        """Announce a reply, or something else in its place, and return the ids of its parts."""
        built = root or reply
        reply.metadata.__dict__["_message_id"] = built.object_id
        proto = ProtoMessage(metadata=metadata_to_proto(reply.metadata))
        self.announced.append((proto, get_object_tree(built)))
        ids = list(get_all_nested_objects(built))
        self.parts |= dict.fromkeys(ids)
        return ids

    def store(self, built: InflatableObject) -> None:
        self.parts |= {i: part.deflate() for i, part in get_all_nested_objects(built).items()}

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:
        replies = [
            (message, tree)
            for message, tree in self.announced
            if message.metadata.reply_to_message_id in request.message_ids
        ]
        self.announced = [pair for pair in self.announced if pair not in replies]
        return PullAppMessagesResponse(
            messages_list=[message for message, _ in replies],
            message_object_trees=[tree for _, tree in replies],
        )

    def PullObject(self, request: Any) -> Any:
        self.pulled.append(request.object_id)
        content = self.parts.get(request.object_id)
        return SimpleNamespace(
            object_found=request.object_id in self.parts,
            object_available=content is not None,
            object_content=content,
        )

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def superlink() -> SuperLink:
    return SuperLink()


@pytest.fixture
def grid(superlink: SuperLink) -> PollingGrid:
    return PollingGrid(cast(Any, SimpleNamespace(_runtime_client=superlink, node=Node(node_id=1))))


def reply_of(node: int, value: float = 1.0) -> Message:
    order = alive_query(node)
    number(order)
    return Message(
        RecordDict({"arrays": ArrayRecord({"w": Array("f", (1,), "s", bytes([int(value)]))})}),
        reply_to=order,
    )


def order_of(reply: Message) -> str:
    return reply.metadata.reply_to_message_id


def test_a_reply_whose_parts_are_missing_keeps_no_other_waiting(
    superlink: SuperLink, grid: PollingGrid
) -> None:
    late, prompt = reply_of(11, 1), reply_of(12, 2)
    superlink.announce(late)
    superlink.announce(prompt)
    superlink.store(prompt)
    orders = [order_of(late), order_of(prompt)]
    (reply,) = grid.pull_messages(orders)
    assert order_of(reply) == order_of(prompt)
    assert reply.metadata.src_node_id == 12
    assert reply.content["arrays"]["w"].data == bytes([2])
    assert not grid.pull_messages(orders[:1])
    superlink.store(late)
    (reply,) = grid.pull_messages(orders[:1])
    assert reply.metadata.src_node_id == 11
    assert superlink.confirmed == [prompt.metadata.message_id, late.metadata.message_id]


def test_parts_that_are_here_are_not_pulled_again(superlink: SuperLink, grid: PollingGrid) -> None:
    reply = reply_of(11)
    superlink.announce(reply)
    leaf = next(iterate_object_tree(get_object_tree(reply))).object_id
    superlink.parts[leaf] = get_all_nested_objects(reply)[leaf].deflate()
    assert not grid.pull_messages([order_of(reply)])
    superlink.store(reply)
    superlink.pulled.clear()
    assert grid.pull_messages([order_of(reply)])
    assert leaf not in superlink.pulled


def delete_parts(superlink: SuperLink, reply: Message) -> None:
    for part_id in superlink.announce(reply):
        del superlink.parts[part_id]


def store_a_record(superlink: SuperLink, reply: Message) -> None:
    record = ConfigRecord({"no": "message"})
    superlink.announce(reply, record)
    superlink.store(record)


def store_other_content(superlink: SuperLink, reply: Message) -> None:
    reply.__dict__["_content"] = ConfigRecord({"no": "records"})
    superlink.announce(reply)
    superlink.store(reply)


def store_nonsense(superlink: SuperLink, reply: Message) -> None:
    superlink.announce(reply)
    superlink.store(reply)
    superlink.parts[reply.object_id] = b"nonsense"


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (delete_parts, "If the reply was too large"),
        (store_a_record, "its reply is a ConfigRecord, not a message"),
        (store_other_content, "its reply cannot be read"),
        (store_nonsense, "its reply cannot be read"),
    ],
)
def test_what_is_no_message_is_an_error_of_the_node(
    superlink: SuperLink, grid: PollingGrid, spoil: Any, reason: str
) -> None:
    reply = reply_of(11)
    spoil(superlink, reply)
    (error,) = grid.pull_messages([order_of(reply)])
    assert reason in error.error.reason
    assert (order_of(error), error.metadata.src_node_id) == (order_of(reply), 11)
    assert superlink.confirmed == [reply.metadata.message_id]


def test_parts_cannot_answer_for_another_node(superlink: SuperLink, grid: PollingGrid) -> None:
    reply, false_parts = reply_of(11), reply_of(12)
    superlink.announce(reply, false_parts)
    superlink.store(false_parts)
    (answer,) = grid.pull_messages([order_of(reply)])
    assert not answer.has_error()
    assert (order_of(answer), answer.metadata.src_node_id) == (order_of(reply), 11)


def test_a_superlink_that_fails_is_no_fault_of_a_node(
    superlink: SuperLink, grid: PollingGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = reply_of(11)
    superlink.announce(reply)
    superlink.store(reply)

    def fail(request: object) -> None:
        raise ConnectionError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(superlink, "PullObject", fail)
        with pytest.raises(ConnectionError):
            grid.pull_messages([order_of(reply)])
    assert not grid.pull_messages([order_of(reply)])[0].has_error()


def test_a_node_that_announces_again_has_given_up_its_earlier_reply(
    superlink: SuperLink, grid: PollingGrid
) -> None:
    first, second = reply_of(11, 1), reply_of(11, 2)
    superlink.announce(first)
    orders = [order_of(first), order_of(second)]
    assert not grid.pull_messages(orders)
    superlink.announce(second)
    (error,) = grid.pull_messages(orders)
    assert order_of(error) == orders[0]
    assert error.error.reason == "its reply never arrived completely: it sent another"
    superlink.store(second)
    (reply,) = grid.pull_messages(orders)
    assert order_of(reply) == orders[1]
    assert not reply.has_error()


def test_a_look_ends_in_time_however_many_parts_there_are(
    superlink: SuperLink, grid: PollingGrid, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = reply_of(11)
    superlink.announce(reply)
    superlink.store(reply)
    monkeypatch.setattr(polling_grid, "LONGEST_LOOK", -1.0)
    assert not grid.pull_messages([order_of(reply)])
    assert not superlink.pulled
    second = reply_of(11, 2)  # does not replace a reply that only took long to pull
    superlink.announce(second)
    assert not grid.pull_messages([order_of(reply), order_of(second)])
    monkeypatch.undo()
    (answer,) = grid.pull_messages([order_of(reply), order_of(second)])
    assert order_of(answer) == order_of(reply)


def test_an_error_that_a_node_reports_arrives(superlink: SuperLink, grid: PollingGrid) -> None:
    order = alive_query(11)
    number(order)
    reply = Message(Error(code=6, reason="full disk"), reply_to=order)
    superlink.announce(reply)
    superlink.store(reply)
    (error,) = grid.pull_messages([order_of(reply)])
    assert (error.error.code, error.error.reason) == (6, "full disk")
