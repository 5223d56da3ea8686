"""A federation of one node with four clients, without Flower: reports in, guidance out."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import NodeRoster, Order, Reply
from fedproto_app.core.round import ClientReply, Guidance
from fedproto_app.server.federation import Federation
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.strategy import BaseStrategy, PersonalStrategy

NODE = "n"
NO_GRID = cast(Grid, None)  # strategies that ask no questions do not use it
NAMES = ["a", "b", "c"]
SAMPLES = 4  # of each client

Rows = list[list[float]]


def one_node(settings: Settings) -> Federation:
    """The federation when its node has named its clients: `NAMES` and one called "late"."""
    # Flower's processes set this before an app runs; Message needs it.
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    federation = Federation(settings, "run", "token")
    clients = [*NAMES, "late"]
    samples, groups = dict.fromkeys(clients, SAMPLES), dict.fromkeys(clients, "")
    roster = NodeRoster(NODE, 0, samples, groups, dict.fromkeys(clients, 0.0), {})
    federation.members.roster.connected = {1}
    federation.members.roster.admit(1, roster)
    return federation


def report(strategy: PersonalStrategy, prototypes: dict[str, Rows]) -> None:
    """The clients' prototypes arrive, in this order."""
    array = np.array(list(prototypes.values()), dtype=np.float32)
    reply = Reply(list(prototypes), [SAMPLES] * len(prototypes), arrays={"prototypes": array})
    strategy.take_in([replace(reply, node=NODE)], 1)


def nobody_is_asked(*_: object, **__: object) -> list[ClientReply]:
    """For rounds of methods that ask no questions."""
    raise AssertionError("this method asks nothing")


def evaluation(strategy: BaseStrategy, *names: str, server_round: int = 1) -> Guidance:
    """What clients of the node get for the round's evaluation."""
    round_ = strategy.round_of(server_round)
    strategy.conclude(round_, nobody_is_asked)
    strategy.report(round_)
    keys = [ClientKey(name, NODE) for name in names]
    return strategy.guide_evaluation(strategy.received, keys, round_)


def guidance(strategy: PersonalStrategy, *names: str) -> Order:
    """What the strategy sends to these clients in the next round."""
    keys = [ClientKey(name, NODE) for name in names]
    return strategy.guided(Order("run", "token", 2, list(names)), keys)
