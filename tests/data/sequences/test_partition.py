"""Dealing sequences: nothing twice, equal sizes, mixes close to the clusters' distributions.
Then the split of each client's sequences into parts."""

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
    Split,
    cluster_sizes,
    deal_sequences,
    draw_mixes,
    split_holding,
    why_refused,
)
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import ClusterSettings, DataSettings, SequenceSettings
from tests.data.sequences.made_sequences import measured, pool_of


def deal(pool: SequencePool, seed: int = 0, max_clients: int = 0, **clusters: Any) -> list[Holding]:
    dealt = ClusterSettings(**clusters)
    settings = DataSettings(source="mine:load", max_clients=max_clients, clusters=dealt)
    return deal_sequences(pool, settings, seed)


def labelled(labels: NDArray[np.int64], classes: int) -> SequencePool:
    steps, names = np.zeros((1, 1), np.float32), tuple(map(str, range(classes)))
    return SequencePool(("x",), names, [steps] * len(labels), labels)


def balanced(classes: int, per_class: int) -> SequencePool:
    """Labels in random order."""
    labels = np.repeat(np.arange(classes), per_class)
    return labelled(np.random.default_rng(0).permutation(labels), classes)


def shares(pool: SequencePool, holdings: list[Holding]) -> NDArray[np.float64]:
    """Return each client's mix of labels, [N, C]."""
    labels = [pool.targets[holding.places] for holding in holdings]
    counts = [np.bincount(part, minlength=len(pool.classes)) for part in labels]
    return np.array([count / count.sum() for count in counts])


