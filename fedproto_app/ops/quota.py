"""Limit the bytes that a node may send in answer to an order, before a SuperLink stores them.

A SuperLink stores whatever a registered node pushes. A node fetches one order at a time and answers
it, and the server decides how many orders there are. A limit per order therefore bounds what a node
can make the server store, however many replies it sends.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

LARGEST_REPLY = 256  # MB

NodeKey = bytes | int  # a node's public key or id, checked by the caller


class Quota:
    """Counts the bytes that each node has sent since it fetched its last order. Thread-safe.

    limit: the bytes that a node may send per order.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._bytes: dict[NodeKey, int] = {}
        self._begun: dict[NodeKey, ConfirmMessageReceivedRequest] = {}

    def renew(self, node: NodeKey) -> None:
        """Start counting from zero, because the node has fetched an order."""
        with self._lock:
            self._bytes.pop(node, None)
            self._begun.pop(node, None)

    def begin(self, node: NodeKey, request: PushMessagesRequest) -> None:
        """Note the reply whose parts come next. Of several replies, only the first is stored."""
        from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

        for message in request.messages_list[:1]:
            received = ConfirmMessageReceivedRequest(
                node=request.node,
                run_id=message.metadata.run_id,
                message_object_id=message.metadata.message_id,
            )
            with self._lock:
                self._begun[node] = received

    def spend(self, node: NodeKey, size: int) -> bool:
        """Count these bytes. If they exceed what the node may send, return False instead."""
        with self._lock:
            total = self._bytes.get(node, 0) + size
            if total > self.limit:
                return False
            self._bytes[node] = total
            return True

    def refund(self, node: NodeKey, size: int) -> None:
        """Undo a count, because the SuperLink did not store the bytes."""
        with self._lock:
            total = self._bytes.pop(node, 0) - size
            if total > 0:  # nothing is kept for strangers
                self._bytes[node] = total

    def withdrawal(self, node: NodeKey) -> ConfirmMessageReceivedRequest | None:
        """Return the call that deletes what is stored of a refused reply, or None if nothing is.

        The call says that the reply was received. Without it, the ServerApp would wait three
        minutes for the missing parts.
        """
        with self._lock:
            reply = self._begun.pop(node, None)
        if reply is not None:
            line = f"node {reply.node.node_id} of run {reply.run_id}: {self.refusal}"
            print(line, file=sys.stderr, flush=True)
        return reply

    @property
    def refusal(self) -> str:
        return (
            f"a reply may have {self.limit >> 20} MB in all; the server's --largest-reply "
            "(FEDPROTO_LARGEST_REPLY_MB) sets this limit"
        )
