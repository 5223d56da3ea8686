"""AFFECT: adaptive evolutionary clustering of the clients, as Fed-REACT uses it.

Papers: Xu, Kliger, Hero 2014, "Adaptive evolutionary clustering", Data Mining and Knowledge
Discovery 28; Fed-REACT, section 2 and Fed-REACT, appendix C. Shapes: N clients, C clusters. W,
the similarity of this round, and ψ, its estimate, are [N, N] float32; W is symmetric.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.maths.clustering import Labels, Matrix, find_clusters, spans
from fedproto_app.maths.threads import in_threads

Table = NDArray[np.float64]

ROWS = 64  # rows at a time: float64 of 10,000 clients then fits in the processor's cache
BLENDED_ROWS = 8  # rows at a time: few enough to reuse memory; no sum depends on the number


class BlockStatistics(NamedTuple):
    """Mean and variance of W in each block of two clusters (Fed-REACT, eqs. 28 to 30).

    mean, variance: [C, C], within a cluster without the diagonal (0 for a cluster of one client,
    which has no such entry). diagonal_mean, diagonal_variance: [C], over the cluster's clients;
    Fed-REACT, eq. 29 prints C instead of the cluster's size.
    """

    mean: Table
    variance: Table
    diagonal_mean: Table
    diagonal_variance: Table


class Affect(NamedTuple):
    """labels: [N], the clusters of psi. alpha: in [0, 1]. psi: [N, N], the estimate."""

    labels: Labels
    alpha: float
    psi: Matrix


def affect(
    past: Matrix | None,
    current: Matrix,
    clusters: int,
    iterations: int = 5,
    start: Labels | None = None,
    unbiased: bool = False,
) -> Affect:
    """Return α_t, ψ̂_t and its clusters by a round of AFFECT (Fed-REACT, Algorithm 4).

    past: ψ̂_{t−1}, NaN for two clients without a common past, whose ψ̂ is W; None in the first
    round, where α = 0 and ψ̂ = W. current: W_t. clusters: C, or 0 to choose it by silhouette. The
    first clusters are `start`, [N] labels 0, 1, … without a gap, or by default the clusters of W
    alone (α = 0). Each iteration estimates α from the last clusters and clusters the new ψ̂, so the
    three results belong together. It stops when the clusters repeat. unbiased: use the sample
    variance. The toolbox of AFFECT's authors does so, and starts from the last round's clusters.
    psi may be `current` itself.
    """
    alpha, psi = 0.0, current
    if past is None:
        return Affect(find_clusters(psi, clusters), alpha, psi)
    room, blended = np.empty(current.shape), np.empty_like(current)  # reused in each iteration
    labels = find_clusters(psi, clusters, room) if start is None else start
    for _ in range(iterations):
        alpha = forgetting_factor(past, current, labels, unbiased)
        psi = blend(past, current, alpha, blended)
        before, labels = labels, find_clusters(psi, clusters, room)
        if np.array_equal(before, labels):
            break
    return Affect(labels, alpha, psi)


def remember(past: Matrix | None, current: Matrix, clusters: int, share: float | Matrix) -> Affect:
    """Return ψ̂_t for a given share of the past (Fed-REACT, eq. 3), and its clusters.

    past, current, clusters: as in `affect`. share: α_t, a number or a value for every two clients,
    [N, N]. alpha of the result is the largest share (of the clients that were present longest); 0
    without a past.
    """
    if past is None:
        return Affect(find_clusters(current, clusters), 0.0, current)
    psi = blend(past, current, share)
    return Affect(find_clusters(psi, clusters), float(np.max(share)), psi)


def forgetting_factor(
    past: Matrix, current: Matrix, labels: Labels, unbiased: bool = False
) -> float:
    """Return α_t = Σ Var / Σ [(ψ̂_{t−1} − E)² + Var] over all pairs (Fed-REACT, eq. 27), in [0, 1].

    E and Var are the means and variances of W_t = `current` in its blocks (`block_statistics`).
    Entries where `past` is NaN count in E and Var but not in the sums. 0/0 gives 0: then W_t equals
    its mean and the past, or there is no past, and every α gives the same ψ̂.
    """
    statistics = block_statistics(current, labels, unbiased)
    order = np.argsort(labels, kind="stable")

    def sums(rows: slice) -> tuple[float, float]:
        values = _by_cluster(past, order, rows)
        has_past = ~np.isnan(values)
        expected = _spread(statistics.mean, statistics.diagonal_mean, labels, order, rows)
        drift = float(np.sum((values - expected) ** 2, where=has_past))
        variance = _spread(statistics.variance, statistics.diagonal_variance, labels, order, rows)
        return drift, float(np.sum(variance, where=has_past))

    noise = drift = 0.0
    for more_drift, more_noise in in_threads(sums, spans(len(past), ROWS)):
        drift, noise = drift + more_drift, noise + more_noise
    return noise / (drift + noise) if noise > 0 else 0.0


def block_statistics(current: Matrix, labels: Labels, unbiased: bool = False) -> BlockStatistics:
    """Return Fed-REACT, eqs. 28 to 30 for W = `current` [N, N] and labels [N], all of 0 … C−1 used.

    Variances are population variances, or with `unbiased` sample variances, where the mean costs a
    degree of freedom: a block of two clusters with c and d clients has cd − 1, a diagonal c − 1. A
    block within a cluster has c(c−1)/2 distinct entries, each twice, so its sum of squares is
    divided by c(c−1) − 2. A block with a single distinct entry has variance 0.
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    entries = np.outer(sizes, sizes) - np.diag(sizes)
    total = _block_sums(lambda rows: _by_cluster(current, order, rows), labels[order])
    mean = total / np.maximum(entries, 1)

    diagonal = current.diagonal().astype(np.float64)
    diagonal_mean = np.bincount(labels, diagonal) / sizes
    spent = 1 if unbiased else 0
    free = entries - spent * (1 + np.eye(len(sizes)))
    diagonal_squares = np.bincount(labels, (diagonal - diagonal_mean[labels]) ** 2)
    diagonal_variance = diagonal_squares / np.maximum(sizes - spent, 1)

    def squares(rows: slice) -> Table:
        values = _by_cluster(current, order, rows)
        return (values - _spread(mean, diagonal_mean, labels, order, rows)) ** 2

    variance = _block_sums(squares, labels[order]) / np.maximum(free, 1)
    return BlockStatistics(mean, variance, diagonal_mean, diagonal_variance)


