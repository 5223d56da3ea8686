"""Take each reply from Flower once all its parts have arrived, and believe nothing it says.

A node announces a reply and then sends its parts. Flower's grid waits, for hours, until all parts
of an announced reply are here. Meanwhile it takes no other reply and no deadline holds: one node
that announces a reply and keeps its parts would stop a run. An announced reply that is no message
would end it, because Flower builds whatever the parts describe. Here

- a look for replies takes the parts that have arrived, and returns the complete replies;
- sender and order of a reply are those of the announcement, which the SuperLink has checked, not
  those in its parts, which it has not;
- whatever cannot be built is an error of its node.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from logging import DEBUG
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import ErrorCode
from flwr.common.logger import log
from flwr.common.serde_utils import metadata_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
    pull_objects,
)
from flwr.superlink.grid.http_grid import HttpGrid

LONGEST_LOOK = 10.0  # seconds for the parts of one reply, before the next reply has its turn


@dataclass
class _Announced:
    """A reply of which not all parts are here. parts: by id."""

    metadata: Metadata
    part_ids: list[str]
    parts: dict[str, bytes] = field(default_factory=dict)


class PollingGrid(Grid):
    """Flower's grid of real nodes, whose `pull_messages` waits for no node."""

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        self._announced: dict[str, _Announced] = {}  # by the id of its order

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the complete replies to these orders, and an error for each that cannot come."""
        wanted = set(message_ids)
        self._look_for_announcements(wanted)
        replies = []
        for order_id in [order_id for order_id in self._announced if order_id in wanted]:
            announced = self._announced[order_id]
            try:
                if not self._pull_parts(announced):
                    continue
                reply = _built(announced)
            except Exception as error:  # parts can make Flower raise anything
                reply = _error(announced, f"a reply that cannot be read: {error}")
            self._drop(order_id)
            replies.append(reply)
        return replies + self._replaced(wanted)

    def _look_for_announcements(self, wanted: set[str]) -> None:
        request = PullAppMessagesRequest(message_ids=wanted - self._announced.keys())
        answer = self._grid._runtime_client.PullMessages(request)
        for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            metadata = metadata_from_proto(message.metadata)
            part_ids = dict.fromkeys(part.object_id for part in iterate_object_tree(tree))
            self._announced[metadata.reply_to_message_id] = _Announced(metadata, list(part_ids))

    def _pull_parts(self, announced: _Announced) -> bool:
        """Pull the parts that have arrived; return whether these are all."""
        pull = make_pull_object_fn_protobuf(
            self._grid._runtime_client.PullObject, self._grid.node, announced.metadata.run_id
        )
        until = time.monotonic() + LONGEST_LOOK
        stopped = False

        def pull_in_time(part_id: str) -> bytes:
            nonlocal stopped
            try:
                if time.monotonic() > until:
                    raise ObjectUnavailableError(part_id)
                announced.parts[part_id] = pull(part_id)
            except ObjectUnavailableError:
                stopped = True
                raise
            return announced.parts[part_id]

        missing = [part_id for part_id in announced.part_ids if part_id not in announced.parts]
        try:
            pull_objects(missing, pull_in_time, max_tries_per_object=1)
        except ObjectPullError:
            if not stopped:  # the SuperLink has deleted it: no part came for minutes
                raise
        return not stopped

    def _replaced(self, wanted: set[str]) -> list[Message]:
        """Forget replies whose node has announced another: it sends one after the other.

        So a node occupies the memory of one reply, however many it announces.
        """
        newest = {reply.metadata.src_node_id: reply for reply in self._announced.values()}
        errors = []
        for order_id, reply in list(self._announced.items()):
            if reply is not newest[reply.metadata.src_node_id]:
                self._drop(order_id)
                if order_id in wanted:
                    errors.append(_error(reply, "its node never sent all of it"))
        return errors

    def _drop(self, order_id: str) -> None:
        """Forget an announced reply, and let the SuperLink delete what it has of it."""
        metadata = self._announced.pop(order_id).metadata
        self._grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._grid.node,
                run_id=metadata.run_id,
                message_object_id=metadata.message_id,
            )
        )

    # --- as Flower's grid does ----------------------------------------------------------------

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    @property
    def run(self) -> Any:
        return self._grid.run

    def set_run(self, run: Any) -> None:
        raise AssertionError("the run is set already")

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated in Flower")

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise AssertionError("the app sends and polls by itself")


def _built(announced: _Announced) -> Message:
    """Return the reply that the parts describe; raises anything for wrong parts."""
    message = inflate_object_from_contents(announced.metadata.message_id, announced.parts)
    if not isinstance(message, Message):
        raise TypeError(f"it is a {type(message).__name__}, not a message")
    if message.has_error():
        return make_message(metadata=announced.metadata, error=message.error)
    if not isinstance(message.content, RecordDict):
        raise TypeError(f"its content is a {type(message.content).__name__}, not records")
    return make_message(metadata=announced.metadata, content=message.content)


def _error(announced: _Announced, reason: str) -> Message:
    log(DEBUG, "%s: %s", announced.metadata.message_id, reason)
    error = Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=reason)
    return make_message(metadata=announced.metadata, error=error)
