"""Take the replies of real nodes from Flower, each as soon as all its parts have arrived.

A node announces a reply and then sends its parts. Flower's grid waits until it has all parts of an
announced reply, even for hours. Meanwhile it takes no other reply, and deadlines have no effect. A
node that announces a reply and holds back its parts would thus stop a run. A node whose reply is
not a message would end the run, because Flower builds whatever the parts describe. `PollingGrid`

- takes the parts that have arrived, and returns only complete replies,
- takes sender and order from the announcement, which the SuperLink has checked, and never from the
  parts, which it has not checked, and
- returns an error in the node's name for anything that cannot be built.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.app import Error, Message
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import ErrorCode
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

if TYPE_CHECKING:
    from flwr.superlink.grid.http_grid import HttpGrid

LONGEST_LOOK = 10.0  # seconds for the parts of one reply before it is the next reply's turn


@dataclass
class _Announced:
    """A reply that a node has announced. parts: the parts that have arrived, by id. is_held_back:
    whether the SuperLink still lacks a part."""

    metadata: Metadata
    part_ids: list[str]
    parts: dict[str, bytes] = field(default_factory=dict)
    is_held_back: bool = False


def without_waiting(grid: Grid) -> Grid:
    """Return a grid that waits for no node. Grids of simulations never wait."""
    # This import takes a second, so it is not at the top. In a deployment Flower has done it.
    from flwr.superlink.grid.http_grid import HttpGrid

    return PollingGrid(grid) if isinstance(grid, HttpGrid) else grid


class PollingGrid(Grid):
    """Flower's grid of real nodes, whose `pull_messages` waits for no node."""

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        self._announced: dict[str, _Announced] = {}  # by the id of its order

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the complete replies to these orders, and an error for each that cannot arrive."""
        order_ids = set(message_ids)
        self._look_for_announcements(order_ids)
        replies = []
        for order_id in [order_id for order_id in self._announced if order_id in order_ids]:
            announced = self._announced[order_id]
            try:
                if not self._pull_parts(announced):
                    continue
                reply = _built(announced)
            except ObjectPullError:  # the SuperLink has deleted it, as no part came for a long time
                reply = _error(
                    announced,
                    "its reply never arrived completely. If the reply was too large, the "
                    "SuperLink's log says so",
                )
            self._drop(order_id)
            replies.append(reply)
        return replies + self._replaced(order_ids)

    def _look_for_announcements(self, order_ids: set[str]) -> None:
        request = PullAppMessagesRequest(message_ids=order_ids - self._announced.keys())
        answer = self._grid._runtime_client.PullMessages(request)
        for message, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            metadata = metadata_from_proto(message.metadata)
            part_ids = dict.fromkeys(part.object_id for part in iterate_object_tree(tree))
            self._announced[metadata.reply_to_message_id] = _Announced(metadata, list(part_ids))

    def _pull_parts(self, announced: _Announced) -> bool:
        """Pull the parts that have arrived. Return whether these are all parts.

        Raises `ObjectPullError` if the SuperLink has deleted a part.
        """
        pull = make_pull_object_fn_protobuf(
            self._grid._runtime_client.PullObject, self._grid.node, announced.metadata.run_id
        )
        until = time.monotonic() + LONGEST_LOOK
        announced.is_held_back = is_too_late = False

        def pull_in_time(part_id: str) -> bytes:
            nonlocal is_too_late
            if time.monotonic() > until:
                is_too_late = True
                raise ObjectUnavailableError(part_id)
            try:
                announced.parts[part_id] = pull(part_id)
            except ObjectUnavailableError:
                announced.is_held_back = True
                raise
            return announced.parts[part_id]

        missing = [part_id for part_id in announced.part_ids if part_id not in announced.parts]
        try:
            pull_objects(missing, pull_in_time, max_tries_per_object=1)
        except ObjectPullError:
            if announced.is_held_back or is_too_late:
                return False
            raise
        return True

    def _replaced(self, order_ids: set[str]) -> list[Message]:
        """Forget incomplete replies of nodes that have announced another reply since.

        A node sends one reply after the other. However many it announces, it thus occupies the
        memory of only one.
        """
        newest = {reply.metadata.src_node_id: reply for reply in self._announced.values()}
        errors = []
        for order_id, reply in list(self._announced.items()):
            is_pulled_now = order_id in order_ids and not reply.is_held_back
            if reply is newest[reply.metadata.src_node_id] or is_pulled_now:
                continue
            self._drop(order_id)
            if order_id in order_ids:
                errors.append(_error(reply, "its reply never arrived completely: it sent another"))
        return errors

    def _drop(self, order_id: str) -> None:
        """Forget an announced reply, and let the SuperLink delete the parts that it has."""
        metadata = self._announced.pop(order_id).metadata
        self._grid._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._grid.node, run_id=metadata.run_id, message_object_id=metadata.message_id
            )
        )

    # --- the same as in Flower's grid ---------------------------------------------------------

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
    """Return the reply that the parts describe, or an error in its node's name."""
    try:
        message = inflate_object_from_contents(announced.metadata.message_id, announced.parts)
    except Exception as error:  # malicious parts can make Flower raise anything
        return _error(announced, f"its reply cannot be read: {error!r}")
    if not isinstance(message, Message):
        return _error(announced, f"its reply is a {type(message).__name__}, not a message")
    if message.has_error():
        return make_message(metadata=announced.metadata, error=message.error)
    return make_message(metadata=announced.metadata, content=message.content)


def _error(announced: _Announced, reason: str) -> Message:
    error = Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=reason)
    return make_message(metadata=announced.metadata, error=error)
