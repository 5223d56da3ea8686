"""FedTGP's server: what it believes, learns, remembers and sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.supercore.task_identity import TaskIdentity

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import NodeRoster, Order, Reply
from fedproto_app.core.wire import read_order
from fedproto_app.server.federation import Federation
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.global_prototypes import PROTOTYPES
from fedproto_app.strategies.compared.fedtgp import FedTgpStrategy
from tests.learners.tiny_images import SHAPE

WIDTH = 2
COUNTS = {"a": ((5, 4, 0),), "b": ((9, 0, 0),), "c": ((9, 0, 0),)}
Sent = dict[str, dict[int, list[float]]]  # client → class → prototype
HONEST: Sent = {"a": {0: [1, 2], 1: [-1, 1]}, "b": {0: [2, 2]}, "c": {0: [1, 1]}}


def server(**changes: Any) -> FedTgpStrategy:
    """Three classes; a node with clients a, b and c, of which a alone has class 1, nobody 2."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    settings = settings_from(
        {
            "task": "classification",
            "method": "fedtgp",
            "keep": "last",
            "model.width": 4,
            "model.representation-dim": WIDTH,
            "fedtgp.server-epochs": 20,
            **changes,
        }
    )
    federation = Federation(settings, "run", "token")
    federation.members.expect([], SHAPE)
    samples, groups = dict.fromkeys(COUNTS, 9), dict.fromkeys(COUNTS, "")
    shares = dict.fromkeys(COUNTS, 0.0)
    roster = NodeRoster("m", 0, samples, groups, shares, {}, class_counts=COUNTS)
    federation.members.roster.connected = {0}
    federation.members.roster.admit(0, roster)
    return FedTgpStrategy(settings, settings.method_settings, federation)


def answer(sent: Sent) -> Reply:
    rows = [row for classes in sent.values() for row in classes.values()]
    arrays = {PROTOTYPES: np.array(rows, dtype=np.float32).reshape(-1, WIDTH)}
    classes = [list(its) for its in sent.values()]
    reply = Reply(list(sent), [9] * len(sent), arrays=arrays, classes=classes)
    return replace(reply, node="m")


def guidance(strategy: FedTgpStrategy) -> Order:
    return strategy.guided(Order("run", "t", 2, ["a"]), [ClientKey("a", "m")])


def assert_same(ours: FedTgpStrategy, theirs: FedTgpStrategy) -> None:
    mine, other = ours.state(), theirs.state()
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


def test_it_sends_the_prototypes_of_classes_that_somebody_has() -> None:
    strategy = server()
    assert guidance(strategy) == Order("run", "t", 2, ["a"])
    strategy.take_in([answer(HONEST)], 1)
    sent = guidance(strategy)
    assert sent.classes == [0, 1]
    assert sent.arrays[PROTOTYPES].shape == (2, WIDTH)
    found = strategy.findings()[PROTOTYPES]
    assert np.array_equal(found["prototypes"], sent.arrays[PROTOTYPES])
    assert found["names"].tolist() == ["ant", "bee"]
    assert strategy.federation.history.log.figures is not None
    wide = np.hypot(4 / 3 + 1, 5 / 3 - 1)  # of (4/3, 5/3) and (−1, 1)
    assert strategy.federation.history.log.figures["margin"] == pytest.approx(wide)


def test_it_goes_on_from_round_to_round() -> None:
    strategy, losses = server(**{"fedtgp.margin-threshold": 1.0}), []
    for _ in range(5):
        strategy.take_in([answer(HONEST)], 1)
        assert strategy.federation.history.log.figures is not None
        losses.append(strategy.federation.history.log.figures["server_loss"])
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]


def test_an_evaluation_on_its_own_gets_the_prototypes_too() -> None:
    """Of clients that trained in a round without evaluation."""
    strategy = server()
    strategy.take_in([answer(HONEST)], 1)
    strategy.federation.history.unevaluated.add(ClientKey("a", "m"))
    (message,) = strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), None)  # type: ignore[arg-type]
    assert read_order(message).classes == [0, 1]


def test_the_order_of_clients_does_not_matter_and_nobody_changes_nothing() -> None:
    one, other = server(), server()
    one.take_in([answer(HONEST)], 1)
    other.take_in([answer(dict(sorted(HONEST.items(), reverse=True)))], 1)
    assert_same(one, other)
    one.take_in([], 1)
    assert_same(one, other)


def test_a_restored_server_goes_on_as_the_first() -> None:
    first, second = server(), server()
    first.take_in([answer(HONEST)], 1)
    second.restore({name: value.copy() for name, value in first.state().items()})
    for one in (first, second):
        one.take_in([answer(HONEST)], 1)
    assert_same(second, first)


@pytest.mark.parametrize("lie", [{0: [1e4, 0.0]}, {0: [1e30, 1.0]}, {1: [1.0, 1.0]}])
def test_a_client_that_lies_is_refused_and_the_others_count(lie: dict[int, list[float]]) -> None:
    """Far longer than the others', huge, or of a class that b has declared no image of."""
    expected, strategy = server(), server()
    strategy.take_in([answer({**HONEST, "b": lie})], 1)
    expected.take_in([answer({name: its for name, its in HONEST.items() if name != "b"})], 1)
    assert_same(strategy, expected)
    (refusal,) = strategy.federation.history.log.refused
    assert (refusal.node, refusal.client) == ("m", "b")
    assert refusal.reason.startswith("its prototypes are not used: ")


def test_where_training_ends_in_no_numbers_what_was_before_stays() -> None:
    strategy, before = server(**{"fedtgp.server-rate": 1e30}), server()
    strategy.take_in([answer(HONEST)], 1)
    assert_same(strategy, before)


def test_a_client_sends_a_row_for_each_class_that_it_has() -> None:
    strategy = server()
    assert strategy.initial_arrays() == {}
    assert strategy.expected(1).values(answer(HONEST)) == 4 * WIDTH
