"""Prototypes at the clients: of the phases of a period, or of classes.

The two kinds of prototypes of a period are gathered during a training epoch, without a second pass:
they take in the representations of each step, [k, B, D] for the first k clients. Class prototypes
are sent to the server, which returns the global ones.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedproto_app.core.messages import Guidance
from fedproto_app.core.sends import Sends, Sizes
from fedproto_app.maths.class_prototypes import class_means
from fedproto_app.strategies.common.learner import Cohort, Contribution
from fedproto_app.tasks.images.task import ClassificationTask
from fedproto_app.tasks.sequences.task import SequenceClassificationTask


class PeriodPrototype:
    """Periodicity-aware prototype (P, eq. 8): the mean over the epoch's batches, [K, B, D]."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self.clear()

    def clear(self) -> None:
        """Forget the batches seen so far."""
        self._sum: Tensor | None = None
        self._count = torch.zeros(self._clients)

    def add(self, representation: Tensor, age: Tensor) -> None:
        """Take in one batch of the first k clients."""
        active = len(representation)
        if self._sum is None:
            self._sum = representation.new_zeros(self._clients, *representation.shape[1:])
        self._sum[:active] += representation
        self._count[:active] += 1

    def value(self) -> Tensor:
        """Return R_n, [K, B, D]."""
        assert self._sum is not None, "no batch was added"
        return self._sum / self._count.to(self._sum.device).view(-1, 1, 1)


class ConcatenatedPrototype:
    """Concatenation-based prototype (P, eq. 7, ablation "w/o p-aware"): the rows of the newest
    `batches` batches, [K, batches·B, D], oldest first. All clients must have that many batches."""

    def __init__(self, clients: int, batches: int) -> None:
        self._clients, self._batches = clients, batches
        self.clear()

    def clear(self) -> None:
        """Forget the batches seen so far."""
        self._rows: Tensor | None = None

    def add(self, representation: Tensor, age: Tensor) -> None:
        """Take in one batch of the first k clients. age: how many newer batches each has, [k]."""
        if self._rows is None:  # the last place is for batches that are too old
            shape = (self._clients, self._batches + 1, *representation.shape[1:])
            self._rows = representation.new_zeros(shape)
        place = torch.where(age < self._batches, self._batches - 1 - age, self._batches)
        self._rows[torch.arange(len(age), device=age.device), place] = representation

    def value(self) -> Tensor:
        """Return R_n, [K, batches·B, D]."""
        assert self._rows is not None, "no batch was added"
        return self._rows[:, : self._batches].flatten(start_dim=1, end_dim=2)


PROTOTYPES = "prototypes"  # clients send one for each of their classes and get the global ones


def period_prototype(
    name: str,
    rows: int,
    width: int,
    combine: Literal["each", "groups", "mean"],
    of_present: str = "",
) -> Sends:
    """Return the declaration of a client that sends its prototype of a period, [rows, width]."""
    return Sends(
        "prototype",
        {name: (rows, width)},
        combine=combine,
        remember="latest",
        of_present=of_present,
        clip="rows",
        reveals="the mean representation of each time of its period",
    )


def received_array(guidance: Guidance, name: str, device: torch.device) -> Tensor | None:
    """Return an array that the server sends, on the device, or None if it did not come."""
    array = guidance.arrays.get(name)
    return None if array is None else torch.from_numpy(array).to(device)


def class_prototypes(sizes: Sizes, samples: str) -> Sends:
    """Return the declaration of a client that sends a prototype of each class it has.

    The server needs only the mean. samples: what the text for users calls a class's samples.
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
    """Return the global prototypes [C, D], 0 where missing, and which classes have one, [C]."""
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
    """Return, for each client, its model's mean representation of each class that it has."""
    vectors = task.train_vectors(cohort.parameters, cohort.samples)
    means, counts = class_means(*vectors, len(task.shape.classes))
    return Contribution({PROTOTYPES: means.cpu().numpy()}, counts > 0)
