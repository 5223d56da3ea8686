from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.data.sequences.partition import Holding, Split, split_holding, why_refused
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import ClusterSettings, DataSettings, SequenceSettings
from tests.data.sequences.made_sequences import measured, pool_of

GIVEN_CLIENTS = ClusterSettings(scheme="given")


def split(pool: SequencePool, name: str = "ann", seed: int = 0, **settings: Any) -> Split:
    holding = Holding(name, "", np.arange(len(pool.targets)))
    return split_holding(
        pool, holding, DataSettings(**{"clusters": GIVEN_CLIENTS, **settings}), seed
    )


def test_every_class_is_split_by_the_shares() -> None:
    pool = pool_of([0] * 20 + [1] * 10 + [2] * 10)
    parts = split(pool)
    counts = [np.bincount(pool.targets[p]).tolist() for p in (parts.train, parts.validation)]  # type: ignore[arg-type]
    assert counts == [[14, 7, 7], [2, 1, 1]]
    assert len(parts.test) == 8


@given(labels=st.lists(st.integers(0, 2), min_size=1, max_size=40), seed=st.integers(0, 9))
def test_nothing_is_lost_and_every_class_is_trained_on(labels: list[int], seed: int) -> None:
    parts = split(pool_of(labels), seed=seed)
    together = np.concatenate([parts.train, parts.validation, parts.test])
    assert sorted(together.tolist()) == list(range(len(labels)))
    assert {labels[place] for place in parts.train} == set(labels)


def test_the_split_is_the_seeds_and_the_clients() -> None:
    pool = pool_of([0, 1, 2] * 20)
    tests = [split(pool, name, seed).test.tolist() for name, seed in
             (("ann", 0), ("ann", 0), ("ann", 1), ("bob", 0))]  # fmt: skip
    assert tests[0] == tests[1]
    assert len({tuple(test) for test in tests}) == 3


def test_real_targets_are_split_in_order() -> None:
    parts = split(measured(20))
    assert parts.train.tolist() == list(range(14))
    assert parts.validation.tolist() == [14, 15]
    assert parts.test.tolist() == [16, 17, 18, 19]


def test_the_sources_own_test_sequences() -> None:
    pool = pool_of([0, 1] * 10, is_test=[place < 4 for place in range(20)])
    parts = split(pool, train_share=0.6, validation_share=0.2)
    assert parts.test.tolist() == [0, 1, 2, 3]
    assert (len(parts.train), len(parts.validation)) == (12, 4)


def test_few_labels_leave_the_test_part_as_it_is() -> None:
    pool = pool_of([0, 1, 2] * 20)
    full, reduced = split(pool), split(pool, clusters=ClusterSettings(labels=4))
    assert (len(reduced.train), len(reduced.validation)) == (4, 4)
    assert set(reduced.train) < set(full.train)
    assert set(reduced.validation) < set(full.validation)
    assert np.array_equal(reduced.test, full.test)
    unlimited = split(pool, clusters=ClusterSettings(labels=100))
    assert np.array_equal(unlimited.train, full.train)


def test_a_dealt_client_has_nothing_of_the_sources_split() -> None:
    pool = pool_of([0, 1] * 10, is_test=[place < 10 for place in range(20)])
    holding = Holding("client-000", "cluster-0", np.arange(20))
    parts = split_holding(pool, holding, DataSettings(), 0)
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (14, 2, 4)


SHARES = "data.train-share = 0.7, data.validation-share = 0.1, data.clusters.clients = 10"


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((1, 1, 1), None),
        ((0, 1, 1), f"no train sequence among its 2: {SHARES}"),
        ((3, 0, 0), f"no validation sequence among its 3: {SHARES}"),
        ((3, 1, 0), f"no test sequence among its 4: {SHARES}"),
        ((0, 0, 0), "no sequence"),
    ],
)
def test_why_a_client_cannot_take_part(sizes: tuple[int, int, int], reason: str | None) -> None:
    parts = Split(*(np.arange(size) for size in sizes))
    assert why_refused(parts, DataSettings()) == reason


def test_a_recording_that_is_too_short() -> None:
    empty = np.arange(0)
    settings = DataSettings(source="recordings", sequences=SequenceSettings(window=50))
    reason = why_refused(Split(empty, empty, empty), settings)
    assert reason == "no sequence of data.sequences.window = 50 steps"


def test_sequences_without_a_label_are_trained_on_and_nothing_else() -> None:
    labels = [0, 1, -1] * 10
    parts = split(pool_of(labels))
    assert parts.unlabelled.tolist() == [place for place in range(30) if labels[place] < 0]
    labelled = split(pool_of([0, 1] * 10))
    assert [len(part) for part in (parts.train, parts.validation, parts.test)] == [
        len(part) for part in (labelled.train, labelled.validation, labelled.test)
    ]
    own_test = pool_of(labels, is_test=[place >= 15 for place in range(30)])
    assert split(own_test).unlabelled.tolist() == [2, 5, 8, 11, 14]


def test_sequences_without_their_labels_stay_if_set() -> None:
    pool, limits = pool_of([0, 1, 2] * 20), {"scheme": "given", "labels": 5}
    without = split(pool, clusters=ClusterSettings(**limits))
    full = split(pool)
    with_unlabelled = split(pool, clusters=ClusterSettings(**limits, unlabelled=True))
    for places, expected in zip(
        (with_unlabelled.train, with_unlabelled.validation, with_unlabelled.test),
        (without.train, without.validation, without.test),
        strict=True,
    ):
        np.testing.assert_array_equal(places, expected)
    assert len(with_unlabelled.train) == 5
    assert sorted([*with_unlabelled.train, *with_unlabelled.unlabelled]) == full.train.tolist()
    assert not len(without.unlabelled)


def test_a_client_without_any_label_is_refused() -> None:
    settings = DataSettings(clusters=GIVEN_CLIENTS)
    assert (
        why_refused(split(pool_of([-1] * 30)), settings) == "no sequence with a label among its 30"
    )
    reason = why_refused(split(pool_of([0] + [-1] * 20)), settings)
    assert reason is not None
    assert reason.startswith("no validation sequence among its 1 with a label: ")
