"""A method's server half, called with arrays: replies of one node's clients in, guidance out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Arrays, Guidance, NodeRoster
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.data.shape import DataShape
from fedproto_app.maths.class_gaussian import LabelledVectors, class_sums
from fedproto_app.server.federation import Federation
from fedproto_app.settings import Settings, settings_from
from fedproto_app.strategies.common.class_fit import packed
from fedproto_app.strategies.common.flower_strategy import FlowerStrategy, make_strategy, report
from fedproto_app.strategies.common.flower_strategy import accept as accept_replies
from fedproto_app.strategies.common.strategy import BaseStrategy
from tests.helpers.tiny_images import SHAPE

NODE = "n"
NO_GRID = cast(Grid, None)  # strategies that ask no questions do not use it
NAMES = ["a", "b", "c"]
SAMPLES = 4  # of each client

NO_SHAPE = DataShape()  # of series: the settings determine it
Rows = list[list[float]]
ClassCounts = Mapping[str, tuple[tuple[int, ...], ...]]  # client → stage → images of each class
# Only a has images of class 1, and no client has any of class 2.
COUNTS: ClassCounts = {"a": ((2, 2, 0),), "b": ((4, 0, 0),), "c": ((4, 0, 0),)}


def one_node(
    settings: Settings, shape: DataShape = NO_SHAPE, class_counts: ClassCounts | None = None
) -> Federation:
    """The federation when its node has named its clients: those that have `class_counts`, or
    `NAMES` and one called "late"."""
    # Flower's processes set this before an app runs, because Message needs it.
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    federation = Federation(settings, "run", "token")
    federation.members.expect([], shape)
    federation.history.log.server_round = 1
    admit(federation, class_counts or [*NAMES, "late"], NODE, class_counts=class_counts)
    return federation


def admit(
    federation: Federation,
    names: Iterable[str],
    node: str = "",
    samples: int = SAMPLES,
    groups: Mapping[str, str] | None = None,
    class_counts: ClassCounts | None = None,
    partitions: int = 0,
) -> None:
    """A node with these clients joins. groups: the true group of some. partitions: the number of
    nodes, if it is simulated."""
    roster, names, groups = federation.members.roster, [*names], groups or {}
    node_id = 1 + len(roster.members)
    answer = NodeRoster(
        node or f"node-{node_id}",
        partitions,
        dict.fromkeys(names, samples),
        {name: groups.get(name, "") for name in names},
        dict.fromkeys(names, 0.0),
        {},
        class_counts=class_counts or {},
    )
    roster.connected.add(node_id)
    roster.admit(node_id, answer)


def server_of(
    method: str,
    shape: DataShape = NO_SHAPE,
    class_counts: ClassCounts | None = None,
    **changes: Any,
) -> Any:
    """The strategy of a method with these settings."""
    settings = settings_from({"method": method, **changes})
    return make_strategy(settings, one_node(settings, shape, class_counts)).method


def class_server(method: str, class_counts: ClassCounts | None = COUNTS, **changes: Any) -> Any:
    """The strategy for images of three classes, whose representations have two values."""
    small = {"task": "classification", "keep": "last", "model.width": 4}
    small = {**small, "model.representation-dim": 2, **changes}
    return server_of(method, SHAPE, class_counts, **small)


def replies(node: str = NODE, /, **clients: Mapping[str, Any]) -> list[ClientReply]:
    """The replies of clients, each with its arrays by name."""
    return [
        ClientReply(
            ClientKey(client, node),
            SAMPLES,
            {name: np.array(value, np.float32) for name, value in arrays.items()},
        )
        for client, arrays in clients.items()
    ]


def class_replies(name: str, clients: Mapping[str, Mapping[int, Any]]) -> list[ClientReply]:
    """The replies of clients, each with a row by class of the array with this name."""
    return [
        reply._replace(classes=list(clients[reply.key.client]))
        for reply in replies(**{c: {name: list(rows.values())} for c, rows in clients.items()})
    ]


def class_sums_of(
    width: int, seed: int, scale: float = 1.0, samples: int = SAMPLES, classes: Sequence[int] = ()
) -> Arrays:
    """Sums of this many random vectors without negative values, of two classes in turn or of
    `classes`."""
    draws = torch.Generator().manual_seed(seed)
    labels = torch.tensor([classes or [n % 2 for n in range(samples)]])
    features = scale * torch.randn(1, samples, width, generator=draws).abs()
    sums = packed(class_sums(LabelledVectors(features, labels, torch.ones(1, samples)), 2))
    return {name: value[0].float().numpy() for name, value in sums.items()}


def accept(
    strategy: BaseStrategy, of_clients: Iterable[ClientReply] = (), server_round: int = 1
) -> Round:
    """Give the strategy a round's replies. Returns the round, with the refusals and figures."""
    federation = strategy.federation
    round_ = Round(server_round, federation.members.facts, federation.shape.classes)
    accept_replies(strategy, list(of_clients), round_)
    return round_


def refusals(round_: Round) -> dict[str, str]:
    """The reasons of a round's refusals by client."""
    return {key.client: reason for key, reason in round_.refused.items()}


def round_of(strategy: BaseStrategy, server_round: int = 1) -> Round:
    """Return a round as the strategy's hooks see it."""
    return FlowerStrategy(strategy).round_of(server_round)


def evaluation(strategy: BaseStrategy, *names: str, server_round: int = 1) -> Guidance:
    """What clients of the node get for the round's evaluation."""
    round_ = round_of(strategy, server_round)
    strategy.conclude(round_)
    report(strategy.federation, round_)
    keys = [ClientKey(name, NODE) for name in names]
    return strategy.guide_evaluation(keys, round_)


def guidance(strategy: BaseStrategy, *names: str, server_round: int = 2) -> Guidance:
    """What the strategy gives these clients of the node to train with, in the next round."""
    keys = [ClientKey(name, NODE) for name in names]
    return strategy.guide(keys, round_of(strategy, server_round))


def restored(strategy: BaseStrategy) -> Any:
    """A strategy of the same settings that goes on from a checkpoint of this one."""
    copy = type(strategy)(strategy.settings, strategy.federation)
    copy.restore({name: value.copy() for name, value in strategy.state().items()})
    return copy


def assert_same_state(first: BaseStrategy, second: BaseStrategy) -> None:
    states = first.state(), second.state()
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name], value, err_msg=name)
