"""Dealing sequences: nothing twice, equal sizes, mixes close to the clusters' distributions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.sequences.partition import (
    Holding,
    cluster_sizes,
    deal_sequences,
    draw_mixes,
)
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import ClusterSettings, DataSettings
from tests.data.sequences.made_sequences import measured, pool_of


def deal(pool: SequencePool, seed: int = 0, max_clients: int = 0, **clusters: Any) -> list[Holding]:
    settings = DataSettings(
        source="mine:load", max_clients=max_clients, clusters=ClusterSettings(**clusters)
    )
    return deal_sequences(pool, settings, seed)


def balanced(classes: int, per_class: int) -> SequencePool:
    """Labels in random order."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(classes), per_class))
    steps = np.zeros((1, 1), np.float32)
    names = tuple(str(label) for label in range(classes))
    return SequencePool(("x",), names, [steps] * len(labels), labels)


def shares(pool: SequencePool, holdings: list[Holding]) -> NDArray[np.float64]:
    """Return each client's mix of labels, [N, C]."""
    counts = [
        np.bincount(pool.targets[holding.places], minlength=len(pool.classes))
        for holding in holdings
    ]  # type: ignore[arg-type]
    table = np.array(counts, dtype=np.float64)
    return table / table.sum(axis=1, keepdims=True)


@pytest.mark.parametrize(
    ("clients", "sizes"),
    [(10, [3, 3, 4]), (50, [16, 16, 18]), (100, [33, 33, 34]), (3, [1, 1, 1])],
)
def test_the_papers_sizes(clients: int, sizes: list[int]) -> None:
    assert cluster_sizes(clients, 3) == sizes


