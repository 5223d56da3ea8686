"""Merges by hand and against scipy's linkage, ties and all."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from fedproto_app.maths.clustering import merges


def symmetric(clients: int, seed: int, levels: int | None = None) -> NDArray[np.float32]:
    """Random similarities; of so many levels, so that many are equal."""
    draw = np.random.default_rng(seed).uniform(-1, 1, (clients, clients)).astype(np.float32)
    upper = np.triu(np.round(draw * levels) / levels if levels else draw, 1).astype(np.float32)
    return upper + upper.T + np.eye(clients, dtype=np.float32)


def merged_sets(pairs: NDArray[np.int64], clients: int) -> list[frozenset[int]]:
    """Who is in the cluster that each merge makes."""
    cluster_of = {client: frozenset([client]) for client in range(clients)}
    merged = []
    for first, second in pairs.tolist():
        union = cluster_of[first] | cluster_of[second]
        assert not cluster_of[first] & cluster_of[second]
        merged.append(union)
        cluster_of |= dict.fromkeys(union, union)
    return merged


def sets_of_scipy(similar: NDArray[np.float32]) -> list[frozenset[int]]:
    apart = (1 - similar).astype(np.float64)
    nodes = [frozenset([client]) for client in range(len(similar))]
    for first, second, *_ in linkage(squareform(apart, checks=False), "average"):
        nodes.append(nodes[int(first)] | nodes[int(second)])
    return nodes[len(similar) :]


def test_four_clients_by_hand() -> None:
    """0-2 are 0.1 apart; then 1-3, 0.3; the two pairs (0.5 + 0.7 + 0.6 + 0.6)/4 = 0.6."""
    apart = np.array([[0, 5, 1, 7], [5, 0, 6, 3], [1, 6, 0, 6], [7, 3, 6, 0]], np.float32) / 10
    pairs = merges(1 - apart)
    assert [set(pair) for pair in pairs[:2].tolist()] == [{0, 2}, {1, 3}]
    assert merged_sets(pairs, 4)[-1] == {0, 1, 2, 3}


@pytest.mark.parametrize("clients", [0, 1, 2])
def test_hardly_any_clients(clients: int) -> None:
    assert merges(np.eye(clients, dtype=np.float32)).tolist() == [[0, 1]][: clients // 2]


@given(
    clients=st.integers(2, 40),
    seed=st.integers(0, 2**32 - 1),
    levels=st.sampled_from([None, 1, 3, 16]),
)
@settings(max_examples=80, deadline=None)
def test_merges_are_scipys_also_where_distances_are_equal(
    clients: int, seed: int, levels: int | None
) -> None:
    similar = symmetric(clients, seed, levels)
    assert merged_sets(merges(similar), clients) == sets_of_scipy(similar)


def test_hundreds_of_clients_as_in_scipy() -> None:
    similar = symmetric(400, 0)
    assert merged_sets(merges(similar), 400) == sets_of_scipy(similar)


def test_room_is_used_and_what_goes_in_stays() -> None:
    similar, room = symmetric(30, 1), np.empty((30, 30))
    similar_before = similar.copy()
    assert np.array_equal(merges(similar, room), merges(similar))
    assert np.array_equal(similar, similar_before)
    assert np.array_equal(merges(similar, room), merges(similar))


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_what_is_no_number_is_refused(broken: float) -> None:
    similar = symmetric(5, 1)
    similar[1, 2] = similar[2, 1] = broken
    with pytest.raises(ValueError, match="similarities must be finite"):
        merges(similar)
