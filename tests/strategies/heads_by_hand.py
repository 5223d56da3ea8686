"""Rounds of the methods with heads in clusters, with the clients' heads set by the test.

A head has two values, so it can be given as an angle. The similarity of two heads is the cosine of
the angle between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import ConfigRecord, Message
from flwr.supercore.task_identity import TaskIdentity

from fedproto_app.core.messages import NodeRoster, Order, Reply
from fedproto_app.core.wire import array_record, read_order, write_reply
from fedproto_app.data.shape import DataShape
from fedproto_app.server.federation import Federation
from fedproto_app.server.round_log import RoundLog
from fedproto_app.settings import settings_from
from fedproto_app.strategies.fed_react.clustered_heads import ClusteredHeadStrategy
from fedproto_app.strategies.fed_react.strategy import EvolutionaryClusterStrategy
from fedproto_app.strategies.ifca import IfcaStrategy
from tests.strategies.one_node import NO_GRID

Head = Sequence[float]
DECLARED = 8  # train samples of each client
ROUNDS = 9
ENCODER = array_record({"encoder.weight": np.zeros((2, 3), np.float32)})

STRATEGIES: dict[str, type[ClusteredHeadStrategy]] = {
    "fed-react": EvolutionaryClusterStrategy,
    "ifca": IfcaStrategy,
    "flsc": IfcaStrategy,
}


@dataclass
class Played:
    """A round: the orders to train and to evaluate by node, and the heads sent to clients."""

    train: dict[int, Order]
    evaluate: dict[int, Order]
    sent: dict[str, list[float]]


def federation_of(
    nodes: Sequence[str], groups: Mapping[str, str], simulated: bool = False, **changes: Any
) -> Federation:
    """Nodes with a client for each letter; `groups`: the true group of some.

    simulated: the nodes tell how many there are.
    """
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    settings = settings_from(
        {
            "task": "sequence-regression",
            "method": "fed-react",
            "rounds": ROUNDS,
            "encoder.path": "given, so there is no first phase",
            "encoder.output-dim": 1,
            "fed-react.clusters": 2,
            "fed-react.smoothing": "none",
            "nodes.maximum-failed-share": 1.0,
            **changes,
        }
    )
    federation = Federation(settings, "run", "token")
    federation.members.expect([], DataShape((3,)))
    for names in nodes:
        admit(federation, names, groups, partitions=len(nodes) if simulated else 0)
    return federation


def admit(
    federation: Federation,
    names: str,
    groups: Mapping[str, str] | None = None,
    partitions: int = 0,
) -> None:
    """A node joins, with a client for each letter."""
    roster, groups = federation.members.roster, groups or {}
    node_id = 1 + len(roster.members)
    roster.connected.add(node_id)
    samples, shares = dict.fromkeys(names, DECLARED), dict.fromkeys(names, 0.0)
    its_groups = {name: groups.get(name, "") for name in names}
    answer = NodeRoster(f"node-{node_id}", partitions, samples, its_groups, shares, {})
    roster.admit(node_id, answer)


def server(
    *nodes: str, groups: Mapping[str, str] | None = None, **changes: Any
) -> ClusteredHeadStrategy:
    """The strategy of `method`, by default Fed-REACT's with C = 2 and without smoothing."""
    federation = federation_of(nodes, groups or {}, **changes)
    settings = federation.settings
    return STRATEGIES[settings.method](settings, settings.method_settings, federation)


def at(*degrees: float, length: float = 1.0) -> list[Head]:
    """Heads in these directions."""
    return [
        (length * np.cos(angle), length * np.sin(angle)) for angle in np.deg2rad(degrees).tolist()
    ]


def play(
    strategy: ClusteredHeadStrategy,
    server_round: int,
    heads: Mapping[str, Head],
    samples: Mapping[str, int] | None = None,
    chosen: Mapping[str, Sequence[float]] | None = None,
    unevaluated: Collection[int] = (),
) -> Played:
    """Play a round in which only the clients in `heads` reply.

    unevaluated: nodes that do not answer when their clients are evaluated.
    """
    strategy.federation.history.log = RoundLog()  # as begin_round does, which asks who is there
    orders, replies = {}, []
    for message in strategy.configure_train(server_round, ENCODER, ConfigRecord(), NO_GRID):
        node, order = _with_message_id(message)
        orders[node] = order
        if names := [name for name in order.clients if name in heads]:
            reply = _reply(names, heads, samples or {}, chosen)
            replies.append(write_reply(reply, to=message))
    strategy.aggregate_train(server_round, replies)
    messages = strategy.configure_evaluate(server_round, ENCODER, ConfigRecord(), NO_GRID)
    evaluated = [_with_message_id(message) for message in messages]
    heads_sent = {
        name: head[0].tolist()
        for _, order in evaluated
        for name, head in zip(
            order.guidance.clients, order.guidance.arrays.get("heads", ()), strict=True
        )
    }
    replies = [
        write_reply(Reply(order.clients, [DECLARED] * len(order.clients)), to=message)
        for message, (node, order) in zip(messages, evaluated, strict=True)
        if node not in unevaluated
    ]
    strategy.aggregate_evaluate(server_round, replies)
    return Played(orders, dict(evaluated), heads_sent)


def leave(strategy: ClusteredHeadStrategy, *nodes: int) -> None:
    strategy.federation.members.roster.connected -= set(nodes)


def come_back(strategy: ClusteredHeadStrategy, *nodes: int) -> None:
    strategy.federation.members.roster.connected |= set(nodes)


def _reply(
    names: list[str],
    heads: Mapping[str, Head],
    samples: Mapping[str, int],
    chosen: Mapping[str, Sequence[float]] | None,
) -> Reply:
    arrays = {"head": np.array([heads[name] for name in names], np.float32)[:, None]}
    if chosen is not None:
        arrays["chosen"] = np.array([chosen[name] for name in names], np.float32)
    losses = {"head": [0.0] * len(names)}
    return Reply(names, [samples.get(n, DECLARED) for n in names], losses, arrays=arrays)


def _with_message_id(message: Message) -> tuple[int, Order]:
    """Give the message an id, as Flower does on sending; return its node and order."""
    message.metadata.__dict__["_message_id"] = str(uuid4())
    return message.metadata.dst_node_id, read_order(message)
