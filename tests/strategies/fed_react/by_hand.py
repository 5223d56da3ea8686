"""Rounds of the methods with heads in clusters, with the clients' heads set by the test.

A head has two values, so it can be given as an angle. The similarity of two heads is the cosine of
the angle between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance
from fedproto_app.core.round import ClientReply
from fedproto_app.data.shape import DataShape
from fedproto_app.server.federation import Federation
from fedproto_app.server.round_log import RoundLog
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.flower_strategy import accept, report
from fedproto_app.strategies.fed_react.clustered_heads import ClusteredHeadStrategy
from fedproto_app.strategies.fed_react.strategy import EvolutionaryClusterStrategy
from fedproto_compared.ifca import IfcaStrategy
from tests.strategies.server_half import admit, round_of

Head = Sequence[float]
DECLARED = 8  # train samples of each client
ROUNDS = 9
ENCODER = {"encoder.weight": np.zeros((2, 3), np.float32)}


@dataclass
class Played:
    """A round: what nodes got to train and to evaluate, by node, and the heads sent to clients."""

    train: dict[int, Guidance]
    evaluate: dict[int, Guidance]
    sent: dict[str, list[float]]


def server(
    *nodes: str, groups: Mapping[str, str] | None = None, simulated: bool = False, **changes: Any
) -> ClusteredHeadStrategy:
    """The strategy of `method`, by default Fed-REACT's with C = 2 and without smoothing.

    nodes: each has a client for each letter. groups: the true group of some. simulated: the nodes
    report how many there are.
    """
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
        partitions = len(nodes) if simulated else 0
        admit(federation, names, "", DECLARED, groups, partitions=partitions)
    kind = EvolutionaryClusterStrategy if settings.method == "fed-react" else IfcaStrategy
    return kind(settings, federation)


def at(*degrees: float, length: float = 1.0) -> list[Head]:
    """Heads in these directions."""
    return [
        (length * np.cos(angle), length * np.sin(angle)) for angle in np.deg2rad(degrees).tolist()
    ]


def heads_at(names: str, *degrees: float) -> dict[str, Head]:
    """A head in each of these directions."""
    return dict(zip(names, at(*degrees), strict=True))


def mean_head(heads: Mapping[str, Head], names: str) -> Any:
    """What the plain mean of these clients' heads must be, up to rounding."""
    mean = np.mean([heads[name] for name in names], axis=0)
    return pytest.approx(mean.tolist(), abs=1e-6)


APART = heads_at("abcd", 0, 10, 90, 100)  # two pairs
THREE_PAIRS = heads_at("abcdef", 0, 5, 120, 125, 240, 245)
PAIRS = {"a": "east", "b": "east", "c": "north", "d": "north"}


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
    members, round_ = strategy.federation.members, round_of(strategy, server_round)
    strategy.federation.history.log = RoundLog()
    strategy.model = ENCODER
    strategy.begin(round_)
    keys = strategy.chosen(members.clients(), round_)
    train = {
        members.node_id(node): deepcopy(  # as a message is
            strategy.guide(of_node, round_).with_model(strategy.shared_for(of_node))
        )
        for node, of_node in _by_node(keys)
    }
    answering = [key for key in keys if key.client in heads]
    strategy.answered({key.node for key in keys}, answering, evaluation=False)
    accept(strategy, [_reply(key, heads, samples or {}, chosen) for key in answering], round_)
    evaluate: dict[int, Guidance] = {}
    if round_.evaluated:
        keys = strategy.to_evaluate(members.clients(), round_)
        for node, of_node in _by_node(keys):
            guidance = strategy.guide_evaluation(of_node, round_)
            evaluate[members.node_id(node)] = guidance.with_model(strategy.shared_for(of_node))
        answering = [key for key in keys if members.node_id(key.node) not in unevaluated]
        strategy.answered({key.node for key in keys}, answering, evaluation=True)
    report(strategy.federation, round_)
    heads_sent = {
        name: head[0].tolist()
        for guidance in evaluate.values()
        for name, head in zip(guidance.clients, guidance.arrays.get("heads", ()), strict=True)
    }
    return Played(train, evaluate, heads_sent)


def _by_node(keys: Sequence[ClientKey]) -> list[tuple[str, list[ClientKey]]]:
    by_node = groupby(sorted(keys, key=lambda key: key.node), key=lambda key: key.node)
    return [(node, [*of_node]) for node, of_node in by_node]


def _reply(
    key: ClientKey,
    heads: Mapping[str, Head],
    samples: Mapping[str, int],
    chosen: Mapping[str, Sequence[float]] | None,
) -> ClientReply:
    arrays = {"head": np.array([heads[key.client]], np.float32)}
    if chosen is not None:
        arrays["chosen"] = np.array(chosen[key.client], np.float32)
    return ClientReply(key, samples.get(key.client, DECLARED), arrays)


def leave(strategy: ClusteredHeadStrategy, *nodes: int) -> None:
    strategy.federation.members.roster.connected -= set(nodes)


def come_back(strategy: ClusteredHeadStrategy, *nodes: int) -> None:
    strategy.federation.members.roster.connected |= set(nodes)


def clusters(strategy: ClusteredHeadStrategy) -> dict[str, int]:
    state = strategy.state()
    return dict(zip(state["names"].tolist(), state["labels"].tolist(), strict=True))


def together(strategy: ClusteredHeadStrategy) -> set[str]:
    """The clients of each cluster, as a word."""
    labels = clusters(strategy)
    return {"".join(sorted(n for n in labels if labels[n] == c)) for c in set(labels.values())}


def figures(strategy: ClusteredHeadStrategy) -> dict[str, float | None]:
    return strategy.federation.history.log.figures
