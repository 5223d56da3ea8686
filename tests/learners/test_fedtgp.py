"""FedTGP's client: its loss, the prototypes that it sends, and how it is judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.strategies.common.learner import train_cohort
from fedproto_app.strategies.common.prototypes import PROTOTYPES
from tests.learners.tiny_images import image_cohort, image_learner

WIDTH = 6


def guidance(prototypes: dict[int, float] | None = None) -> Guidance:
    """With a global prototype for some classes, of equal values."""
    rows = [[value] * WIDTH for value in (prototypes or {}).values()]
    arrays = {PROTOTYPES: np.array(rows, dtype=np.float32)} if rows else {}
    return Guidance(arrays, classes=list(prototypes or {}))


def trained(received: Guidance, method: str = "fedtgp", **changes: Any) -> tuple[Any, Any, Any]:
    learner = image_learner(method, **changes)
    cohort = image_cohort(learner)
    context = learner.context(received, cohort)
    losses = train_cohort(learner, cohort, context)
    return losses, cohort, learner.contribution(cohort, context, 1)


@pytest.mark.parametrize("weight", [10.0, 0.0])
def test_without_prototypes_or_their_weight_it_trains_as_solo(weight: float) -> None:
    received = guidance() if weight else guidance({0: 1.0, 1: 2.0})
    _, cohort, _ = trained(received, **{"fedtgp.prototype-weight": weight})
    _, alone, _ = trained(guidance(), "solo")
    for name, value in alone.parameters.items():
        assert torch.equal(cohort.parameters[name], value)


def test_the_pull_by_hand() -> None:
    """An encoder of zeros represents everything by 0: of client a's images 0, 0, 1 the mean of
    3², 3² and 0 for class 1, which has no prototype; b has only images of class 1."""
    changes = {"classification.batch-size": 3, "fedtgp.prototype-weight": 10.0}
    learner = image_learner("fedtgp", **changes)
    cohort = image_cohort(learner)
    for name, value in cohort.parameters.items():
        if name.startswith(learner.task.encoder):
            value.zero_()
    generators = [torch.Generator().manual_seed(0) for _ in cohort.names]
    (batch,) = learner.batches(cohort.samples, generators)
    terms = learner.loss(cohort.parameters, batch, learner.context(guidance({0: 3.0}), cohort))
    torch.testing.assert_close(terms["prototypes"], torch.tensor([10 * 6.0, 0.0]))


def test_it_sends_the_mean_representation_of_each_class_that_it_has() -> None:
    """By the encoder as training left it, of images without augmentation."""
    _, cohort, contribution = trained(guidance({0: 1.0, 1: 0.0}))
    learner = image_learner("fedtgp")
    assert not any(learner.is_shared(name) for name in cohort.parameters)
    vectors = learner.task.encode_all(cohort.parameters, cohort.samples.pixels)
    assert contribution.present is not None
    assert contribution.present.tolist() == [[True, True, False], [False, True, False]]
    for row, label in ((0, 0), (0, 1), (1, 1)):
        mean = vectors[row, :3][cohort.samples.labels[row, :3] == label].mean(dim=0)
        torch.testing.assert_close(
            torch.from_numpy(contribution.arrays[PROTOTYPES][row, label]), mean
        )


def test_it_is_judged_by_its_head_and_beside_that_by_the_nearest_prototype() -> None:
    learner = image_learner("fedtgp")
    cohort = image_cohort(learner)
    metrics = learner.evaluate(cohort, guidance({1: 0.0}))  # says class 1, which client b has alone
    by_head = learner.task.evaluate(cohort.parameters, cohort.samples)
    assert metrics.items() >= by_head.items()
    assert metrics[Metric("accuracy", rule="global-prototypes")] == [0.5, 1.0]
    before = learner.evaluate(cohort, guidance())
    assert before[Metric("accuracy", rule="global-prototypes")] == [0.0, 0.0]
