"""A global prototype for each class, updated from the clients' prototypes in each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.messages import Guidance
from fedproto_app.core.method import RunSettings
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.core.stored import AnyArray
from fedproto_app.core.tasks import task_record
from fedproto_app.maths.class_prototypes import moving_average
from fedproto_app.settings import Settings
from fedproto_app.strategies.common.federation import Federation
from fedproto_app.strategies.common.prototypes import PROTOTYPES
from fedproto_app.strategies.common.strategy import BaseStrategy
from fedproto_app.trust.outliers import largest

ClassRow = NDArray[np.float32]

LARGEST_VALUE = 1e6  # the largest absolute value in a prototype


def needs_prototypes(settings: RunSettings, inference: str) -> str:
    """Return why kept models cannot predict by themselves (`Method.cannot_predict`), or "".

    inference: what predicts classes. For forecasts, it is the head in any case.
    """
    if task_record(settings.task).forecasts or inference == "head":
        return ""
    return (
        "the prototypes that predict classes are not kept; a run with "
        f"{settings.method}.inference = 'head' keeps all that it predicts with"
    )


def class_fault(
    reply: ClientReply, name: str, round_: Round, fault: Callable[[ClassRow, int], str | None]
) -> str | None:
    """Return what is wrong with a client's rows, one row for each class, or None.

    fault: returns what is wrong with the row of a class, or None.
    """
    declared = round_.facts[reply.key].class_counts
    for label, row in reply.by_class(name).items():
        class_name = round_.class_names[label]
        if declared and not any(stage[label] for stage in declared):
            why = f"class {class_name!r}: the client declared no image of it"
            return f"its {name} are not used: {why}"
        if reason := fault(row, label):
            return f"its {name} are not used: class {class_name!r}: {reason}"
    return None


def largest_rows(
    replies: Sequence[ClientReply], name: str, size: Callable[[ClassRow], float]
) -> dict[ClientKey, str]:
    """Return the clients whose largest row is far larger than is usual in the round."""
    sizes = {
        reply.key: max(map(size, reply.by_class(name).values()))
        for reply in replies
        if reply.classes
    }
    return largest(sizes, f"its {name} are not used: the largest is")


def _value_fault(row: ClassRow, _: int) -> str | None:
    largest_value = float(np.abs(row).max())
    beyond = largest_value > LARGEST_VALUE
    return f"a value is {largest_value:g}, beyond ±{LARGEST_VALUE:g}" if beyond else None


class ClassPrototypes(BaseStrategy):
    """State: the global prototypes C̃ [C, D], and which classes any client has had so far [C].

    Class prototypes that cannot be true are refused. Their lengths are not compared, because they
    differ more than tenfold between honest clients. memory: the weight of the old prototype when a
    new one arrives.
    """

    memory = 0.0

    def __init__(self, settings: Settings, federation: Federation) -> None:
        super().__init__(settings, federation)
        self._prototypes = torch.zeros(self.sizes.classes, self.sizes.width)
        self._known = torch.zeros(self.sizes.classes, dtype=torch.bool)

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        return class_fault(reply, PROTOTYPES, round_, _value_fault)

    def update(self, round_: Round) -> None:
        """Update C̃ (GLDP, eq. 11). Without memory, C̃ is FedProto's mean of the round."""
        means = self.received.class_means(PROTOTYPES, self.sizes.classes)
        if means is not None:
            new, new_known = map(torch.from_numpy, means)
            self._prototypes, self._known = moving_average(
                self._prototypes, self._known, new, new_known, self.memory
            )

    def guide(self, clients: Sequence[ClientKey], round_: Round) -> Guidance:
        """Send C̃ for the classes that any client has had so far."""
        classes = self._classes()
        if not classes:
            return Guidance()
        return Guidance({PROTOTYPES: self._prototypes[classes].numpy()}, classes=classes)

    def state(self) -> dict[str, AnyArray]:
        """Return `classes`, those with a global prototype, and `prototypes`, [len(classes), D]."""
        classes = self._classes()
        return {
            "classes": np.array(classes, dtype=np.int64),
            "prototypes": self._prototypes[classes].numpy(),
        }

    def restore(self, state: Mapping[str, AnyArray]) -> None:
        if state:
            classes = torch.from_numpy(state["classes"])
            self._prototypes[classes] = torch.from_numpy(state["prototypes"])
            self._known[classes] = True

    def findings(self) -> dict[str, dict[str, AnyArray]]:
        """Return ``prototypes``: the global prototypes, with the names of their classes."""
        names = np.array([self.federation.shape.classes[label] for label in self._classes()])
        return {"prototypes": {**ClassPrototypes.state(self), "names": names}}

    def _classes(self) -> list[int]:
        labels: list[int] = self._known.nonzero().flatten().tolist()
        return labels
