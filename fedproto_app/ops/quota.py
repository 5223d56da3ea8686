"""How many bytes a node may send in answer to an order, counted before a SuperLink stores them.

A SuperLink stores whatever a registered node pushes. A node draws one order at a time and answers
it, and the server decides how many orders there are: a limit for each order bounds what a node can
make the server store, however many replies it sends.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Generic, TypeVar

LARGEST_REPLY = 256  # MB

_Reply = TypeVar("_Reply")


class Quota(Generic[_Reply]):
    """The bytes that each node has sent since it drew its last order; for use in many threads.

    limit: bytes per order. node: an id or a public key, checked by the caller.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._bytes: dict[Hashable, int] = {}
        self._begun: dict[Hashable, _Reply] = {}

    def renew(self, node: Hashable) -> None:
        """Count from zero: the node has drawn an order."""
        with self._lock:
            self._bytes.pop(node, None)
            self._begun.pop(node, None)

    def begin(self, node: Hashable, reply: _Reply) -> None:
        """Note the reply whose parts the node sends next."""
        with self._lock:
            self._begun[node] = reply

    def spend(self, node: Hashable, size: int) -> bool:
        """Count so many bytes, or return False if they exceed what the node may send."""
        with self._lock:
            total = self._bytes.get(node, 0) + size
            if total > self.limit:
                return False
            self._bytes[node] = total
            return True

    def refund(self, node: Hashable, size: int) -> None:
        """Take back a count: the SuperLink did not store the bytes."""
        with self._lock:
            total = self._bytes.pop(node, 0) - size
            if total > 0:  # strangers leave nothing behind
                self._bytes[node] = total

    def abandon(self, node: Hashable) -> _Reply | None:
        """Return the reply that the node has begun, once, or None without such a reply."""
        with self._lock:
            return self._begun.pop(node, None)
