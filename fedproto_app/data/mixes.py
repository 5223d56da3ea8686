"""Divide samples class by class: among clients, and between train and held-out parts.

A row is a client, or a client at a stage. All rows get the same number of samples, and no sample
goes to two rows. Each row has a wished mix of classes. It gets the closest mix, by maximum
entropy, that the samples of each class allow for all rows together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Places = NDArray[np.int64]  # places in the pool, or in one split of it

_SWEEPS = 300  # or until nothing changes: machines would stop a looser rule at different sweeps
_DECIMALS = 6  # rounded, so that the last bit of a machine's sums does not matter
LEAST_WEIGHT = 1e-9  # Dirichlet shares can be so small that they are 0


def client_names(clients: int) -> list[str]:
    """Return the names of the clients that samples are dealt to."""
    digits = max(3, len(str(clients - 1)))
    return [f"client-{number:0{digits}d}" for number in range(clients)]


def dirichlet_mixes(
    classes: int, concentration: float, rows: int, rng: Generator
) -> NDArray[np.float64]:
    """Draw mixes of the classes from a symmetric Dirichlet distribution, [R, C], all above 0."""
    return np.maximum(rng.dirichlet(np.full(classes, concentration), rows), LEAST_WEIGHT)


def deal(pool: Sequence[Places], shares: Counts) -> list[Places]:
    """Return the samples of each row, [R] lists, ascending. Each row takes the next in the pool.

    pool: [C] lists with the shuffled samples of each class. shares: [R, C], how many samples of
    each class a row takes.
    """
    ends = np.cumsum(shares, axis=0)
    return [
        np.sort(np.concatenate([places[a:b] for places, a, b in zip(pool, *row, strict=True)]))
        for row in zip(ends - shares, ends, strict=True)
    ]


def spread(weights: NDArray[np.float64], least: Counts, samples: int, counts: Counts) -> Counts:
    """Return how many samples of each class each row gets, [R, C].

    Rows sum to `samples`, columns to at most `counts`.

    weights: [R, C], the mix that each row would have if there were enough samples of every class,
    0 where it gets none of the class. least: [R, C], the fewest samples, 0 where the weight is 0.
    counts: [C], the samples of each class. The caller makes sure that such whole numbers exist
    (`images.partition.equal_share`). The result is `maximum_entropy`'s, rounded.
    """
    extra = maximum_entropy(weights, least, samples, counts) - least
    row_sums, room = samples - least.sum(axis=1), counts - least.sum(axis=0)
    # If the sweeps have not converged, they must still not ask for more than there is.
    extra *= _quotient(row_sums, extra.sum(axis=1)).clip(max=1)[:, None]
    extra *= _quotient(room, extra.sum(axis=0)).clip(max=1)
    return least + _rounded(extra.round(_DECIMALS), weights > 0, row_sums, room)


def maximum_entropy(
    weights: NDArray[np.float64], least: Counts, samples: int, counts: Counts
) -> NDArray[np.float64]:
    """Return the real-valued solution, [R, C]: max(least, u_r · weight_rc · v_c) with v_c ≤ 1.

    It is found by iterative proportional fitting: rows are scaled to their sum, then columns are
    scaled down to theirs. As cells at their `least` do not scale, a sweep is one Newton step for
    each row and each column.
    """
    row_scale, column_scale = np.ones(len(weights)), np.ones(len(counts))
    for sweep in range(_SWEEPS):
        before = row_scale, column_scale
        scaled = weights * column_scale
        free = (row_scale[:, None] * scaled > least) | (sweep == 0)
        row_scale = _fitted(scaled, free, least, np.full(len(weights), samples), row_scale)
        scaled = weights * row_scale[:, None]
        free = column_scale * scaled > least
        column_scale = _fitted(scaled.T, free.T, least.T, counts, column_scale).clip(max=1)
        if all(map(np.array_equal, before, (row_scale, column_scale))):
            break
    return np.maximum(least, row_scale[:, None] * weights * column_scale)


def _fitted(
    weights: NDArray[np.float64],
    free: NDArray[np.bool_],
    least: Counts,
    sums: Counts,
    scale: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return for each row the scale at which its free cells add up to the rest of its sum, [R]."""
    slope = np.where(free, weights, 0.0).sum(axis=1)
    target = sums - np.where(free, 0, least).sum(axis=1)
    # A row without free cells has nothing to scale, unless its scale was just too small.
    loose = _quotient(sums, weights.sum(axis=1))
    fallback = np.where(target > 0, np.maximum(loose, scale), scale)
    return np.where(slope > 0, _quotient(np.maximum(target, 0), slope), fallback)