@given(
    counts=st.lists(st.integers(0, 30), min_size=2, max_size=5),
    clients=st.integers(1, 8),
    beta=st.sampled_from([1e-6, 0.1, 1.5, 100.0]),
    seed=st.integers(0, 99),
)
def test_no_sequence_is_dealt_twice_and_all_have_the_same_number(
    counts: list[int], clients: int, beta: float, seed: int
) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    names = tuple(str(label) for label in range(len(counts)))
    pool = SequencePool(("x",), names, [np.zeros((1, 1), np.float32)] * len(labels), labels)
    if len(labels) < clients:
        with pytest.raises(DataError, match=f"clients = {clients}: .* enough for at most"):
            deal(pool, seed, clients=clients, clusters=1, beta=beta)
        return
    clusters = min(3, clients)
    holdings = deal(pool, seed, clients=clients, clusters=clusters, beta=beta)
    dealt = np.concatenate([holding.places for holding in holdings])
    assert len(np.unique(dealt)) == len(dealt)
    assert {len(holding.places) for holding in holdings} == {len(labels) // clients}
    assert all((np.diff(holding.places) > 0).all() for holding in holdings)


def test_names_and_groups() -> None:
    pool = balanced(3, 20)
    holdings = deal(pool, clients=5, clusters=2)
    assert [holding.name for holding in holdings] == [f"client-00{n}" for n in range(5)]
    assert [holding.group for holding in holdings] == ["cluster-0"] * 2 + ["cluster-1"] * 3


def test_with_enough_sequences_clients_have_their_clusters_mix() -> None:
    pool, settings = balanced(5, 2000), ClusterSettings(samples=200)
    expected = draw_mixes(5, settings, numpy_stream(7, "clusters"))
    mixes = shares(pool, deal(pool, 7, samples=200))
    assert np.abs(mixes - expected).max() < 0.01  # 200 sequences: a fraction of one is 0.005
    assert len(np.unique(expected.round(9), axis=0)) == 3


def test_where_all_are_dealt_clusters_keep_their_odds() -> None:
    """If a class is scarce, the ratios of the clusters' odds are still as drawn."""
    pool, settings = balanced(3, 4000), ClusterSettings(clients=4, clusters=2)
    drawn = draw_mixes(3, settings, numpy_stream(1, "clusters"))[[0, 3]]
    mixes = shares(pool, deal(pool, 1, clients=4, clusters=2))[[0, 3]]

    def odds(mix: NDArray[np.float64]) -> float:
        return float(mix[0, 0] * mix[1, 1] / (mix[0, 1] * mix[1, 0]))

    assert odds(mixes) == pytest.approx(odds(drawn), rel=0.05)


@pytest.mark.parametrize(
    ("beta", "low", "high"), [(0.01, 0.9, 1.0), (1.0, 0.26, 0.33), (1000.0, 0.1, 0.15)]
)
def test_a_small_beta_concentrates(beta: float, low: float, high: float) -> None:
    """The largest share of ten classes, over 60 drawn clusters; for β = 1 its mean is H₁₀ / 10."""
    pool = balanced(10, 2000)
    largest = [
        shares(pool, deal(pool, seed, beta=beta, samples=50)).max(axis=1).mean()
        for seed in range(20)
    ]
    assert low <= np.mean(largest) <= high


def test_the_deal_is_the_seeds() -> None:
    pool = balanced(3, 50)
    places = [[holding.places.tolist() for holding in deal(pool, seed)] for seed in (0, 0, 1)]
    assert places[0] == places[1] != places[2]


def test_every_cluster_permutes_the_classes_differently() -> None:
    pool = balanced(10, 60)
    plain, renamed = deal(pool), deal(pool, renamed=True)
    for holding, renamed_holding in zip(plain, renamed, strict=True):
        assert holding.places.tolist() == renamed_holding.places.tolist()
        assert holding.names is None
        assert renamed_holding.names is not None
        assert sorted(renamed_holding.names) == list(range(10))
    by_group: dict[str, set[tuple[int, ...]]] = {}
    for holding in renamed:
        by_group.setdefault(holding.group, set()).add(tuple(holding.names))  # type: ignore[arg-type]
    assert [len(names) for names in by_group.values()] == [1, 1, 1]
    assert len(set.union(*by_group.values())) == 3


def test_more_clusters_than_orders_of_the_classes() -> None:
    pool = pool_of([0, 1, 2] * 20)
    dealt = deal(pool, clients=6, clusters=6, renamed=True)
    names = {tuple(holding.names) for holding in dealt}
    assert len(names) == 6
    with pytest.raises(DataError, match=r"clusters = 7: with data\.clusters\.renamed at most 6"):
        deal(pool, clients=7, clusters=7, renamed=True)


def test_given_clusters_keep_their_names() -> None:
    with pytest.raises(
        ValueError, match=r"renamed = true: only with data\.clusters\.scheme = 'diri"
    ):
        deal(pool_of([0, 1]), scheme="given", renamed=True)


def test_the_first_clients_only() -> None:
    pool = balanced(3, 50)
    assert [holding.name for holding in deal(pool, max_clients=2)] == ["client-000", "client-001"]
    limited, unlimited = deal(pool, max_clients=1)[0], deal(pool)[0]
    np.testing.assert_array_equal(limited.places, unlimited.places)


def test_too_few_for_so_many_samples() -> None:
    with pytest.raises(
        DataError,
        match=r"mine:load has 150 sequences, enough .* 9 clients with .*samples = 16",
    ):
        deal(balanced(3, 50), samples=16)
    assert len(deal(balanced(3, 50), samples=15)[0].places) == 15


def test_sequences_without_a_label_are_not_dealt() -> None:
    pool = balanced(3, 50)
    partly_labelled = replace(pool, targets=np.where(np.arange(150) % 5 == 0, -1, pool.targets))
    holdings = deal(partly_labelled, clients=4, clusters=2)
    assert [len(holding.places) for holding in holdings] == [30] * 4
    assert (
        partly_labelled.targets[np.concatenate([holding.places for holding in holdings])] >= 0
    ).all()
    with pytest.raises(DataError, match="120 sequences with a label, enough for at most 7 clients"):
        deal(partly_labelled, samples=16)


def test_real_targets_have_no_mix() -> None:
    with pytest.raises(DataError, match=r"scheme = 'dirichlet': .*set data\.clusters\.scheme = 'g"):
        deal(measured(40))


def test_given_clients_and_groups() -> None:
    pool = pool_of([0, 1, 2, 0], ["bob", "ann", "bob", "cid"], {"bob": "left", "dan": "right"})
    holdings = deal(pool, scheme="given")
    assert [(holding.name, holding.group, holding.places.tolist()) for holding in holdings] == [
        ("ann", "", [1]),
        ("bob", "left", [0, 2]),
        ("cid", "", [3]),
        ("dan", "right", []),
    ]
    assert [holding.name for holding in deal(pool, scheme="given", max_clients=2)] == ["ann", "bob"]


def test_without_clients_a_single_client_has_all_sequences() -> None:
    (holding,) = deal(pool_of([0, 1, 2]), scheme="given")
    assert (holding.name, holding.places.tolist()) == ("mine", [0, 1, 2])
