"""AFFECT on matrices worked by hand, and against plain loops over the paper's equations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedproto_app.maths.clustering import agglomerate, by_first_appearance, similarity
from fedproto_app.strategies.fed_react import strategy as module
from fedproto_app.strategies.fed_react.strategy import (
    affect,
    blend,
    block_statistics,
    forgetting_factor,
)

Matrix = NDArray[np.float32]
Labels = NDArray[np.int64]

# Clients 0 and 2 are cluster 0, clients 1, 3 and 4 cluster 1. Eighths are exact in float32.
LABELS = np.array([0, 1, 0, 1, 1])
EIGHTHS = (
    np.array(
        [[8, 1, 6, 2, 0], [1, 8, 1, 7, 5], [6, 1, 4, 1, 1], [2, 7, 1, 8, 3], [0, 5, 1, 3, 2]],
        np.float32,
    )
    / 8
)


def test_block_statistics_by_hand() -> None:
    """Between the clusters lie 1, 2, 0, 1, 1, 1: mean 1, variance 1/3. Within cluster 1 lie 7, 5
    and 3, each twice: mean 5, variance 8/3. Its diagonal has 8, 8, 2: mean 6, variance 8."""
    statistics = block_statistics(EIGHTHS, LABELS)
    np.testing.assert_allclose(statistics.mean * 8, [[6, 1], [1, 5]])
    np.testing.assert_allclose(statistics.variance * 64, [[0, 1 / 3], [1 / 3, 8 / 3]])
    np.testing.assert_allclose(statistics.diagonal_mean * 8, [6, 6])
    np.testing.assert_allclose(statistics.diagonal_variance * 64, [4, 8])


def test_the_forgetting_factor_by_hand() -> None:
    """Σ Var = 12·1/3 + 6·8/3 + 2·4 + 3·8 = 52 in squared eighths. Where the past is W, (ψ̂ − E)²
    adds up to as much, and where it is 0, to 12·1 + 2·36 + 6·25 + 2·36 + 3·36 = 414."""
    assert forgetting_factor(EIGHTHS, EIGHTHS, LABELS) == pytest.approx(0.5)
    zeros = np.zeros_like(EIGHTHS)
    assert forgetting_factor(zeros, EIGHTHS, LABELS) == pytest.approx(52 / (52 + 414))


def test_sample_variances_by_hand() -> None:
    """Within cluster 1: 7, 5 and 3 have the sample variance (4 + 0 + 4)/2 = 4 = 16/(3·2 − 2).
    Between: 2/(2·3 − 1). Cluster 0 has one number twice: 0. The diagonals: 8/1 and 24/2."""
    statistics = block_statistics(EIGHTHS, LABELS, unbiased=True)
    np.testing.assert_allclose(statistics.variance * 64, [[0, 2 / 5], [2 / 5, 4]])
    np.testing.assert_allclose(statistics.diagonal_variance * 64, [8, 12])
    assert np.array_equal(statistics.mean, block_statistics(EIGHTHS, LABELS).mean)
    noise = 12 * 2 / 5 + 6 * 4 + 2 * 8 + 3 * 12  # drift from W is what it was: 52
    assert forgetting_factor(EIGHTHS, EIGHTHS, LABELS, True) == pytest.approx(noise / (52 + noise))
    alone = block_statistics(EIGHTHS, np.array([0, 1, 0, 0, 0]), unbiased=True)
    assert alone.variance[1, 1] == alone.diagonal_variance[1] == 0


def test_no_evidence_is_a_forgetting_factor_of_zero() -> None:
    """0/0: with a client a cluster, Var = 0 and E = W, and the past is W too."""
    assert forgetting_factor(EIGHTHS, EIGHTHS, np.arange(5)) == 0
    nobody_known = np.full_like(EIGHTHS, np.nan)
    assert forgetting_factor(nobody_known, EIGHTHS, LABELS) == 0
    tenths = np.full((4, 4), 0.1, np.float32)  # a mean of equal numbers is that number exactly
    assert forgetting_factor(tenths, tenths, np.array([0, 0, 0, 1])) == 0


def naive_alpha(past: Matrix, current: Matrix, labels: Labels) -> tuple[float, Matrix, Matrix]:
    """Fed-REACT, eqs. 27 to 30 as they are written, with lists and loops: α, E, Var."""
    clients = range(len(labels))
    expected, variance = np.zeros(current.shape), np.zeros(current.shape)
    noise = total = 0.0
    for i in clients:
        for j in clients:
            block = [
                float(current[k, m])
                for k in clients
                for m in clients
                if labels[k] == labels[i] and labels[m] == labels[j] and (k == m) == (i == j)
            ]
            expected[i, j] = sum(block) / len(block)
            variance[i, j] = sum((x - expected[i, j]) ** 2 for x in block) / len(block)
            if past[i, j] == past[i, j]:
                noise += variance[i, j]
                total += (past[i, j] - expected[i, j]) ** 2 + variance[i, j]
    return (noise / total if total else 0.0), expected, variance


@given(
    clients=st.integers(1, 9),
    clusters=st.integers(1, 9),
    unknown=st.integers(0, 3),
    rows=st.integers(1, 10),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_statistics_and_factor_are_those_of_plain_loops(
    clients: int, clusters: int, unknown: int, rows: int, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    labels = by_first_appearance(generator.integers(clusters, size=clients))
    draw = generator.uniform(-1, 1, (2, clients, clients)).astype(np.float32)
    past, current = draw + draw.transpose(0, 2, 1)
    past[:unknown] = past[:, :unknown] = np.nan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS", rows)
        statistics = block_statistics(current, labels)
        alpha = forgetting_factor(past, current, labels)
    expected_alpha, mean, variance = naive_alpha(past, current, labels)

    assert 0 <= alpha <= 1
    assert alpha == pytest.approx(expected_alpha, abs=1e-12)
    apart = ~np.eye(clients, dtype=bool)
    for table, diagonal, full in (
        (statistics.mean, statistics.diagonal_mean, mean),
        (statistics.variance, statistics.diagonal_variance, variance),
    ):
        np.testing.assert_allclose(table[labels][:, labels][apart], full[apart], atol=1e-12)
        np.testing.assert_allclose(diagonal[labels], full.diagonal(), atol=1e-12)


TRUTH = np.repeat([0, 1, 2], (6, 8, 10))


def noisy_round(seed: int, noise: float = 4.0) -> Matrix:
    """W of heads around one centre a group, with much noise of its own each round."""
    heads = np.random.default_rng(0).normal(size=(3, 40))[TRUTH]
    heads = heads + noise * np.random.default_rng(seed).normal(size=heads.shape)
    return similarity(heads.astype(np.float32), "cosine")


@pytest.mark.parametrize("iterations", [1, 2, 3, 4, 5, 50])
def test_iterations_are_those_of_algorithm_4(iterations: int) -> None:
    """Compared with the loop without a stop, on rounds where α moves the clusters."""
    moved = 0
    for seed in range(2, 12):
        past, current = noisy_round(1), noisy_round(seed)
        copies, alpha = (past.copy(), current.copy()), 0.0
        for _ in range(iterations):
            labels = agglomerate(blend(past, current, alpha), 3)
            alpha = forgetting_factor(past, current, labels)
        result = affect(past, current, 3, iterations)
        assert 0 < result.alpha < 1
        assert result.alpha == alpha
        assert np.array_equal(result.psi, blend(past, current, alpha))
        assert np.array_equal(result.labels, agglomerate(result.psi, 3))
        assert all(map(np.array_equal, (past, current), copies))
        moved += not np.array_equal(result.labels, agglomerate(current, 3))
    assert moved > 5


def test_the_toolbox_starts_from_given_clusters_by_hand() -> None:
    """W pairs clients 02 and 13, the past and the start 01 and 23. By the start each cluster has
    one number, 0, and between them stand ½, 0, 0, ½: mean ¼, sample variance 4·(1/16)/3 = 1/12.
    Σ Var = 8/12. The past differs within by 1, four times, between by ¼, eight times: 4½.
    α = (2/3) / (4½ + 2/3) = 4/31. ψ̂ of 01 is then 4/31, of 02 ½·27/31: W's clusters, where W
    has mean ½ and variance 0 within, 0 and 0 between: α = 0."""
    current = np.eye(4, dtype=np.float32)
    current[[0, 2, 1, 3], [2, 0, 3, 1]] = 0.5
    past = np.kron(np.eye(2), np.ones((2, 2))).astype(np.float32)
    start = np.array([0, 0, 1, 1])
    result = affect(past, current, 2, 1, start, True)
    assert result.alpha == pytest.approx(4 / 31)
    assert result.labels.tolist() == [0, 1, 0, 1]
    assert result.psi[0, 1] == pytest.approx(4 / 31)
    assert result.psi[0, 2] == pytest.approx(27 / 62)
    two = affect(past, current, 2, 2, start, True)
    assert two.alpha == 0
    assert np.array_equal(two.psi, current)
    assert affect(None, current, 2, 5, start).labels.tolist() == [0, 1, 0, 1]  # no past, no start


def test_newcomers_have_this_rounds_similarity_and_do_not_weigh() -> None:
    past, current = noisy_round(1), noisy_round(2)
    gaps = past.copy()
    gaps[[3, 20]] = gaps[:, [3, 20]] = np.nan
    labels, alpha, psi = affect(gaps, current, 3)
    finite = ~np.isnan(gaps)
    assert np.array_equal(psi[~finite], current[~finite])
    assert np.array_equal(psi[finite], blend(past, current, alpha)[finite])
    assert alpha == forgetting_factor(gaps, current, labels) != affect(past, current, 3).alpha


def test_a_first_round_and_a_round_of_newcomers_are_the_snapshot() -> None:
    current = noisy_round(2)
    for past in (None, np.full_like(current, np.nan)):
        labels, alpha, psi = affect(past, current, 3)
        assert alpha == 0
        assert np.array_equal(psi, current)
        assert np.array_equal(labels, agglomerate(current, 3))


def test_the_silhouette_may_choose_the_number_of_clusters() -> None:
    past, current = noisy_round(1, noise=0.5), noisy_round(2, noise=0.5)
    assert affect(past, current, 0).labels.tolist() == TRUTH.tolist()


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("clusters", [0, 1, 3])
def test_hardly_any_clients(clients: int, clusters: int) -> None:
    current = np.eye(clients, dtype=np.float32)
    labels, alpha, psi = affect(current, current, clusters)
    assert alpha == 0
    assert np.array_equal(psi, current)
    assert labels.max() + 1 == (min(clusters, clients) if clusters else 1)
