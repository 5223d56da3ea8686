"""AFFECT: adaptive evolutionary clustering of the clients, as Fed-REACT uses it.

Papers: Xu, Kliger, Hero 2014, "Adaptive evolutionary clustering", Data Mining and Knowledge
Discovery 28; Fed-REACT, section 2 and Fed-REACT, appendix C. Shapes: N clients, C clusters. W,
the similarity of this round, and ψ, its estimate, are [N, N] float32; W is symmetric.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedproto_app.maths.clustering import Labels, Matrix, find_clusters, spans

Table = NDArray[np.float64]

ROWS = 64  # at a time: float64 of 10,000 clients then stays in the processor's cache


class BlockStatistics(NamedTuple):
    """Mean and population variance of W in each block of two clusters (Fed-REACT, eqs. 28 to 30).

    mean, variance: [C, C], within a cluster without the diagonal (0 for a cluster of one client,
    which has no such entry). diagonal_mean, diagonal_variance: [C], over the cluster's clients;
    Fed-REACT, eq. 29 has C where the size of the cluster is meant.
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


def affect(past: Matrix | None, current: Matrix, clusters: int, iterations: int = 5) -> Affect:
    """One round of AFFECT (Fed-REACT, Algorithm 4): α_t, ψ̂_t and its clusters.

    past: ψ̂_{t−1}, NaN for two clients without a common past, whose ψ̂ is W; None in the first
    round, where α = 0 and ψ̂ = W. current: W_t. clusters: C, or 0 for as many as the silhouette
    says. The first clusters are those of W alone (α = 0); each iteration estimates α from the last
    clusters and clusters the ψ̂ that it gives, so that the three results belong together. Once the
    clusters repeat, so does α, and it stops. psi may be `current` itself.
    """
    alpha, psi = 0.0, current
    labels = find_clusters(psi, clusters)
    if past is None:
        return Affect(labels, alpha, psi)
    for _ in range(iterations):
        alpha = forgetting_factor(past, current, labels)
        psi = blend(past, current, alpha)
        before, labels = labels, find_clusters(psi, clusters)
        if np.array_equal(before, labels):
            break
    return Affect(labels, alpha, psi)


def forgetting_factor(past: Matrix, current: Matrix, labels: Labels) -> float:
    """α_t = Σ Var / Σ [(ψ̂_{t−1} − E)² + Var] over all pairs (Fed-REACT, eq. 27), in [0, 1].

    E and Var are those of W_t = `current` in its blocks. Entries where `past` is NaN count in E and
    Var but not in the sums. 0/0 gives 0: then W_t equals its own mean and the past, or there is no
    past, and every α gives the same ψ̂.
    """
    statistics = block_statistics(current, labels)
    order = np.argsort(labels, kind="stable")
    noise = drift = 0.0
    for rows, values in _by_cluster(past, order):
        known = ~np.isnan(values)
        expected = _spread(statistics.mean, statistics.diagonal_mean, labels, order, rows)
        drift += float(np.sum((values - expected) ** 2, where=known))
        variance = _spread(statistics.variance, statistics.diagonal_variance, labels, order, rows)
        noise += float(np.sum(variance, where=known))
    return noise / (drift + noise) if noise > 0 else 0.0


def block_statistics(current: Matrix, labels: Labels) -> BlockStatistics:
    """Fed-REACT, eqs. 28 to 30 for W = `current` [N, N] and labels [N], each of 0 … C−1 taken."""
    order = np.argsort(labels, kind="stable")
    mean = _block_means(_by_cluster(current, order), labels[order])

    diagonal = current.diagonal().astype(np.float64)
    sizes = np.bincount(labels)
    diagonal_mean = np.bincount(labels, diagonal) / sizes
    diagonal_variance = np.bincount(labels, (diagonal - diagonal_mean[labels]) ** 2) / sizes

    squares = (
        (rows, (values - _spread(mean, diagonal_mean, labels, order, rows)) ** 2)
        for rows, values in _by_cluster(current, order)
    )
    variance = _block_means(squares, labels[order])
    return BlockStatistics(mean, variance, diagonal_mean, diagonal_variance)


def blend(past: Matrix, current: Matrix, alpha: float) -> Matrix:
    """ψ̂_t = α·ψ̂_{t−1} + (1 − α)·W_t (Fed-REACT, eqs. 3 and 4), [N, N]; W_t without a past (NaN)."""
    psi = np.empty_like(current)
    for rows in spans(len(psi), ROWS):
        mixed = alpha * past[rows] + (1 - alpha) * current[rows]
        psi[rows] = np.where(np.isnan(past[rows]), current[rows], mixed)
    return psi


def _by_cluster(matrix: Matrix, order: NDArray[np.intp]) -> Iterator[tuple[slice, Table]]:
    """The matrix with rows and columns in the given order, some rows at a time, in float64."""
    for rows in spans(len(matrix), ROWS):
        yield rows, matrix[order[rows]][:, order].astype(np.float64)


def _spread(
    table: Table, diagonal: Table, labels: Labels, order: NDArray[np.intp], rows: slice
) -> Table:
    """[C, C] and [C] → the rows [n, N] of the matrix, in the given order, that they describe."""
    ordered = labels[order]
    spread = np.repeat(table[ordered[rows]], np.bincount(labels), axis=1)
    positions = np.arange(rows.start, rows.stop)
    spread[positions - rows.start, positions] = diagonal[ordered[rows]]
    return spread


def _block_means(parts: Iterable[tuple[slice, Table]], ordered: Labels) -> Table:
    """The mean of each block without the diagonal: [C, C].

    parts: rows of a matrix in the order of the clusters, overwritten on the diagonal. ordered: [N],
    the sorted labels.
    """
    sizes = np.bincount(ordered)
    sums = np.zeros((len(sizes), len(sizes)))
    for rows, values in parts:
        np.fill_diagonal(values[:, rows.start :], 0)
        by_column = np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=1)  # (n, C)
        present, begins = np.unique(ordered[rows], return_index=True)
        sums[present] += np.add.reduceat(by_column, begins, axis=0)
    entries = np.outer(sizes, sizes) - np.diag(sizes)
    return sums / np.maximum(entries, 1)
