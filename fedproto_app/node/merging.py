"""Merge the replies of a node's cohorts into the node's reply, or into the sums of a masked sum.

The cohorts of an order do not depend on how many processes the node has. Each process returns the
replies of its cohorts, and `merged` adds these up in the order of the cohorts. The reply is thus
the same, bit for bit, for any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedproto_app.core.messages import Arrays, Reply
from fedproto_app.trust.fixed_point import BY_CLASS, CLIENTS, WEIGHT, Sums

KeyT = TypeVar("KeyT")


def absent_reply(reasons: Mapping[str, str], seconds: float = 0.0) -> Reply:
    """Return a process's reply about clients that it does not have, with the reasons.

    seconds: the working time of the process.
    """
    return Reply([], [], failed=dict(reasons), seconds=seconds, place=-1)


def merged(replies: Iterable[Reply]) -> Reply:
    """Merge the replies of all processes about cohorts and absent clients into the node's reply."""
    cohorts = sorted(replies, key=attrgetter("place"))
    names = [name for cohort in cohorts for name in cohort.names]
    failed: dict[str, str] = {}
    for cohort in sorted(cohorts, key=lambda cohort: cohort.place < 0):  # the absent last
        # A failing process reports all clients of the order, even if other processes trained them.
        new = {n: why for n, why in cohort.failed.items() if cohort.place >= 0 or n not in names}
        failed |= new
    return Reply(
        names=names,
        samples=[count for cohort in cohorts for count in cohort.samples],
        losses=_joined(cohorts, [cohort.losses for cohort in cohorts]),
        metrics=_joined(cohorts, [cohort.metrics for cohort in cohorts]),
        kept_rounds=[kept_round for cohort in cohorts for kept_round in cohort.kept_rounds],
        failed=failed,
        arrays={**_mean(cohorts), **_concatenated(cohorts)},
        seconds=sum(cohort.seconds for cohort in cohorts),
        classes=[classes for cohort in cohorts for classes in cohort.classes],
        steps=[length for cohort in cohorts for length in cohort.steps],
    )


def summed(replies: Iterable[Reply], classes: int) -> Sums:
    """Return the sums over all clients that trained, in float64, for a masked sum.

    values: the weighted sums of the shared parameters, and the sums of the clients' arrays. If the
    rows of these arrays belong to classes, the sums are by class, [C, …]. counts: the number of
    clients, the sum of their weights, and the number of clients by class.
    """
    cohorts = sorted(replies, key=attrgetter("place"))
    values: dict[str, NDArray[np.float64]] = {}
    counts = {CLIENTS: np.array(sum(len(cohort.names) for cohort in cohorts))}
    counts[WEIGHT] = np.array(sum(cohort.weight for cohort in cohorts))
    if any(cohort.classes for cohort in cohorts):
        counts[BY_CLASS] = np.zeros(classes, dtype=np.int64)
    for cohort in cohorts:
        for name, total in cohort.totals.items():
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
    cohorts: Sequence[Reply], tables: Sequence[dict[KeyT, list[float]]]
) -> dict[KeyT, list[float]]:
    """Join the cohorts' values by name or by metric. If a cohort has no value, use 0."""
    names = dict.fromkeys(name for table in tables for name in table)
    return {
        name: [
            value
            for cohort, table in zip(cohorts, tables, strict=True)
            for value in table.get(name, [0.0] * len(cohort.names))
        ]
        for name in names
    }


def _mean(cohorts: Sequence[Reply]) -> Arrays:
    """Return the weighted mean of the shared parameters over all clients, summed in float64."""
    trained = [cohort for cohort in cohorts if cohort.weight]
    if not trained:
        return {}
    weight = sum(cohort.weight for cohort in trained)
    totals = trained[0].totals
    for cohort in trained[1:]:
        totals = {name: total + cohort.totals[name] for name, total in totals.items()}
    return {name: (total / weight).astype(np.float32) for name, total in totals.items()}


def _concatenated(cohorts: Sequence[Reply]) -> Arrays:
    """Return the clients' arrays, concatenated over the cohorts."""
    sending = [cohort.arrays for cohort in cohorts if cohort.names]
    names = sending[0] if sending else {}
    return {name: np.concatenate([arrays[name] for arrays in sending]) for name in names}
