"""How many samples of each class a row gets: the least arbitrary mix, in whole samples.

A row is whoever gets them: a client, or a client at a stage.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]

_SWEEPS = 300  # or until nothing changes: a looser rule could stop elsewhere on another machine
_DECIMALS = 6  # rounded, so that the last bit of a machine's sums does not matter


def spread(weights: NDArray[np.float64], least: Counts, samples: int, counts: Counts) -> Counts:
    """[R, C] samples of each class for each row: rows sum to `samples`, columns to ≤ counts.

    weights: [R, C] the mix that each row would have if there were enough of everything, 0 where
    it gets no sample of the class. least: [R, C], 0 where the weight is 0. counts: [C] samples
    there are. Such whole numbers must exist (a maximum flow tells, `images.long_tail.equal_share`);
    found are those next to the mix of maximum entropy relative to the weights.
    """
    extra = maximum_entropy(weights, least, samples, counts) - least
    wanted, room = samples - least.sum(axis=1), counts - least.sum(axis=0)
    # What the sweeps left undecided must not ask for more than there is.
    extra *= _quotient(wanted, extra.sum(axis=1)).clip(max=1)[:, None]
    extra *= _quotient(room, extra.sum(axis=0)).clip(max=1)
    return least + _rounded(extra.round(_DECIMALS), weights > 0, wanted, room)


def maximum_entropy(
    weights: NDArray[np.float64], least: Counts, samples: int, counts: Counts
) -> NDArray[np.float64]:
    """[R, C] the real-valued solution: max(least, u_r · weight_rc · v_c) with v_c ≤ 1.

    Iterative proportional fitting: rows are scaled to their sum, then columns down to theirs. A
    sweep is one Newton step a row and a column, as cells held up at `least` do not scale.
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
    """[R] the scale of each row with which its free cells make up its sum."""
    slope = np.where(free, weights, 0.0).sum(axis=1)
    rest = sums - np.where(free, 0, least).sum(axis=1)
    # With every cell held up there is nothing to scale, unless the scale was just too small.
    loose = _quotient(sums, weights.sum(axis=1))
    held_up = np.where(rest > 0, np.maximum(loose, scale), scale)
    return np.where(slope > 0, _quotient(np.maximum(rest, 0), slope), held_up)


def _quotient(
    numerator: NDArray[np.float64] | Counts, denominator: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[n] 0 where the denominator is 0."""
    positive = denominator > 0
    return np.divide(numerator, denominator, out=np.zeros(len(denominator)), where=positive)


def _rounded(
    extra: NDArray[np.float64], allowed: NDArray[np.bool_], wanted: Counts, room: Counts
) -> Counts:
    """[R, C] whole numbers near `extra`: rows sum to `wanted` exactly, columns to at most `room`.

    Largest fractions first; where a row's classes are full by then, another row makes room.
    """
    whole = np.floor(extra).astype(np.int64)
    short, room = wanted - whole.sum(axis=1), room - whole.sum(axis=0)
    rows, columns = np.nonzero(extra > whole)
    fractions = (extra - whole)[rows, columns]
    for place in np.argsort(-fractions, kind="stable"):
        row, column = rows[place], columns[place]
        if short[row] > 0 and room[column] > 0:
            whole[row, column] += 1
            short[row] -= 1
            room[column] -= 1
    for row in np.repeat(np.arange(len(short)), short):
        room[_augment(whole, allowed, int(row), room)] -= 1
    return whole


def _augment(whole: Counts, allowed: NDArray[np.bool_], row: int, room: Counts) -> int:
    """Give the row one more; returns the class of which one more is used in all.

    The shortest chain of exchanges between rows (an augmenting path), by breadth-first search.
    """
    taker = np.full(len(room), -1)  # the row that would take the class
    giver_of = np.full(len(whole), -1)  # the class that the row would give
    queue, seen = [row], np.arange(len(whole)) == row
    for taking in queue:
        for column in np.flatnonzero(allowed[taking] & (taker < 0)):
            taker[column] = taking
            if room[column] > 0:
                _exchange(whole, taker, giver_of, row, int(column))
                return int(column)
            givers = np.flatnonzero((whole[:, column] > 0) & ~seen)
            seen[givers], giver_of[givers] = True, column
            queue += givers.tolist()
    raise ValueError(f"row {row} cannot have its samples: the sums contradict each other")


def _exchange(
    whole: Counts, taker: NDArray[np.int64], giver_of: NDArray[np.int64], row: int, column: int
) -> None:
    """Carry out the chain that ends at this class, from its end to the row."""
    while True:
        taking = int(taker[column])
        whole[taking, column] += 1
        if taking == row:
            return
        column = int(giver_of[taking])
        whole[taking, column] -= 1
