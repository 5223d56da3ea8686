"""CReFF: the gradients of classes, the server's classifier, and how a client is evaluated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Arrays, Guidance, Reply
from fedproto_app.core.metrics import Metric
from fedproto_app.core.round import Round
from fedproto_app.data.shape import DataShape
from fedproto_app.strategies.common.learner import AnyLearner, train_cohort
from fedproto_compared.creff import (
    CLASSIFIER,
    GRADIENTS,
    CreffStrategy,
    class_gradient,
)
from tests.strategies.server_half import (
    COUNTS,
    accept,
    assert_same_state,
    class_replies,
    class_server,
    guidance,
    refusals,
    restored,
)
from tests.strategies.tiny_cohort import global_model
from tests.strategies.tiny_images import CLASSES, image_cohort, image_learner

# --- the client's half ---------------------------------------------------------------------------


IMAGE_WIDTH = 6


def guidance_with(learner: AnyLearner, classifier: np.ndarray) -> Guidance:
    arrays: Arrays = {**global_model(learner), CLASSIFIER: classifier}
    return Guidance(arrays)


def some_classifier() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(3, IMAGE_WIDTH + 1)).astype(np.float32)


def test_a_gradient_for_each_class_at_hand_of_the_model_as_it_came() -> None:
    """Client a has two images of class 0 and one of 1, b three of 1: all of them count alike."""
    creff, classifier = image_learner("creff"), some_classifier()
    cohort = image_cohort(creff)
    features = creff.task.encode_all(cohort.parameters, cohort.samples.pixels)
    context = creff.context(guidance_with(creff, classifier), cohort)
    train_cohort(creff, cohort, context)
    contribution = creff.contribution(cohort, context, 1)
    assert contribution.present is not None
    assert contribution.present.tolist() == [[True, True, False], [False, True, False]]
    for row, label in ((0, 0), (0, 1), (1, 1)):
        class_features = features[row, :3][cohort.samples.labels[row, :3] == label]
        weights = torch.full((len(class_features),), 1 / len(class_features))
        expected = class_gradient(
            torch.from_numpy(classifier), class_features, torch.tensor(label), weights
        )
        gradient = torch.from_numpy(contribution.arrays[GRADIENTS][row, label])
        torch.testing.assert_close(gradient, expected)


def test_random_batches_of_a_large_class_are_the_clients_own() -> None:
    """They depend on the client and the round, not on who is in the cohort."""
    creff = image_learner("creff", **{"creff.gradient-batch-size": 1, "creff.gradient-batches": 1})
    cohort = image_cohort(creff)
    context = creff.context(guidance_with(creff, some_classifier()), cohort)
    repeated = creff.context(guidance_with(creff, some_classifier()), image_cohort(creff))
    assert torch.equal(context.gradients, repeated.gradients)
    later = creff.context(guidance_with(creff, some_classifier()), image_cohort(creff, 2))
    assert not torch.equal(context.gradients, later.gradients)


def test_it_is_judged_by_the_classifier_and_its_own_model_by_its_head() -> None:
    creff = image_learner("creff")
    cohort = replace(image_cohort(creff), trains=False)
    always = np.zeros((len(CLASSES), IMAGE_WIDTH + 1), dtype=np.float32)
    always[1, -1] = 1  # says class 1, which client b has alone
    metrics = creff.evaluate(cohort, guidance_with(creff, always))
    assert metrics[Metric("accuracy")] == [0.5, 1.0]
    by_head = metrics[Metric("accuracy", rule="head")]
    assert by_head == creff.task.evaluate(cohort.parameters, cohort.samples)[Metric("accuracy")]
    local = creff.evaluate(replace(cohort, trains=True), guidance_with(creff, always))
    assert local[Metric("accuracy")] == by_head


# --- the server's half ---------------------------------------------------------------------------

Gradients = dict[str, dict[int, np.ndarray]]  # client → class → gradient


def server() -> CreffStrategy:
    """Only a has images of class 1, and no client has any of class 2."""
    small = {"features-per-class": 4, "match-steps": 20, "classifier-epochs": 5}
    changes = {f"creff.{name}": value for name, value in small.items()}
    strategy: CreffStrategy = class_server("creff", **changes)
    return strategy


def gradient(strategy: CreffStrategy, label: int, *feature: float) -> np.ndarray:
    """What a client with one image would send."""
    classifier = torch.from_numpy(strategy.state()["classifier"])
    row = torch.tensor([feature], dtype=torch.float32)
    return class_gradient(classifier, row, torch.tensor(label), torch.ones(1)).numpy()


def honest(strategy: CreffStrategy) -> Gradients:
    return {
        "a": {0: gradient(strategy, 0, 1, 2), 1: gradient(strategy, 1, -1, 1)},
        "b": {0: gradient(strategy, 0, 2, 2)},
        "c": {0: gradient(strategy, 0, 1, 1)},
    }


def test_features_of_the_classes_that_came_move_and_the_classifier_is_new() -> None:
    strategy = server()
    first_sent = guidance(strategy, "a", server_round=1).arrays[CLASSIFIER]
    assert first_sent.shape == (3, 2 + 1)
    assert first_sent.any()
    before = {name: value.copy() for name, value in strategy.state().items()}
    round_ = accept(strategy, class_replies(GRADIENTS, honest(strategy)))
    after = strategy.state()
    moved = (after["features"] != before["features"]).any(axis=(1, 2))
    assert moved.tolist() == [True, True, False]
    assert not np.array_equal(after["classifier"], before["classifier"])
    assert round_.figures["distance_after"] < round_.figures["distance_before"]  # type: ignore[operator]
    assert round_.refused == {}
    assert np.array_equal(guidance(strategy).arrays[CLASSIFIER], after["classifier"])
    artefact = strategy.findings()[CLASSIFIER]
    assert artefact["names"].tolist() == ["ant", "bee", "cat"]
    assert np.array_equal(artefact["classifier"], after["classifier"])


def test_the_order_of_clients_does_not_matter_and_nobody_changes_nothing() -> None:
    strategies = server(), server()
    for strategy, reverse in zip(strategies, (False, True), strict=True):
        gradients = dict(sorted(honest(strategy).items(), reverse=reverse))
        accept(strategy, class_replies(GRADIENTS, gradients))
    before = strategies[0].state()["features"].copy()
    np.testing.assert_array_equal(before, strategies[1].state()["features"])
    accept(strategies[0])
    np.testing.assert_array_equal(before, strategies[0].state()["features"])


def test_a_restored_server_goes_on_as_the_first() -> None:
    first = server()
    accept(first, class_replies(GRADIENTS, honest(first)))
    second = restored(first)
    gradients = honest(first)
    for strategy in (first, second):
        accept(strategy, class_replies(GRADIENTS, gradients))
    assert_same_state(first, second)


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
    refused = refusals(accept(strategy, class_replies(GRADIENTS, {**gradients, "b": spoilt})))
    del gradients["b"]
    accept(expected, class_replies(GRADIENTS, gradients))
    np.testing.assert_array_equal(strategy.state()["features"], expected.state()["features"])
    assert set(refused) == {"b"}
    assert refused["b"].startswith("its class-gradients are not used: ")


def test_what_a_client_sends_is_counted_for_itself() -> None:
    strategy = server()
    model = sum(value.size for value in strategy.initial_arrays().values())
    reply = Reply([*COUNTS], [9] * 3, classes=[[0, 1], [0], [0]])
    assert strategy.expected(Round(1)).values(reply) == 3 * model + 4 * 3 * (2 + 1)


def test_gradients_that_no_server_could_hold_are_refused_before_work() -> None:
    strategy = server()
    strategy.federation.members.expect([], DataShape((1, 8, 8), tuple(map(str, range(10_000)))))
    with pytest.raises(SettingsError, match="for each of 10000 classes are more than"):
        CreffStrategy(strategy.settings, strategy.section, strategy.federation)
