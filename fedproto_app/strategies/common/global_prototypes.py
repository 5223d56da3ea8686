"""Class prototypes: the client's, which it sends, and the global ones that it gets."""

from __future__ import annotations

import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.class_prototypes import class_means
from fedproto_app.strategies.common.cohort import Cohort
from fedproto_app.strategies.common.learner import Contribution
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceClassificationTask

PROTOTYPES = "prototypes"  # by class: clients send theirs and get the global ones


def class_prototypes(sizes: Sizes, samples: str) -> Sends:
    """Return the declaration of a client that sends a prototype of each class it has.

    The server needs only their mean. samples: the word for the samples of a class.
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
    guidance: Guidance, task: ClassificationTask | SequenceClassificationTask
) -> tuple[Tensor, Tensor]:
    """Return the global prototypes [C, D] and which classes have one, [C] bool; zeros elsewhere."""
    classes, device = len(task.shape.classes), task.device
    shared = torch.zeros(classes, task.representation_dim, device=device)
    has_prototype = torch.zeros(classes, dtype=torch.bool, device=device)
    if guidance.classes:
        rows = torch.tensor(guidance.classes, device=device)
        shared[rows] = torch.from_numpy(guidance.arrays[PROTOTYPES]).to(device)
        has_prototype[rows] = True
    return shared, has_prototype


def sent_prototypes(
    cohort: Cohort, task: ClassificationTask | SequenceClassificationTask
) -> Contribution:
    """Return each client's mean representation of each class it has, by its present model."""
    vectors = task.train_vectors(cohort.parameters, cohort.samples)
    means, counts = class_means(*vectors, len(task.shape.classes))
    return Contribution({PROTOTYPES: means.cpu().numpy()}, counts > 0)
