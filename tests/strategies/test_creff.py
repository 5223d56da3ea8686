"""CReFF's server: what it believes, matches, remembers and sends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import NodeRoster, Reply
from fedproto_app.data.shape import DataShape
from fedproto_app.server.federation import Federation
from fedproto_app.settings import settings_from
from fedproto_app.strategies.compared.creff import (
    CLASSIFIER,
    GRADIENTS,
    CreffStrategy,
    class_gradient,
)
from tests.learners.tiny_images import SHAPE
from tests.strategies.one_node import guidance

WIDTH = 2
COUNTS = {"a": ((5, 4, 0),), "b": ((9, 0, 0),), "c": ((9, 0, 0),)}
Gradients = dict[str, dict[int, np.ndarray]]  # client → class → gradient


def server(shape: DataShape = SHAPE, **changes: Any) -> CreffStrategy:
    """Three classes; a node with clients a, b and c. Only a has class 1, and none has class 2."""
    TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
    settings = settings_from(
        {
            "task": "classification",
            "method": "creff",
            "keep": "last",
            "model.width": 4,
            "model.representation-dim": WIDTH,
            "creff.features-per-class": 4,
            "creff.match-steps": 20,
            "creff.classifier-epochs": 5,
            **changes,
        }
    )
    federation = Federation(settings, "run", "token")
    federation.members.expect([], shape)
    samples, groups = dict.fromkeys(COUNTS, 9), dict.fromkeys(COUNTS, "")
    shares = dict.fromkeys(COUNTS, 0.0)
    roster = NodeRoster("m", 0, samples, groups, shares, {}, class_counts=COUNTS)
    federation.members.roster.admit(0, roster)
    return CreffStrategy(settings, settings.method_settings, federation)


def gradient(strategy: CreffStrategy, label: int, *feature: float) -> np.ndarray:
    """What a client with one image would send."""
    classifier = torch.from_numpy(strategy.state()["classifier"])
    row = torch.tensor([feature], dtype=torch.float32)
    return class_gradient(classifier, row, torch.tensor(label), torch.ones(1)).numpy()


def answer(gradients: Gradients) -> Reply:
    rows = [row for classes in gradients.values() for row in classes.values()]
    arrays = {GRADIENTS: np.array(rows, dtype=np.float32).reshape(-1, 3, WIDTH + 1)}
    classes = [list(gradients_by_class) for gradients_by_class in gradients.values()]
    reply = Reply(list(gradients), [9] * len(gradients), arrays=arrays, classes=classes)
    return replace(reply, node="m")


def honest(strategy: CreffStrategy) -> Gradients:
    return {
        "a": {0: gradient(strategy, 0, 1, 2), 1: gradient(strategy, 1, -1, 1)},
        "b": {0: gradient(strategy, 0, 2, 2)},
        "c": {0: gradient(strategy, 0, 1, 1)},
    }


def test_the_first_orders_have_a_classifier_too() -> None:
    strategy = server()
    classifier = guidance(strategy, "a", server_round=1).arrays[CLASSIFIER]
    assert classifier.shape == (3, WIDTH + 1)
    assert classifier.any()


def test_features_of_the_classes_that_came_move_and_the_classifier_is_new() -> None:
    strategy = server()
    before = {name: value.copy() for name, value in strategy.state().items()}
    strategy.take_in([answer(honest(strategy))], 1)
    after = strategy.state()
    moved = (after["features"] != before["features"]).any(axis=(1, 2))
    assert moved.tolist() == [True, True, False]
    assert not np.array_equal(after["classifier"], before["classifier"])
    figures = strategy.federation.history.log.figures
    assert figures["distance_after"] < figures["distance_before"]  # type: ignore[operator]
    assert strategy.federation.history.log.refused == []
    classifier_sent = guidance(strategy).arrays[CLASSIFIER]
    assert np.array_equal(classifier_sent, after["classifier"])
    artefact = strategy.findings()[CLASSIFIER]
    assert artefact["names"].tolist() == ["ant", "bee", "cat"]
    assert np.array_equal(artefact["classifier"], after["classifier"])


def test_the_order_of_clients_does_not_matter_and_nobody_changes_nothing() -> None:
    states = []
    for reverse in (False, True):
        strategy = server()
        gradients = honest(strategy)
        strategy.take_in([answer(dict(sorted(gradients.items(), reverse=reverse)))], 1)
        states.append(strategy.state()["features"].copy())
        strategy.take_in([], 1)
        np.testing.assert_array_equal(strategy.state()["features"], states[-1])
    np.testing.assert_array_equal(*states)


def test_a_restored_server_goes_on_as_the_first() -> None:
    first, second = server(), server()
    first.take_in([answer(honest(first))], 1)
    second.restore({name: value.copy() for name, value in first.state().items()})
    gradients = honest(first)
    for strategy in (first, second):
        strategy.take_in([answer(gradients)], 1)
    for name, value in first.state().items():
        np.testing.assert_array_equal(second.state()[name], value)


@pytest.mark.parametrize("lie", ["huge", "huge weights", "another class", "undeclared"])
def test_a_client_that_lies_is_refused_and_the_others_count(lie: str) -> None:
    expected, strategy = server(), server()
    gradients = honest(strategy)
    spoilt = {label: value.copy() for label, value in gradients["b"].items()}
    if lie == "huge":
        spoilt[0] *= 1e30
    elif lie == "huge weights":
        spoilt[0][:, :-1] *= 1e30
    elif lie == "another class":
        spoilt[0] = gradient(strategy, 1, 2, 2)
    else:
        spoilt[1] = gradient(strategy, 1, 2, 2)  # it has declared images of class 0 alone
    strategy.take_in([answer({**gradients, "b": spoilt})], 1)
    del gradients["b"]
    expected.take_in([answer(gradients)], 1)
    np.testing.assert_array_equal(strategy.state()["features"], expected.state()["features"])
    (refusal,) = strategy.federation.history.log.refused
    assert (refusal.node, refusal.client) == ("m", "b")
    assert refusal.reason.startswith("its class-gradients are not used: ")


def test_what_a_client_sends_is_counted_for_itself() -> None:
    strategy = server()
    model = sum(value.size for value in strategy.initial_arrays().values())
    reply = answer(honest(strategy))
    assert strategy.expected(1).values(reply) == 3 * model + 4 * 3 * (WIDTH + 1)


def test_gradients_that_no_server_could_hold_are_refused_before_work() -> None:
    many_classes = DataShape((1, 8, 8), tuple(map(str, range(10_000))))
    with pytest.raises(SettingsError, match="for each of 10000 classes are more than"):
        server(many_classes)