@pytest.mark.parametrize(
    ("clients", "sizes"), [(10, [3, 3, 4]), (50, [16, 16, 18]), (100, [33, 33, 34]), (3, [1, 1, 1])]
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
    pool = labelled(np.repeat(np.arange(len(counts)), counts), len(counts))
    chosen = {"clients": clients, "clusters": min(3, clients), "beta": beta}
    if sum(counts) < clients:
        with pytest.raises(DataError, match=f"clients = {clients}: .* enough for at most"):
            deal(pool, seed, **chosen)
        return
    holdings = deal(pool, seed, **chosen)
    dealt = np.concatenate([holding.places for holding in holdings])
    assert len(np.unique(dealt)) == len(dealt)
    assert {len(holding.places) for holding in holdings} == {sum(counts) // clients}
    assert all((np.diff(holding.places) > 0).all() for holding in holdings)


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
    """The largest share of ten classes, over 60 drawn clusters. For β = 1 its mean is H₁₀ / 10."""
    pool = balanced(10, 2000)
    mixes = [shares(pool, deal(pool, seed, beta=beta, samples=50)) for seed in range(20)]
    assert low <= np.max(mixes, axis=2).mean() <= high


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
        assert sorted(renamed_holding.names) == list(range(10))
    pairs = {(holding.group, tuple(holding.names)) for holding in renamed}
    groups, names = map(set, zip(*pairs, strict=True))
    assert len(pairs) == len(groups) == len(names) == 3


def test_more_clusters_than_orders_of_the_classes() -> None:
    pool = pool_of([0, 1, 2] * 20)
    dealt = deal(pool, clients=6, clusters=6, renamed=True)
    assert len({tuple(holding.names) for holding in dealt}) == 6
    with pytest.raises(DataError, match=r"clusters = 7: with data\.clusters\.renamed at most 6"):
        deal(pool, clients=7, clusters=7, renamed=True)
    message = r"renamed = true: only with data\.clusters\.scheme = 'diri"
    with pytest.raises(ValueError, match=message):  # given clusters keep their names
        deal(pool_of([0, 1]), scheme="given", renamed=True)


def test_names_and_groups_and_the_first_clients_only() -> None:
    pool = balanced(3, 50)
    holdings = deal(pool, clients=5, clusters=2)
    assert [holding.name for holding in holdings] == [f"client-00{n}" for n in range(5)]
    assert [holding.group for holding in holdings] == ["cluster-0"] * 2 + ["cluster-1"] * 3
    first = deal(pool, clients=5, clusters=2, max_clients=2)
    assert [holding.name for holding in first] == ["client-000", "client-001"]
    np.testing.assert_array_equal(first[0].places, holdings[0].places)


def test_too_few_for_so_many_samples() -> None:
    message = r"mine:load has 150 sequences, enough .* 9 clients with .*samples = 16"
    with pytest.raises(DataError, match=message):
        deal(balanced(3, 50), samples=16)
    assert len(deal(balanced(3, 50), samples=15)[0].places) == 15


def test_sequences_without_a_label_are_not_dealt() -> None:
    pool = balanced(3, 50)
    partly = replace(pool, targets=np.where(np.arange(150) % 5 == 0, -1, pool.targets))
    places = [holding.places for holding in deal(partly, clients=4, clusters=2)]
    assert [len(part) for part in places] == [30] * 4
    assert (partly.targets[np.concatenate(places)] >= 0).all()
    with pytest.raises(DataError, match="120 sequences with a label, enough for at most 7 clients"):
        deal(partly, samples=16)


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
    (alone,) = deal(pool_of([0, 1, 2]), scheme="given")  # a single client has all sequences
    assert (alone.name, alone.places.tolist()) == ("mine", [0, 1, 2])


GIVEN_CLIENTS = ClusterSettings(scheme="given")


def split(pool: SequencePool, name: str = "ann", seed: int = 0, **settings: Any) -> Split:
    holding = Holding(name, "", np.arange(len(pool.targets)))
    data = DataSettings(**{"clusters": GIVEN_CLIENTS, **settings})
    return split_holding(pool, holding, data, seed)


def sizes_of(parts: Split) -> tuple[int, int, int]:
    return len(parts.train), len(parts.validation), len(parts.test)


def test_every_class_is_split_by_the_shares() -> None:
    pool = pool_of([0] * 20 + [1] * 10 + [2] * 10)
    parts = split(pool)
    counts = [np.bincount(pool.targets[part]).tolist() for part in (parts.train, parts.validation)]
    assert counts == [[14, 7, 7], [2, 1, 1]]
    assert sizes_of(parts) == (28, 4, 8)


@given(labels=st.lists(st.integers(0, 2), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_nothing_is_lost_and_every_class_is_trained_on(labels: list[int], seed: int) -> None:
    parts = split(pool_of(labels), seed=seed)
    together = np.concatenate([parts.train, parts.validation, parts.test])
    assert sorted(together.tolist()) == list(range(len(labels)))
    assert {labels[place] for place in parts.train} == set(labels)


def test_the_split_is_the_seeds_and_the_clients() -> None:
    pool, cases = pool_of([0, 1, 2] * 20), (("ann", 0), ("ann", 0), ("ann", 1), ("bob", 0))
    tests = [tuple(split(pool, name, seed).test) for name, seed in cases]
    assert tests[0] == tests[1]
    assert len(set(tests)) == 3


def test_real_targets_are_split_in_order() -> None:
    parts = split(measured(20))
    assert parts.train.tolist() == list(range(14))
    assert parts.validation.tolist() == [14, 15]
    assert parts.test.tolist() == [16, 17, 18, 19]


def test_the_sources_own_test_sequences_are_those_of_given_clients_alone() -> None:
    pool = pool_of([0, 1] * 10, is_test=[place < 4 for place in range(20)])
    parts = split(pool, train_share=0.6, validation_share=0.2)
    assert parts.test.tolist() == [0, 1, 2, 3]
    assert sizes_of(parts) == (12, 4, 4)
    dealt = split(replace(pool, is_test=np.arange(20) < 10), clusters=ClusterSettings())
    assert sizes_of(dealt) == (14, 2, 4)


def test_few_labels_leave_the_test_part_as_it_is() -> None:
    pool = pool_of([0, 1, 2] * 20)
    full, reduced = split(pool), split(pool, clusters=ClusterSettings(labels=4))
    assert sizes_of(reduced)[:2] == (4, 4)
    assert set(reduced.train) < set(full.train)
    assert set(reduced.validation) < set(full.validation)
    assert np.array_equal(reduced.test, full.test)
    unlimited = split(pool, clusters=ClusterSettings(labels=100))
    assert np.array_equal(unlimited.train, full.train)


SHARES = "data.train-share = 0.7, data.validation-share = 0.1, data.clusters.clients = 10"


@pytest.mark.parametrize(
    ("sizes", "settings", "reason"),
    [
        ((1, 1, 1), {}, None),
        ((0, 1, 1), {}, f"no train sequence among its 2: {SHARES}"),
        ((3, 0, 0), {}, f"no validation sequence among its 3: {SHARES}"),
        ((3, 1, 0), {}, f"no test sequence among its 4: {SHARES}"),
        ((0, 0, 0), {}, "no sequence"),
        (
            (0, 0, 0),
            {"source": "recordings", "sequences": SequenceSettings(window=50)},
            "no sequence of data.sequences.window = 50 steps",
        ),
    ],
)
def test_why_a_client_cannot_take_part(sizes: Any, settings: Any, reason: str | None) -> None:
    assert why_refused(Split(*map(np.arange, sizes)), DataSettings(**settings)) == reason


def test_sequences_without_a_label_are_trained_on_and_nothing_else() -> None:
    labels = [0, 1, -1] * 10
    parts = split(pool_of(labels))
    assert parts.unlabelled.tolist() == [place for place in range(30) if labels[place] < 0]
    assert sizes_of(parts) == sizes_of(split(pool_of([0, 1] * 10)))
    own_test = pool_of(labels, is_test=[place >= 15 for place in range(30)])
    assert split(own_test).unlabelled.tolist() == [2, 5, 8, 11, 14]


def test_sequences_without_their_labels_stay_if_set() -> None:
    pool, limits = pool_of([0, 1, 2] * 20), {"scheme": "given", "labels": 5}
    without = split(pool, clusters=ClusterSettings(**limits))
    with_unlabelled = split(pool, clusters=ClusterSettings(**limits, unlabelled=True))
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(getattr(with_unlabelled, part), getattr(without, part))
    assert len(with_unlabelled.train) == 5
    together = sorted([*with_unlabelled.train, *with_unlabelled.unlabelled])
    assert together == split(pool).train.tolist()
    assert not len(without.unlabelled)


def test_a_client_without_any_label_is_refused() -> None:
    def reason(labels: list[int]) -> str | None:
        return why_refused(split(pool_of(labels)), DataSettings(clusters=GIVEN_CLIENTS))

    assert reason([-1] * 30) == "no sequence with a label among its 30"
    assert str(reason([0] + [-1] * 20)).startswith("no validation sequence among its 1 with a la")