def _quotient(
    numerator: NDArray[np.float64] | Counts, denominator: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the quotient, or 0 where the denominator is 0, [n]."""
    positive = denominator > 0
    return np.divide(numerator, denominator, out=np.zeros(len(denominator)), where=positive)


def _rounded(
    extra: NDArray[np.float64], allowed: NDArray[np.bool_], row_sums: Counts, room: Counts
) -> Counts:
    """Return whole numbers near `extra`, [R, C]: rows sum exactly, columns to at most `room`.

    The largest fractions are rounded up first. If all classes of a row are full when its turn
    comes, another row makes room.
    """
    numbers = np.floor(extra).astype(np.int64)
    short, room = row_sums - numbers.sum(axis=1), room - numbers.sum(axis=0)
    rows, columns = np.nonzero(extra > numbers)
    fractions = (extra - numbers)[rows, columns]
    for place in np.argsort(-fractions, kind="stable"):
        row, column = rows[place], columns[place]
        if short[row] > 0 and room[column] > 0:
            numbers[row, column] += 1
            short[row] -= 1
            room[column] -= 1
    for row in np.repeat(np.arange(len(short)), short):
        _augment(numbers, allowed, int(row), room)
    return numbers


def _augment(numbers: Counts, allowed: NDArray[np.bool_], row: int, room: Counts) -> None:
    """Give the row one more sample by the shortest chain of exchanges between rows, in place.

    The chain is an augmenting path to a class with room, found by breadth-first search.
    """
    taker = np.full(len(room), -1)  # the row that would take one more of the class
    offered = np.full(len(numbers), -1)  # the class that the row would give in exchange
    queue, reached = [row], np.arange(len(numbers)) == row
    for taking in queue:
        for column in np.flatnonzero(allowed[taking] & (taker < 0)):
            taker[column] = taking
            if room[column] > 0:
                room[column] -= 1
                numbers[taking, column] += 1
                while taking != row:  # back along the chain
                    column = offered[taking]
                    numbers[taking, column] -= 1
                    taking = taker[column]
                    numbers[taking, column] += 1
                return
            givers = np.flatnonzero((numbers[:, column] > 0) & ~reached)
            reached[givers], offered[givers] = True, column
            queue += givers.tolist()
    raise ValueError(f"row {row} cannot have its samples: the sums contradict each other")


def held_out_counts(counts: Counts, share: float, rng: Generator) -> Counts:
    """Return how many samples of each class to hold out, [C], for a share of all samples.

    The total is rounded once. Classes with the largest remainders get the rest, and ties are broken
    at random. Rounding each class alone could hold out nothing if there are many small classes. At
    least one sample of each class stays.
    """
    exact = share * counts
    held_out: Counts = np.floor(exact + 1e-9).astype(np.int64)
    remainders = np.where(held_out + 1 < counts, exact - held_out, 0.0).round(9)
    order = np.lexsort([rng.random(len(counts)), -remainders])
    more = int(np.floor(exact.sum() + 0.5)) - int(held_out.sum())
    held_out[order[: min(more, int((remainders > 0).sum()))]] += 1
    return held_out


def split_off(
    places: Places, labels: NDArray[np.int64], share: float, rng: Generator
) -> tuple[Places, Places]:
    """Split each class, and return the places that stay and those held out, both ascending.

    places: [n]. labels: [n], the class at each place.
    """
    if not places.size:
        return places, places
    counts = np.bincount(labels)
    shuffled = rng.permutation(len(places))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    first = np.cumsum(counts) - counts
    turn = np.arange(len(places)) - first[labels[by_class]]  # within its class
    held_out = turn < held_out_counts(counts, share, rng)[labels[by_class]]
    return np.sort(places[by_class[~held_out]]), np.sort(places[by_class[held_out]])
