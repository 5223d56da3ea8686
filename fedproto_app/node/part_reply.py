"""The results of an order, cohort by cohort, and the one reply that a node makes of them.

The cohorts of an order do not depend on how many processes work for the node; each process answers
with a `PartReply` of its cohorts, and `merged` adds these up in the order of the cohorts. So the
reply is the same, bit for bit, for any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.messages import Arrays, Reply
from fedproto_app.trust.fixed_point import BY_CLASS, CLIENTS, WEIGHT, Sums

Totals = dict[str, NDArray[np.float64]]
KeyT = TypeVar("KeyT")


@dataclass
class CohortReply(Reply):
    """What one cohort did: the reply of its clients alone.

    place: the cohort's among those of the order. sums: the shared parameters, summed over the
    clients with their weights; weight: the sum of these.
    """

    place: int = 0
    sums: Totals = field(default_factory=dict)
    weight: int = 0


@dataclass(frozen=True)
class PartReply:
    """What one process did for an order.

    absent: clients that it could not find, with the reason. seconds: its working time.
    """

    cohorts: list[CohortReply]
    absent: dict[str, str]
    seconds: float


def merged(parts: Iterable[PartReply]) -> Reply:
    """The node's reply to an order of which these are all the parts."""
    every = list(parts)
    cohorts = sorted((one for part in every for one in part.cohorts), key=lambda one: one.place)
    names = [name for one in cohorts for name in one.names]
    failed = {name: reason for one in cohorts for name, reason in one.failed.items()}
    # A process that fails says so of the whole order, though others did their parts of it.
    failed |= {n: why for part in every for n, why in part.absent.items() if n not in names}
    return Reply(
        names=names,
        samples=[count for one in cohorts for count in one.samples],
        losses=_joined(cohorts, [one.losses for one in cohorts]),
        metrics=_joined(cohorts, [one.metrics for one in cohorts]),
        kept_rounds=[kept for one in cohorts for kept in one.kept_rounds],
        failed=failed,
        arrays={**_mean(cohorts), **_concatenated(cohorts)},
        seconds=sum(part.seconds for part in every),
        classes=[classes for one in cohorts for classes in one.classes],
    )


def totals(part: PartReply, classes: int) -> Sums:
    """The sums over all clients that worked, in float64: what a masked sum is made of.

    Of the shared parameters, weighted; of the clients' own arrays, with rows by class [C, …] where
    these have classes. Beside them the counts: clients, their weights, and clients by class.
    """
    cohorts = sorted(part.cohorts, key=lambda one: one.place)
    values: dict[str, NDArray[np.float64]] = {}
    counts = {CLIENTS: np.array(sum(len(one.names) for one in cohorts))}
    counts[WEIGHT] = np.array(sum(one.weight for one in cohorts))
    if any(one.classes for one in cohorts):
        counts[BY_CLASS] = np.zeros(classes, dtype=np.int64)
    for one in cohorts:
        for name, total in one.sums.items():
            values[name] = values[name] + total if name in values else total
        owners = [each for its in one.classes for each in its]
        if BY_CLASS in counts:
            np.add.at(counts[BY_CLASS], owners, 1)
        for name, array in one.arrays.items():
            rows = array.astype(np.float64)
            if BY_CLASS in counts:
                total = np.zeros((classes, *rows.shape[1:]))
                np.add.at(total, owners, rows)
            else:
                total = rows.sum(axis=0)
            values[name] = values[name] + total if name in values else total
    return Sums(values, counts)


def _joined(
    cohorts: Sequence[CohortReply], tables: Sequence[dict[KeyT, list[float]]]
) -> dict[KeyT, list[float]]:
    """Values by name or metric for all clients; a count that a cohort does not have is 0."""
    names = dict.fromkeys(name for table in tables for name in table)
    return {
        name: [
            value
            for one, table in zip(cohorts, tables, strict=True)
            for value in table.get(name, [0.0] * len(one.names))
        ]
        for name in names
    }


def _mean(cohorts: Sequence[CohortReply]) -> Arrays:
    """The weighted mean of the shared parameters over all clients, summed in float64."""
    trained = [one for one in cohorts if one.weight]
    if not trained:
        return {}
    weight = sum(one.weight for one in trained)
    totals = trained[0].sums
    for one in trained[1:]:
        totals = {name: total + one.sums[name] for name, total in totals.items()}
    return {name: (total / weight).astype(np.float32) for name, total in totals.items()}


def _concatenated(cohorts: Sequence[CohortReply]) -> Arrays:
    """The clients' own arrays, one cohort behind the other."""
    sending = [one.arrays for one in cohorts if one.names]
    names = sending[0] if sending else {}
    return {name: np.concatenate([arrays[name] for arrays in sending]) for name in names}
