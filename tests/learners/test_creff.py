"""CReFF's client: the gradients that it sends, FedAvg's training, judged by the classifier sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.strategies.common.learner import AnyLearner, train_cohort
from fedproto_app.strategies.compared.creff import CLASSIFIER, GRADIENTS, class_gradient
from tests.learners.tiny_images import CLASSES, image_cohort, image_learner, shared_model

WIDTH = 6


def guidance(learner: AnyLearner, classifier: np.ndarray) -> Guidance:
    arrays: Arrays = {**shared_model(learner), CLASSIFIER: classifier}
    return Guidance(arrays)


def some_classifier() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(3, WIDTH + 1)).astype(np.float32)


def test_a_gradient_for_each_class_at_hand_of_the_model_as_it_came() -> None:
    """Client a has two images of class 0 and one of 1, b three of 1: all of them count alike."""
    creff, classifier = image_learner("creff"), some_classifier()
    cohort = image_cohort(creff)
    features = creff.task.encode_all(cohort.parameters, cohort.samples.pixels)
    context = creff.context(guidance(creff, classifier), cohort)
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


def test_the_model_trains_as_fedavgs_whatever_the_classifier() -> None:
    trained = {}
    for method in ("fedavg", "creff"):
        learner = image_learner(method)
        cohort = image_cohort(learner)
        received = guidance(learner, some_classifier())
        train_cohort(learner, cohort, learner.context(received, cohort))
        trained[method] = cohort.parameters
    for name, value in trained["fedavg"].items():
        assert torch.equal(trained["creff"][name], value)


def test_random_batches_of_a_large_class_are_the_clients_own() -> None:
    """They depend on the client and the round, not on who is in the cohort."""
    creff = image_learner("creff", **{"creff.gradient-batch-size": 1, "creff.gradient-batches": 1})
    cohort = image_cohort(creff)
    context = creff.context(guidance(creff, some_classifier()), cohort)
    repeated = creff.context(guidance(creff, some_classifier()), image_cohort(creff))
    assert torch.equal(context.gradients, repeated.gradients)
    later = creff.context(guidance(creff, some_classifier()), image_cohort(creff, 2))
    assert not torch.equal(context.gradients, later.gradients)


def test_it_is_judged_by_the_classifier_and_its_own_model_by_its_head() -> None:
    creff = image_learner("creff")
    cohort = replace(image_cohort(creff), trains=False)
    always = np.zeros((len(CLASSES), WIDTH + 1), dtype=np.float32)
    always[1, -1] = 1  # says class 1, which client b has alone
    metrics = creff.evaluate(cohort, guidance(creff, always))
    assert metrics[Metric("accuracy")] == [0.5, 1.0]
    by_head = metrics[Metric("accuracy", rule="head")]
    assert by_head == creff.task.evaluate(cohort.parameters, cohort.samples)[Metric("accuracy")]
    local = creff.evaluate(replace(cohort, trains=True), guidance(creff, always))
    assert local[Metric("accuracy")] == by_head
