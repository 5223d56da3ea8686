"""Probes: cheap queries that show whether a node still works on its order.

A node handles one message after the other. If it answers a probe that was sent after an order, but
not the order, the order is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from fedproto_app.core.wire import alive_query

PROBE_LIFE = 600.0  # seconds after which an unanswered probe counts as lost


@dataclass(frozen=True)
class Probe:
    """A probe without an answer: its node, and when it was sent."""

    node: int
    sent_at: float


class Probes:
    """The probes that no node has answered yet."""

    def __init__(self) -> None:
        self._sent: dict[str, Probe] = {}  # by message id

    def ids(self) -> list[str]:
        """Return the ids of the probes' messages, to poll for answers."""
        return list(self._sent)

    def answered(self, message_id: str) -> Probe | None:
        """Remove and return the probe of this id, which has been answered; None if unknown."""
        return self._sent.pop(message_id, None)

    def send(self, grid: Grid, nodes: Iterable[int]) -> None:
        """Probe the nodes whose last probe has been answered or counts as lost."""
        time_now = time.monotonic()
        self._sent = {
            i: probe for i, probe in self._sent.items() if time_now - probe.sent_at < PROBE_LIFE
        }
        idle = sorted(set(nodes) - {probe.node for probe in self._sent.values()})
        probes = [alive_query(node) for node in idle]
        accepted_ids = set(push(grid, probes))
        for node, probe in zip(idle, probes, strict=True):
            if probe.metadata.message_id in accepted_ids:
                self._sent[probe.metadata.message_id] = Probe(node, time_now)


def push(grid: Grid, messages: Sequence[Message]) -> list[str]:
    """Send the messages without waiting; return the ids of the messages that Flower accepted."""
    return (
        [message_id for message_id in grid.push_messages(messages) if message_id]
        if messages
        else []
    )
