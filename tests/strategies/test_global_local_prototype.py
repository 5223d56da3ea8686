"""GLDP's server on prototypes of two values, worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from flwr.supercore.task_identity import TaskIdentity

from fedproto_app.core.messages import NodeRoster, Reply
from fedproto_app.server.federation import Federation
from fedproto_app.settings import settings_from
from fedproto_app.strategies.gldp.strategy import GlobalLocalPrototypeStrategy
from tests.learners.tiny_images import SHAPE
from tests.strategies.one_node import guidance

WIDTH = 2
Prototypes = dict[str, dict[int, list[float]]]  # client → class → prototype


def server() -> GlobalLocalPrototypeStrategy:
    """β = 0.25, three classes; clients a and b at node "m", c at node "n"."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    settings = settings_from(
        {
            "task": "classification",
            "method": "gldp",
            "keep": "last",
            "model.width": 4,
            "model.representation-dim": WIDTH,
            "gldp.memory": 0.25,
        }
    )
    federation = Federation(settings, "run", "token")
    federation.members.expect([], SHAPE)
    for number, (label, names) in enumerate({"m": ["a", "b"], "n": ["c"]}.items()):
        samples, groups = dict.fromkeys(names, 9), dict.fromkeys(names, "")
        shares = dict.fromkeys(names, 0.0)
        federation.members.roster.admit(number, NodeRoster(label, 0, samples, groups, shares, {}))
    return GlobalLocalPrototypeStrategy(settings, settings.method_settings, federation)


def answer(node: str, prototypes: Prototypes) -> Reply:
    rows = [row for classes in prototypes.values() for row in classes.values()]
    reply = Reply(
        list(prototypes),
        [9] * len(prototypes),
        arrays={"prototypes": np.array(rows, dtype=np.float32).reshape(-1, WIDTH)},
        classes=[list(classes) for classes in prototypes.values()],
    )
    return replace(reply, node=node)


def guided(strategy: GlobalLocalPrototypeStrategy) -> dict[int, list[float]]:
    """The global prototypes that go down, by class."""
    guidance_sent = guidance(strategy, "a")
    rows = guidance_sent.arrays.get("prototypes", np.empty((0, WIDTH)))
    return dict(zip(guidance_sent.classes, rows.tolist(), strict=True))


def test_before_the_first_replies_nothing_but_the_model_goes_down() -> None:
    assert guided(server()) == {}


def test_a_prototype_is_the_mean_of_the_clients_that_have_the_class() -> None:
    strategy = server()
    first = answer("m", {"a": {0: [1, 2], 1: [5, 5]}, "b": {0: [3, 6]}})
    strategy.take_in([first, answer("n", {"c": {0: [5, 1]}})], 1)
    assert guided(strategy) == {0: [3, 3], 1: [5, 5]}


def test_new_recurring_and_absent_classes_over_two_rounds() -> None:
    """C̃ ← 0.25·C̃ + 0.75·mean for class 0; class 1, whom nobody has now, stays; class 2 is new."""
    strategy = server()
    strategy.take_in([answer("m", {"a": {0: [4, 8], 1: [5, 5]}})], 1)
    strategy.take_in([answer("n", {"c": {2: [7, 7], 0: [8, 0]}})], 1)
    assert guided(strategy) == {0: [7, 2], 1: [5, 5], 2: [7, 7]}
    assert strategy.state()["classes"].tolist() == [0, 1, 2]
    assert strategy.findings()["prototypes"]["names"].tolist() == ["ant", "bee", "cat"]


def test_the_order_of_replies_does_not_matter() -> None:
    replies = [
        answer("m", {"a": {0: [0.1, 1e-8]}, "b": {0: [0.2, 1e8]}}),
        answer("n", {"c": {0: [0.3, -1e8]}}),
    ]
    prototypes = []
    for ordered in (replies, replies[::-1]):
        strategy = server()
        strategy.take_in(ordered, 1)
        prototypes.append(guided(strategy))
    assert prototypes[0] == prototypes[1]


def test_a_round_without_usable_replies_changes_nothing() -> None:
    strategy = server()
    strategy.take_in([answer("m", {"a": {0: [4, 8]}})], 1)
    strategy.take_in([], 1)
    assert guided(strategy) == {0: [4, 8]}


def test_a_node_weighs_by_its_clients_not_by_their_samples() -> None:
    """A plain mean (GLDP, eq. 5): two clients of 9 and 1 samples count 2."""
    assert server().weight(samples=10, clients=2) == 2


def test_what_a_client_sends_is_counted_for_itself() -> None:
    strategy = server()
    model = sum(value.size for value in strategy.initial_arrays().values())
    reply = answer("m", {"a": {0: [1, 1], 2: [1, 1]}, "b": {1: [1, 1]}})
    assert strategy.expected(1).values(reply) == 2 * model + 3 * WIDTH
    assert torch.isfinite(torch.from_numpy(strategy.initial_arrays()["encoder.linear.bias"])).all()
