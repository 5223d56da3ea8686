"""FedProto on classes: its loss, the prototypes that it sends, and how it is judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedproto_app.core.messages import Guidance
from fedproto_app.core.metrics import Metric
from fedproto_app.experiments.invariants import SmallRuns
from fedproto_app.report.runs import read_rounds
from fedproto_app.strategies.common.prototypes import PROTOTYPES
from fedproto_app.strategies.fedproto import nearness_of_classes
from tests.learners.tiny_images import image_cohort, image_learner

WIDTH = 6
MASKED = {"aggregation.secure": True, "aggregation.secure-minimum": 2}


def guidance(prototypes: dict[int, float]) -> Guidance:
    """With a global prototype for some classes, of equal values."""
    rows = np.array([[value] * WIDTH for value in prototypes.values()], dtype=np.float32)
    arrays = {PROTOTYPES: rows} if prototypes else {}
    return Guidance(arrays, classes=list(prototypes))


def test_the_loss_by_hand() -> None:
    """An encoder of zeros represents everything by 0: of client a's images 0, 0, 1 the mean of
    3², 3² and 0 for class 1, which has no prototype; b has only images of class 1."""
    changes = {"classification.batch-size": 3, "fedproto.prototype-weight": 10.0}
    learner = image_learner("fedproto", **changes)
    cohort = image_cohort(learner)
    for name, value in cohort.parameters.items():
        if name.startswith(learner.task.encoder):
            value.zero_()
    generators = [torch.Generator().manual_seed(0) for _ in cohort.names]
    (batch,) = learner.batches(cohort.samples, generators)
    terms = learner.loss(cohort.parameters, batch, learner.context(guidance({0: 3.0}), cohort))
    torch.testing.assert_close(terms["prototypes"], torch.tensor([10 * 6.0, 0.0]))


def test_the_nearest_known_prototype_scores_highest() -> None:
    representation = torch.tensor([[[0.0, 0.0], [3.0, 4.0]]])
    prototypes = torch.tensor([[[0.0, 1.0], [3.0, 4.0], [0.0, 0.0]]])
    scores = nearness_of_classes(representation, prototypes, torch.tensor([True, True, False]))
    expected = [[-1.0, -5.0, -np.inf], [-(18.0**0.5), 0.0, -np.inf]]
    torch.testing.assert_close(scores, torch.tensor([expected]))


@pytest.mark.parametrize(
    ("inference", "prototypes", "share"),
    [
        ("prototypes", {1: 0.0}, [0.5, 1.0]),  # all images are said to be of class 1
        ("prototypes", {0: 0.0}, [0.5, 0.0]),
    ],
)
def test_clients_answer_by_the_nearest_prototype(
    inference: str, prototypes: dict[int, float], share: list[float]
) -> None:
    """Client a is tested on classes 0 and 1, b on class 1."""
    learner = image_learner("fedproto", **{"fedproto.inference": inference})
    metrics = learner.evaluate(image_cohort(learner), guidance(prototypes))
    assert metrics[Metric("accuracy")] == share
    assert Metric("accuracy", rule="head") in metrics


def test_without_prototypes_or_by_choice_the_head_answers() -> None:
    by_head = image_learner("fedproto", **{"fedproto.inference": "head"})
    expected = by_head.evaluate(image_cohort(by_head), guidance({1: 0.0}))
    learner = image_learner("fedproto")
    metrics = learner.evaluate(image_cohort(learner), guidance({}))
    assert metrics[Metric("accuracy")] == expected[Metric("accuracy")]


@pytest.mark.parametrize("task", ["classification", "sequence-classification"])
@pytest.mark.parametrize(
    "changes",
    [MASKED, {"privacy.mechanism": "gaussian", "privacy.noise-multiplier": 1.0}],
    ids=["masked", "noised"],
)
def test_masks_and_noise_come_by_the_declaration(
    tmp_path: Path, task: str, changes: dict[str, Any]
) -> None:
    runs = SmallRuns(task, "fedproto", tmp_path)
    plain, changed = (
        read_rounds(runs.run(label, 2, **more))[-1]["loss"]["total"]
        for label, more in (("plain", {}), ("changed", changes))
    )
    if changes is MASKED:
        assert changed == pytest.approx(plain, rel=1e-3)
    else:
        assert np.isfinite(changed)
        assert changed != plain
