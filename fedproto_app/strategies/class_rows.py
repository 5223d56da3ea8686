"""What clients sent for each of their classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedproto_app.messages import Refusal
from fedproto_app.server.federation import Federation
from fedproto_app.server.roster import ClientKey
from fedproto_app.server.round_log import NodeReply
from fedproto_app.strategies.beyond_median import refuse_largest

RowT = TypeVar("RowT")
ClassRows = dict[ClientKey, dict[int, NDArray[np.float32]]]  # client → class → its array


def rows_by_class(answers: Iterable[NodeReply], name: str) -> ClassRows:
    """The array of this name of every client and class; a client may have none."""
    found: ClassRows = {}
    for answer in answers:
        rows = iter(answer.reply.arrays[name])
        for key, classes in zip(answer.keys(), answer.reply.classes, strict=True):
            found[key] = {one: next(rows) for one in classes}
    return found


def believed(
    federation: Federation,
    arrived: Mapping[ClientKey, dict[int, RowT]],
    fault: Callable[[RowT, int], str | None],
    size: Callable[[RowT], float],
    what: str,
) -> dict[ClientKey, dict[int, RowT]]:
    """Without those of clients that cannot be telling the truth, who are refused.

    fault: why a class cannot have such a row, or None. size: of a row; a client's largest is held
    against what is usual in the round. what: the rows' name, as in "its gradients are not used".
    """
    good = {}
    for key, its in arrived.items():
        if why := _fault(federation, key, its, fault):
            federation.refuse(Refusal(key.node, key.client, f"its {what} are not used: {why}"))
        else:
            good[key] = its
    largest = {key: max(map(size, its.values())) for key, its in good.items() if its}
    told = f"its {what} are not used: the largest is"
    beyond = refuse_largest(federation, largest, told)
    return {key: its for key, its in good.items() if key not in beyond}


def _fault(
    federation: Federation,
    key: ClientKey,
    its: Mapping[int, RowT],
    fault: Callable[[RowT, int], str | None],
) -> str | None:
    declared = federation.roster.facts[key].class_counts
    for label, row in its.items():
        name = federation.shape.classes[label]
        if declared and not any(stage[label] for stage in declared):
            return f"one of class {name!r}, of which it has declared no image"
        if why := fault(row, label):
            return f"class {name!r}: {why}"
    return None
