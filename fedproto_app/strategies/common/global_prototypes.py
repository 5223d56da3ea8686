"""Prototypes of classes: what a client sends, and the global ones that an order brings."""

from __future__ import annotations

import torch
from torch import Tensor

from fedproto_app.core.messages import Order
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.class_prototypes import class_means
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Contribution
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceClassificationTask

PROTOTYPES = "prototypes"  # by class: up each client's own, down the global ones


def class_prototypes(sizes: Sizes, samples: str) -> Sends:
    """A client's prototype of each class that it has, of which the server needs the mean.

    samples: what a class is of, in words.
    """
    return Sends(
        "prototypes",
        {PROTOTYPES: (sizes.width,)},
        rows="class",
        combine="mean",
        clip="rows",
        reveals=f"a prototype for each class of which a client has {samples}",
        consent="tells-classes",
    )


def received_prototypes(
    order: Order, task: ClassificationTask | SequenceClassificationTask
) -> tuple[Tensor, Tensor]:
    """[C, D], zeros for unknown classes, and which are known, [C] bool: none before there are."""
    classes, device = len(task.shape.classes), task.device
    shared = torch.zeros(classes, task.representation_dim, device=device)
    known = torch.zeros(classes, dtype=torch.bool, device=device)
    if order.classes:
        rows = torch.tensor(order.classes, device=device)
        shared[rows] = torch.from_numpy(order.arrays[PROTOTYPES]).to(device)
        known[rows] = True
    return shared, known


def sent_prototypes(
    cohort: Cohort, task: ClassificationTask | SequenceClassificationTask
) -> Contribution:
    """Each client's mean representation of each class that it has, by its model as it is now."""
    vectors = task.train_vectors(cohort.parameters, cohort.samples)
    means, counts = class_means(*vectors, len(task.shape.classes))
    return Contribution({PROTOTYPES: means.cpu().numpy()}, counts > 0)
