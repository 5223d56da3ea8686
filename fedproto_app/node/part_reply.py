"""The results of an order, cohort by cohort, and how a node merges them into its reply.

The cohorts of an order do not depend on the number of the node's processes. Each process returns a
`PartReply` of its cohorts, and `merged` adds these up in the order of the cohorts. So the reply is
the same, bit for bit, for any number of processes.
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
    """The results of one cohort.

    place: the cohort's position in the order. sums: the shared parameters, summed over the clients
    with their weights; weight: the sum of the weights.
    """

    place: int = 0
    sums: Totals = field(default_factory=dict)
    weight: int = 0


@dataclass(frozen=True)
class PartReply:
    """The results of one process for an order.

    absent: clients that it does not have, with the reason. seconds: the process's working time.
    """

    cohorts: list[CohortReply]
    absent: dict[str, str]
    seconds: float


def merged(parts: Iterable[PartReply]) -> Reply:
    """Merge the results of all processes into the node's reply."""
    all_parts = list(parts)
    cohorts = sorted(
        (cohort for part in all_parts for cohort in part.cohorts), key=lambda cohort: cohort.place
    )
    names = [name for cohort in cohorts for name in cohort.names]
    failed = {name: reason for cohort in cohorts for name, reason in cohort.failed.items()}
    # A failing process reports all clients of the order, even those that other processes trained.
    failed |= {n: why for part in all_parts for n, why in part.absent.items() if n not in names}
    return Reply(
        names=names,
        samples=[count for cohort in cohorts for count in cohort.samples],
        losses=_joined(cohorts, [cohort.losses for cohort in cohorts]),
        metrics=_joined(cohorts, [cohort.metrics for cohort in cohorts]),
        kept_rounds=[kept_round for cohort in cohorts for kept_round in cohort.kept_rounds],
        failed=failed,
        arrays={**_mean(cohorts), **_concatenated(cohorts)},
        seconds=sum(part.seconds for part in all_parts),
        classes=[classes for cohort in cohorts for classes in cohort.classes],
        steps=[length for cohort in cohorts for length in cohort.steps],
    )


def totals(part: PartReply, classes: int) -> Sums:
    """Return the sums over all clients that trained, in float64, for a masked sum.

    values: the weighted sums of the shared parameters, and the sums of the clients' arrays, by
    class [C, …] if their rows belong to classes. counts: clients, their weights, and clients by
    class.
    """
    cohorts = sorted(part.cohorts, key=lambda cohort: cohort.place)
    values: dict[str, NDArray[np.float64]] = {}
    counts = {CLIENTS: np.array(sum(len(cohort.names) for cohort in cohorts))}
    counts[WEIGHT] = np.array(sum(cohort.weight for cohort in cohorts))
    if any(cohort.classes for cohort in cohorts):
        counts[BY_CLASS] = np.zeros(classes, dtype=np.int64)
    for cohort in cohorts:
        for name, total in cohort.sums.items():
            values[name] = values[name] + total if name in values else total
        owners = [label for client_classes in cohort.classes for label in client_classes]
        if BY_CLASS in counts:
            np.add.at(counts[BY_CLASS], owners, 1)
        for name, array in cohort.arrays.items():
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
    """Join the cohorts' values by name or metric; values that a cohort lacks are 0."""
    names = dict.fromkeys(name for table in tables for name in table)
    return {
        name: [
            value
            for cohort, table in zip(cohorts, tables, strict=True)
            for value in table.get(name, [0.0] * len(cohort.names))
        ]
        for name in names
    }


def _mean(cohorts: Sequence[CohortReply]) -> Arrays:
    """Return the weighted mean of the shared parameters over all clients, summed in float64."""
    trained = [cohort for cohort in cohorts if cohort.weight]
    if not trained:
        return {}
    weight = sum(cohort.weight for cohort in trained)
    totals = trained[0].sums
    for cohort in trained[1:]:
        totals = {name: total + cohort.sums[name] for name, total in totals.items()}
    return {name: (total / weight).astype(np.float32) for name, total in totals.items()}


def _concatenated(cohorts: Sequence[CohortReply]) -> Arrays:
    """Return the clients' arrays, concatenated over the cohorts."""
    sending = [cohort.arrays for cohort in cohorts if cohort.names]
    names = sending[0] if sending else {}
    return {name: np.concatenate([arrays[name] for arrays in sending]) for name in names}
