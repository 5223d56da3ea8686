"""What clients sent for each of their classes, and which of it cannot be true."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.clients import ClientKey
from fedproto_app.core.round import ClientReply, Round
from fedproto_app.strategies.common.global_prototypes import PROTOTYPES
from fedproto_app.strategies.common.strategy import BaseStrategy
from fedproto_app.trust.outliers import largest

ClassRow = NDArray[np.float32]

LARGEST_VALUE = 1e6  # of a prototype


def class_fault(
    reply: ClientReply, name: str, round_: Round, fault: Callable[[ClassRow, int], str | None]
) -> str | None:
    """Why a client cannot have these rows by class, or None.

    fault: why a class cannot have such a row, or None.
    """
    declared = round_.facts[reply.key].class_counts
    for label, row in reply.by_class(name).items():
        class_name = round_.class_names[label]
        if declared and not any(stage[label] for stage in declared):
            why = f"one of class {class_name!r}, of which it has declared no image"
            return f"its {name} are not used: {why}"
        if reason := fault(row, label):
            return f"its {name} are not used: class {class_name!r}: {reason}"
    return None


def largest_rows(
    replies: Sequence[ClientReply], name: str, size: Callable[[ClassRow], float]
) -> dict[ClientKey, str]:
    """Clients of whom the largest row is far larger than what is usual in the round."""
    sizes = {
        reply.key: max(map(size, reply.by_class(name).values()))
        for reply in replies
        if reply.classes
    }
    return largest(sizes, f"its {name} are not used: the largest is")


class CheckedClassPrototypes(BaseStrategy):
    """Refuses prototypes of classes that cannot be true.

    Lengths say nothing: honest clients' differ by more than ten times.
    """

    def fault(self, reply: ClientReply, round_: Round) -> str | None:
        return class_fault(reply, PROTOTYPES, round_, _value_fault)


def _value_fault(row: ClassRow, _: int) -> str | None:
    largest_value = float(np.abs(row).max())
    beyond = largest_value > LARGEST_VALUE
    return f"a value is {largest_value:g}, beyond ±{LARGEST_VALUE:g}" if beyond else None
