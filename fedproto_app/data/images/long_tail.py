"""The long tail over classes, and which classes each client and stage draws from it.

A *row* is one client at one stage. All rows train on the same number n of images, no image twice,
so the classes that a row draws decide how large n can be: a set of classes must hold n images for
each row that draws all its classes from that set (Hall's condition, here a maximum flow).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Held = NDArray[np.bool_]

_NEAR_ENOUGH = 0.9  # of an equal share of all images; below, rows swap classes


def long_tail_counts(available: Counts, imbalance_factor: float) -> Counts:
    """[C] images kept of each class: n_c = ⌊n_max · IF^(−c/(C−1))⌋, but at least 1.

    available: [C] images there are; n_max is the smallest of them, so that every class can follow
    the profile. The exponential profile of GLDP's long tail (docs/gldp.md); class 0 is the head.
    """
    most, classes = int(available.min()), len(available)
    exponents = np.arange(classes) / max(classes - 1, 1)
    kept = np.floor(most * imbalance_factor**-exponents + 1e-9)  # 27 may come out as 26.99…
    return np.maximum(kept, 1).astype(np.int64)


def draw_classes(limits: Counts, rows: int, classes: int, rng: Generator) -> Held:
    """[R, C] which S classes each row holds, uniform but for what the limits forbid.

    limits: [C] most rows that can hold a class; Σ min(limit, R) ≥ R·S (the caller's to check).
    Every class is held by some row if R·S ≥ C.
    """
    limits = np.minimum(limits, rows)
    held = np.zeros((rows, len(limits)), dtype=np.bool_)
    for row in held:
        row[rng.choice(len(limits), classes, replace=False)] = True
    holders = held.sum(axis=0)
    while (over := holders > limits).any():
        _shift(held, _any(over, rng), _any(holders < limits, rng), rng)
        holders = held.sum(axis=0)
    while (holders == 0).any() and (holders > 1).any():
        _shift(held, _any(holders > 1, rng), _any(holders == 0, rng), rng)
        holders = held.sum(axis=0)
    return held


def class_quotas(counts: Counts, rows: int, classes: int) -> Counts:
    """[C] how many rows hold each class if its chances follow its size: Σ = R·S.

    As if the images were sorted by class, cut into R·S equal shards and each row given S shards
    of different classes (McMahan et al. 2017, with a long tail): a class so large that it would
    be dealt twice to some row is held by every row instead, and the others share the rest. Every
    class has at least one row, and no more rows than images; Σ min(n_c, R) ≥ R·S (the caller's
    to check).
    """
    limits = np.minimum(counts, rows)
    quotas = np.ones_like(counts)
    while (missing := rows * classes - quotas.sum()) > 0:
        open_ = quotas < limits
        share = np.where(open_, counts, 0)
        grown = quotas + missing * share / share.sum()
        whole = np.minimum(np.floor(grown).astype(np.int64), limits)
        if (whole == quotas).all():  # less than one each is left: the largest remainders
            order = np.argsort(np.where(open_, quotas - grown, np.inf), kind="stable")
            whole[order[: min(missing, open_.sum())]] += 1
        quotas = whole
    return quotas


def _any(mask: Held, rng: Generator) -> int:
    return int(rng.choice(np.flatnonzero(mask)))


def _shift(held: Held, given: int, taken: int, rng: Generator) -> None:
    """One row fewer holds the class `given`, one more `taken`; in place."""
    if (able := held[:, given] & ~held[:, taken]).any():
        held[_any(able, rng), [given, taken]] = False, True
        return
    # Every row with `given` has `taken` too: a row without `taken` takes it and passes on, in
    # exchange, a class that the first row lacks. There is one, as both hold S classes.
    first, second = _any(held[:, given], rng), _any(~held[:, taken], rng)
    passed_on = _any(held[second] & ~held[first], rng)
    held[first, [given, passed_on]] = False, True
    held[second, [passed_on, taken]] = False, True


def equal_share(held: Held, counts: Counts) -> int:
    """The largest n such that every row can have n images, one of each of its classes or more.

    held: [R, C], every row S classes. counts: [C] images, at least one for each row of the class.
    """
    low, high = int(held[0].sum()), int(counts.sum()) // len(held)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if _shortage(held, counts, middle)[0] else (middle, high)
    return low


def draw_fair_classes(
    limits: Counts, counts: Counts, rows: int, classes: int, rng: Generator
) -> Held:
    """[R, C] as `draw_classes`, with n near an equal share ⌊Σ counts / R⌋ where that can be.

    limits: [C] ≤ counts. Uniform draws can leave the head class to too few rows, and its images
    unused. Then some rows that share the scarce images swap a class for one with images left.
    """
    held = draw_classes(limits, rows, classes, rng)
    share = equal_share(held, counts)
    target = int(np.ceil(_NEAR_ENOUGH * (counts.sum() // rows)))
    while share < target:
        swapped = _swap_for(min(target, share + max(1, share // 10)), held, counts, rng)
        if swapped is None:
            break
        held, share = swapped, equal_share(swapped, counts)
    return held


def _swap_for(images: int, held: Held, counts: Counts, rng: Generator) -> Held | None:
    """`held` with a few classes swapped so that every row can have so many images, or None."""
    held = held.copy()
    for _ in range(len(held)):
        short, scarce_rows, scarce = _shortage(held, counts, images)
        if not short:
            return held
        swaps = 0
        for row in rng.permutation(np.flatnonzero(scarce_rows))[: -(-short // images)]:
            holders = held.sum(axis=0)
            given = held[row] & (holders > 1)  # no class is left without a row
            taken = ~held[row] & ~scarce & (holders < counts)
            if given.any() and taken.any():
                chances = np.where(taken, counts, 0)
                put = int(rng.choice(len(counts), p=chances / chances.sum()))
                held[row, [_any(given, rng), put]] = False, True
                swaps += 1
        if not swaps:
            return None
    return None


def _shortage(held: Held, counts: Counts, images: int) -> tuple[int, Held, Held]:
    """What is missing if every row wants so many images, one of each of its classes or more.

    Returns the number of images, the rows [R] and the classes [C] of the bottleneck: the source's
    side of the minimum cut next to the source, which is the same whatever maximum flow was found.
    """
    from scipy.sparse import coo_array, csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    rows, classes = held.shape
    row, column = np.nonzero(held)
    source, sink = rows + classes, rows + classes + 1
    wanted, spare = images - held.sum(axis=1), counts - held.sum(axis=0)
    tails = [np.full(rows, source), row, rows + np.arange(classes)]
    heads = [np.arange(rows), rows + column, np.full(classes, sink)]
    limits = np.concatenate([wanted, spare[column], spare]).astype(np.int32)
    edges: Any = (limits, (np.concatenate(tails), np.concatenate(heads)))
    network = csr_array(coo_array(edges, shape=(sink + 1, sink + 1)))
    flow = maximum_flow(network, source, sink)
    residual = csr_array(network - flow.flow)
    residual.eliminate_zeros()
    reached = np.zeros(sink + 1, dtype=np.bool_)
    reached[breadth_first_order(residual, source, return_predecessors=False)] = True
    return int(wanted.sum() - flow.flow_value), reached[:rows], reached[rows:source]
