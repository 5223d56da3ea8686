"""FedTGP: how a client is evaluated, and what the server learns of the prototypes.

What it has in common with FedProto is in test_prototypes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance, Reply
from fedproto_app.core.metrics import Metric
from fedproto_app.core.round import Round
from fedproto_app.core.wire import read_order
from fedproto_app.strategies.common.flower_strategy import FlowerStrategy
from fedproto_app.strategies.common.prototypes import PROTOTYPES
from tests.strategies.server_half import (
    NO_GRID,
    NODE,
    accept,
    assert_same_state,
    class_replies,
    class_server,
    guidance,
    refusals,
)
from tests.strategies.tiny_images import class_guidance, image_cohort, image_learner

HONEST = {"a": {0: [1, 2], 1: [-1, 1]}, "b": {0: [2, 2]}, "c": {0: [1, 1]}}


def server(**changes: Any) -> Any:
    return class_server("fedtgp", **{"fedtgp.server-epochs": 20, **changes})


def test_it_is_judged_by_its_head_and_beside_that_by_the_nearest_prototype() -> None:
    learner = image_learner("fedtgp")
    cohort = image_cohort(learner)
    # All images are said to be of class 1, which client b has alone.
    metrics = learner.evaluate(cohort, class_guidance({1: 0.0}))
    by_head = learner.task.evaluate(cohort.parameters, cohort.samples)
    assert metrics.items() >= by_head.items()
    assert metrics[Metric("accuracy", rule="global-prototypes")] == [0.5, 1.0]
    before = learner.evaluate(cohort, Guidance())
    assert before[Metric("accuracy", rule="global-prototypes")] == [0.0, 0.0]


def test_it_sends_the_prototypes_of_classes_that_somebody_has() -> None:
    strategy = server()
    assert guidance(strategy) == Guidance()
    round_ = accept(strategy, class_replies(PROTOTYPES, HONEST))
    sent = guidance(strategy)
    assert sent.classes == [0, 1]
    artefact = strategy.findings()[PROTOTYPES]
    assert np.array_equal(artefact["prototypes"], sent.arrays[PROTOTYPES])
    assert artefact["names"].tolist() == ["ant", "bee"]
    wide = np.hypot(4 / 3 + 1, 5 / 3 - 1)  # of (4/3, 5/3) and (−1, 1)
    assert round_.figures["margin"] == pytest.approx(wide)


def test_it_goes_on_from_round_to_round() -> None:
    strategy = server(**{"fedtgp.margin-threshold": 1.0})
    rounds = [accept(strategy, class_replies(PROTOTYPES, HONEST)) for _ in range(5)]
    losses: list[Any] = [round_.figures["server_loss"] for round_ in rounds]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]


def test_an_evaluation_on_its_own_gets_the_prototypes_too() -> None:
    """Clients that trained in a round without evaluation are evaluated later."""
    strategy = server()
    accept(strategy, class_replies(PROTOTYPES, HONEST))
    strategy.federation.history.unevaluated.add(ClientKey("a", NODE))
    (message,) = FlowerStrategy(strategy).configure_evaluate(
        1, ArrayRecord(), ConfigRecord(), NO_GRID
    )
    assert read_order(message).guidance.classes == [0, 1]


def test_a_prototype_far_longer_than_the_others_is_refused() -> None:
    strategy = server()
    round_ = accept(strategy, class_replies(PROTOTYPES, {**HONEST, "b": {0: [1e4, 0.0]}}))
    assert refusals(round_)["b"].startswith("its prototypes are not used: the largest is")


def test_where_training_ends_in_no_numbers_what_was_before_stays() -> None:
    strategy = server(**{"fedtgp.server-rate": 1e30})
    accept(strategy, class_replies(PROTOTYPES, HONEST))
    assert_same_state(strategy, server())


def test_a_client_sends_a_row_for_each_class_that_it_has() -> None:
    strategy = server()
    assert strategy.initial_arrays() == {}
    reply = Reply(list(HONEST), [9] * 3, classes=[list(rows) for rows in HONEST.values()])
    assert strategy.expected(Round(1)).values(reply) == 4 * 2