def blend(
    past: Matrix, current: Matrix, alpha: float | Matrix, room: Matrix | None = None
) -> Matrix:
    """Return ψ̂_t = α·ψ̂_{t−1} + (1 − α)·W_t (Fed-REACT, eqs. 3 and 4), [N, N]; W_t where the past is
    NaN.

    alpha: a number, or a value for every two clients, [N, N]. room: memory for the result, [N, N].
    """
    psi = np.empty_like(current) if room is None else room

    def fill(rows: slice) -> None:
        share = alpha if isinstance(alpha, float) else alpha[rows]
        mixed = share * past[rows] + (1 - share) * current[rows]
        psi[rows] = np.where(np.isnan(past[rows]), current[rows], mixed)

    for _ in in_threads(fill, spans(len(psi), BLENDED_ROWS)):
        pass
    return psi


def _by_cluster(matrix: Matrix, order: NDArray[np.intp], rows: slice) -> Table:
    """Return some rows of the matrix after sorting rows and columns by `order`, in float64."""
    return matrix[order[rows]][:, order].astype(np.float64)


def _spread(
    table: Table, diagonal: Table, labels: Labels, order: NDArray[np.intp], rows: slice
) -> Table:
    """Expand values by block [C, C] and diagonal [C] to rows [n, N] of the sorted matrix."""
    ordered = labels[order]
    spread = np.repeat(table[ordered[rows]], np.bincount(labels), axis=1)
    positions = np.arange(rows.start, rows.stop)
    spread[positions - rows.start, positions] = diagonal[ordered[rows]]
    return spread


def _block_sums(values_of: Callable[[slice], Table], ordered: Labels) -> Table:
    """Return the sum of each block without the diagonal, [C, C].

    values_of: returns some rows of a matrix in the order of the clusters, whose diagonal is then
    overwritten. ordered: the sorted labels, [N].
    """
    sizes = np.bincount(ordered)
    sums = np.zeros((len(sizes), len(sizes)))

    def of_rows(rows: slice) -> tuple[Labels, Table]:
        values = values_of(rows)
        np.fill_diagonal(values[:, rows.start :], 0)
        by_column = np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=1)  # (n, C)
        present, begins = np.unique(ordered[rows], return_index=True)
        return present, np.add.reduceat(by_column, begins, axis=0)

    for present, more in in_threads(of_rows, spans(len(ordered), ROWS)):
        sums[present] += more
    return sums
