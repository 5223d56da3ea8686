"""FedTGP's server: what it believes, learns, remembers and sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.supercore.task_identity import TaskIdentity

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance, NodeRoster, Reply
from fedproto_app.core.wire import read_order
from fedproto_app.server.federation import Federation
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.prototypes import PROTOTYPES
from fedproto_app.strategies.compared.fedtgp import FedTgpStrategy
from tests.learners.tiny_images import SHAPE
from tests.strategies.one_node import guidance

WIDTH = 2
COUNTS = {"a": ((5, 4, 0),), "b": ((9, 0, 0),), "c": ((9, 0, 0),)}
Prototypes = dict[str, dict[int, list[float]]]  # client → class → prototype
HONEST: Prototypes = {"a": {0: [1, 2], 1: [-1, 1]}, "b": {0: [2, 2]}, "c": {0: [1, 1]}}


def server(**changes: Any) -> FedTgpStrategy:
    """Three classes; a node with clients a, b and c. Only a has class 1, and none has class 2."""
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


def answer(prototypes: Prototypes) -> Reply:
    rows = [row for classes in prototypes.values() for row in classes.values()]
    arrays = {PROTOTYPES: np.array(rows, dtype=np.float32).reshape(-1, WIDTH)}
    classes = [list(rows_by_class) for rows_by_class in prototypes.values()]
    reply = Reply(list(prototypes), [9] * len(prototypes), arrays=arrays, classes=classes)
    return replace(reply, node="m")


def assert_same(first: FedTgpStrategy, second: FedTgpStrategy) -> None:
    first_state, second_state = first.state(), second.state()
    assert first_state.keys() == second_state.keys()
    for name, value in first_state.items():
        np.testing.assert_array_equal(value, second_state[name], err_msg=name)


def test_it_sends_the_prototypes_of_classes_that_somebody_has() -> None:
    strategy = server()
    assert guidance(strategy) == Guidance()
    strategy.take_in([answer(HONEST)], 1)
    message = guidance(strategy)
    assert message.classes == [0, 1]
    assert message.arrays[PROTOTYPES].shape == (2, WIDTH)
    artefact = strategy.findings()[PROTOTYPES]
    assert np.array_equal(artefact["prototypes"], message.arrays[PROTOTYPES])
    assert artefact["names"].tolist() == ["ant", "bee"]
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
    """Clients that trained in a round without evaluation are evaluated later."""
    strategy = server()
    strategy.take_in([answer(HONEST)], 1)
    strategy.federation.history.unevaluated.add(ClientKey("a", "m"))
    (message,) = strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), None)  # type: ignore[arg-type]
    assert read_order(message).guidance.classes == [0, 1]


def test_the_order_of_clients_does_not_matter_and_nobody_changes_nothing() -> None:
    first, second = server(), server()
    first.take_in([answer(HONEST)], 1)
    second.take_in([answer(dict(sorted(HONEST.items(), reverse=True)))], 1)
    assert_same(first, second)
    first.take_in([], 1)
    assert_same(first, second)


def test_a_restored_server_goes_on_as_the_first() -> None:
    first, second = server(), server()
    first.take_in([answer(HONEST)], 1)
    second.restore({name: value.copy() for name, value in first.state().items()})
    for strategy in (first, second):
        strategy.take_in([answer(HONEST)], 1)
    assert_same(second, first)


@pytest.mark.parametrize("lie", [{0: [1e4, 0.0]}, {0: [1e30, 1.0]}, {1: [1.0, 1.0]}])
def test_a_client_that_lies_is_refused_and_the_others_count(lie: dict[int, list[float]]) -> None:
    """Far longer than the others', huge, or of a class that b has declared no image of."""
    expected, strategy = server(), server()
    strategy.take_in([answer({**HONEST, "b": lie})], 1)
    expected.take_in(
        [answer({name: rows_by_class for name, rows_by_class in HONEST.items() if name != "b"})], 1
    )
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
