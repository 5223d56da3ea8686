"""What a round asked, got and cost, and what is known of each client's model since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any

from flwr.app import Message

from fedproto_app.core.clients import ClientKey
from fedproto_app.events import shown, tell
from fedproto_app.messages import Refusal, Reply
from fedproto_app.metrics import Metric, metric_of, metric_row

MOST_REFUSALS = 1000  # of one node in a round that are told


@dataclass
class RoundLog:
    """What one round asked, got and cost.

    server_round: 0 while the nodes come. asked, answered, late: orders to nodes, usable replies,
    replies that the deadline did not see.
    parameters_up, parameters_down: array values as the papers count them, each client for itself,
    however clients share a node. parameters_up_once: of the former, what a client sends once in a
    run. bytes_up, bytes_down: what the records really weigh. figures: what the method itself
    reports of the round.
    """

    server_round: int = 0
    asked: int = 0
    answered: int = 0
    refused: list[Refusal] = field(default_factory=list)
    late: int = 0
    losses: dict[ClientKey, dict[str, float]] = field(default_factory=dict)
    parameters_up: int = 0
    parameters_up_once: int = 0
    parameters_down: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    node_seconds: float = 0.0
    figures: dict[str, float | None] = field(default_factory=dict)
    _refusals: Counter[str] = field(default_factory=Counter)  # by node, those not told too

    def refuse(self, refusal: Refusal) -> None:
        """Note what of an answer is not used, and tell it.

        The words are a stranger's: they are cut, and what cannot be shown is escaped. Of a node's
        many refusals in a round only the first are told.
        """
        self._refusals[refusal.node] += 1
        its = self._refusals[refusal.node]
        if its > MOST_REFUSALS:
            return
        told = Refusal(*(shown(text) for text in (refusal.node, refusal.client, refusal.reason)))
        if its == MOST_REFUSALS:
            told = Refusal(told.node, "", f"{MOST_REFUSALS} refusals in a round; no more are told")
        self.refused.append(told)
        tell(
            "refused",
            WARNING,
            round=self.server_round,
            node=told.node,
            client=told.client or None,
            reason=told.reason,
        )


@dataclass
class ClientResult:
    """A client's latest metrics and those of its kept model (0: it has none yet)."""

    metrics: dict[Metric, float] = field(default_factory=dict)
    kept_round: int = 0

    def memory(self) -> list[Any]:
        """For a checkpoint."""
        rows = [[metric_row(metric), value] for metric, value in self.metrics.items()]
        return [rows, self.kept_round]

    @staticmethod
    def of(rows: Iterable[tuple[Sequence[Any], float]], kept_round: int) -> ClientResult:
        """The result whose `memory` this is."""
        return ClientResult({metric_of(row): value for row, value in rows}, kept_round)


@dataclass(frozen=True)
class NodeReply:
    """A node's answer after refusal: `message` is Flower's, `reply` its usable content."""

    node: str
    reply: Reply
    message: Message

    def keys(self) -> list[ClientKey]:
        """The clients that answered, in the order of the reply's rows."""
        return [ClientKey(name, self.node) for name in self.reply.names]
