"""Two clients with a few images of 8×8 noise at two stages, and a method's client half on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedproto_app.core.messages import Arrays, Guidance
from fedproto_app.data.images.clients import ClientImages, ImageStage, LabelledImages
from fedproto_app.data.shape import DataShape
from fedproto_app.settings import settings_from
from fedproto_app.strategies.common.learner import AnyLearner, Cohort, make_learner
from fedproto_app.strategies.common.prototypes import PROTOTYPES
from fedproto_app.tasks.images.task import ClassificationTask
from tests.helpers.tiny_cohort import cohort_of

CLASSES = ("ant", "bee", "cat")
SHAPE = DataShape((1, 8, 8), CLASSES)
ROUNDS = 4
WIDTH = 6  # of a representation
# The classes of each client's train images, a list a stage: class 0 recurs, class 2 is new.
STAGES = {"a": [[0, 0, 1], [0, 2, 2]], "b": [[1, 1, 1], [1, 1, 1]]}


def image_learner(method: str = "gldp", **changes: Any) -> AnyLearner:
    """The method's client half on a tiny CNN, without augmentation.

    Stage 2 begins in round 3, of closed forms in round 2."""
    settings = settings_from(
        {
            "task": "classification",
            "method": method,
            "keep": "last",
            "data.partition.scheme": "given",
            "rounds": ROUNDS,
            "model.width": 4,
            "model.representation-dim": WIDTH,
            "optimizer.name": "sgd",
            "classification.batch-size": 2,
            "classification.augment": "none",
            "gldp.encoder-epochs": 1,
            "gldp.head-epochs": 1,
            **changes,
        }
    )
    return make_learner(settings, ClassificationTask(settings, SHAPE))


def images_of(labels: list[int], seed: int = 0) -> LabelledImages:
    """Noise whose mean tells the class."""
    rng = np.random.default_rng([seed, len(labels), *labels])
    pixels = rng.integers(0, 120, size=(len(labels), 1, 8, 8))
    pixels += 60 * np.array(labels, dtype=np.int64).reshape(-1, 1, 1, 1)
    return LabelledImages(pixels.astype(np.uint8), np.array(labels, dtype=np.int64))


def client_of(name: str, stages: list[list[int]]) -> ClientImages:
    """A client that is validated and tested on one image of each class that it trains on."""
    image_stages = tuple(
        ImageStage(
            images_of(labels), images_of(sorted(set(labels)), 1), images_of(sorted(set(labels)), 2)
        )
        for labels in stages
    )
    counts = tuple(tuple(labels.count(c) for c in range(len(CLASSES))) for labels in stages)
    return ClientImages(name, image_stages, counts)


def image_cohort(learner: AnyLearner, server_round: int = 1) -> Cohort:
    """Both clients at the initial parameters."""
    clients = [client_of(name, stages) for name, stages in STAGES.items()]
    return cohort_of(learner, clients, server_round)


def at_round(learner: AnyLearner, cohort: Cohort, server_round: int) -> Cohort:
    """The same clients, as their node would load them in another round."""
    clients = [client_of(name, STAGES[name]) for name in cohort.names]
    samples = learner.task.gather(clients, server_round)
    return replace(cohort, samples=samples, server_round=server_round)


def class_guidance(prototypes: dict[int, float], model: Arrays | None = None) -> Guidance:
    """With a global prototype for some classes, each of equal values."""
    rows = np.array([[value] * WIDTH for value in prototypes.values()], np.float32)
    return Guidance(
        (model or {}) | ({PROTOTYPES: rows} if prototypes else {}), classes=list(prototypes)
    )
