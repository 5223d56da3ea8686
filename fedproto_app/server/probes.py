"""Probes: queries that cost a node nothing and tell that it is at work, and on what.

A node works on one message after the other. If it answers a probe that was sent after an order, but
not the order, the order is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedproto_app.core.wire import alive_query

PROBE_LIFE = 600.0  # seconds after which an unanswered probe may be lost, too


@dataclass(frozen=True)
class Probe:
    """A probe under way: its node, and when it was sent."""

    node: int
    sent: float


class Probes:
    """The probes that no node has answered yet."""

    def __init__(self) -> None:
        self._sent: dict[str, Probe] = {}  # by message id

    def ids(self) -> list[str]:
        """Their messages' ids, to look for answers."""
        return list(self._sent)

    def answered(self, message_id: str) -> Probe | None:
        """The probe of this id, which is no longer under way; None if there is none."""
        return self._sent.pop(message_id, None)

    def send(self, grid: Grid, nodes: Iterable[int]) -> None:
        """Probe the nodes whose last probe has been answered, or was long ago."""
        now = time.monotonic()
        self._sent = {i: one for i, one in self._sent.items() if now - one.sent < PROBE_LIFE}
        wanted = sorted(set(nodes) - {probe.node for probe in self._sent.values()})
        probes = [alive_query(node) for node in wanted]
        taken = set(push(grid, probes))
        for node, probe in zip(wanted, probes, strict=True):
            if probe.metadata.message_id in taken:
                self._sent[probe.metadata.message_id] = Probe(node, now)


def push(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Send the messages and wait for nothing; returns the ids of those that Flower took."""
    return [one for one in grid.push_messages(messages) if one] if messages else []
