"""CReFF: the gradients of classes, the server's classifier, and how a client is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from fedproto_app.core.errors import SettingsError
from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.data.shape import DataShape
from fedproto_app.strategies.common.learner import AnyLearner, train_cohort
from fedproto_compared.creff import (
    CLASSIFIER,
    GRADIENTS,
    CreffStrategy,
    batch_weights,
    class_gradient,
    feature_norm,
    gradient_distance,
    gradient_fault,
    logits,
    matched_features,
    retrained,
)
from tests.helpers.tiny_cohort import global_model
from tests.helpers.tiny_images import CLASSES, image_cohort, image_learner
from tests.strategies.server_half import (
    accept,
    class_replies,
    class_server,
    guidance,
    refusals,
)

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
    features = creff.task.encode_all(cohort.parameters, cohort.samples.values)
    context = creff.context(guidance_with(creff, classifier), cohort)
    train_cohort(creff, cohort, context)
    contribution = creff.contribution(cohort, context)
    assert contribution.present.tolist() == [[True, True, False], [False, True, False]]
    for row, label in ((0, 0), (0, 1), (1, 1)):
        class_features = features[row, :3][cohort.samples.targets[row, :3] == label]
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
    moved_features = after["features"].copy()
    accept(strategy)  # nobody replies
    np.testing.assert_array_equal(strategy.state()["features"], moved_features)


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


def test_gradients_that_no_server_could_hold_are_refused_before_work() -> None:
    strategy = server()
    strategy.federation.members.expect([], DataShape((1, 8, 8), tuple(map(str, range(10_000)))))
    with pytest.raises(SettingsError, match="for each of 10000 classes are more than"):
        CreffStrategy(strategy.settings, strategy.federation)


# --- the maths ------------------------------------------------------------------------------------


ZERO_CLASSIFIER = torch.zeros(2, 2)  # d = 1, C = 2: W = b = 0
FIRST = torch.tensor(0)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As the server has it: with tensors so small, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gradient_of(feature: float) -> torch.Tensor:
    """Return the gradient of one image of class 0, [2, 2]."""
    return class_gradient(ZERO_CLASSIFIER, torch.tensor([[feature]]), FIRST, torch.ones(1))


def test_the_gradient_of_one_image_by_hand() -> None:
    """p = (½, ½), so p − e_0 = (−½, ½), times the feature 2 and times 1."""
    assert gradient_of(2.0).tolist() == [[-1.0, -0.5], [1.0, 0.5]]


def test_gradients_that_point_alike_are_0_apart_and_opposite_weights_4() -> None:
    """s = 1 against 2, and s = −1 turns both rows of the weights round and leaves the biases."""
    real = gradient_of(2.0)
    assert gradient_distance(gradient_of(1.0), real).item() == pytest.approx(0, abs=2e-5)
    assert gradient_distance(gradient_of(-1.0), real).item() == pytest.approx(4, abs=2e-5)
    assert gradient_distance(torch.zeros(2, 2), real).item() == 3  # right angles


def test_the_gradient_is_that_of_autograd() -> None:
    torch.manual_seed(0)
    classifier, features = torch.randn(4, 6), torch.randn(3, 7, 5)
    labels, weights = torch.tensor([2, 0, 3]), torch.rand(3, 7)
    weights /= weights.sum(dim=1, keepdim=True)
    gradient = class_gradient(classifier, features, labels, weights)
    for row in range(3):
        leaf = classifier.clone().requires_grad_()
        losses = functional.cross_entropy(
            logits(leaf, features[row]), labels[row].expand(7), reduction="none"
        )
        (expected,) = torch.autograd.grad((weights[row] * losses).sum(), [leaf])
        torch.testing.assert_close(gradient[row], expected)


def test_features_move_until_their_gradients_point_as_wanted() -> None:
    torch.manual_seed(0)
    classifier, labels = torch.randn(3, 5), torch.tensor([0, 2])
    real = torch.randn(2, 20, 4) + 3
    target = class_gradient(classifier, real, labels, torch.full((2, 20), 1 / 20))
    start = torch.randn(2, 6, 4)
    moved, distances = matched_features(start, classifier, labels, target, 200, 0.1)
    assert distances[1] < 0.1 * distances[0]
    gradient_after = class_gradient(classifier, moved, labels, torch.full((2, 6), 1 / 6))
    assert gradient_distance(gradient_after, target).sum() <= distances[1]
    # One step is the slope of the sum, which each class's features have to themselves.
    one_step, _ = matched_features(start, classifier, labels, target, 1, 0.1)
    alone, _ = matched_features(start[1:], classifier, labels[1:], target[1:], 1, 0.1)
    torch.testing.assert_close(one_step[1:], alone)


def test_a_classifier_is_retrained_as_torchs_sgd_would() -> None:
    """Batches of 3 of 7 features: the last of an epoch has one."""
    torch.manual_seed(0)
    features, labels, start = (
        torch.randn(7, 4),
        torch.tensor([0, 1, 2, 0, 1, 2, 0]),
        torch.zeros(3, 5),
    )
    actual = retrained(start, features, labels, 4, 3, 0.5, torch.Generator().manual_seed(1))
    leaf, orders = start.clone().requires_grad_(), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD([leaf], lr=0.5)
    for _ in range(4):
        for batch in torch.randperm(7, generator=orders).split(3):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            functional.cross_entropy(logits(leaf, features[batch]), labels[batch]).backward()
            optimizer.step()
    torch.testing.assert_close(actual, leaf.detach())
    assert not start.any()


def test_a_few_images_count_alike_and_many_as_they_are_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    assert batch_weights(4, 32, 10, generator).tolist() == [0.25] * 4
    drawn = batch_weights(50, 8, 3, generator)
    assert drawn.sum().item() == pytest.approx(1)
    assert set((drawn * 24).round().int().tolist()) <= {0, 1, 2, 3}  # once a batch at most
    assert (drawn > 0).sum() <= 24


def test_a_gradient_tells_the_length_of_its_features() -> None:
    torch.manual_seed(0)
    features = torch.randn(30, 4).abs()
    weights = torch.full((30,), 1 / 30)
    gradient = class_gradient(torch.randn(3, 5), features, torch.tensor(1), weights)
    assert 0.5 < feature_norm(gradient) < features.norm(dim=1).max()
    assert feature_norm(1e10 * gradient) == pytest.approx(feature_norm(gradient), rel=1e-4)
    spoilt = gradient.clone()
    spoilt[:, :-1] *= 1e6
    assert feature_norm(spoilt) > 1e5
    assert gradient_fault(gradient, 1) is None


@pytest.mark.parametrize(
    ("bias", "reason"),
    [
        ([0.5, -0.5, 0.0], "wrong signs"),  # the gradient of class 1
        ([-2.0, 1.0, 1.0], "beyond ±1"),
        ([-0.5, 0.7, -0.2], "wrong signs"),
        ([-0.5, 0.2, 0.2], "sums to -0.1"),
        ([-1e30, 1e30, 0.0], "beyond ±1"),
        ([-0.5, 0.5, 0.0], None),
    ],
)
def test_what_cannot_be_the_gradient_of_class_0(bias: list[float], reason: str | None) -> None:
    gradient = torch.zeros(3, 5)
    gradient[:, -1] = torch.tensor(bias)
    fault = gradient_fault(gradient, 0)
    assert fault is None if reason is None else reason in str(fault)
