"""Clusters keep their numbers over the rounds."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.maths.clustering import ABSENT, clusters_of_before, match_labels


def match(previous: list[int], current: list[int], clusters: int) -> list[int]:
    return match_labels(np.array(previous, int), np.array(current, int), clusters).tolist()


def test_the_same_clusters_keep_their_numbers_whatever_they_are_called_now() -> None:
    previous = [2, 0, 0, 1, 1, 1]
    for names in permutations(range(3)):
        assert match(previous, [names[label] for label in previous], 3) == previous


def test_the_greatest_total_overlap_decides() -> None:
    """The first cluster shares 3 with 0 and 2 with 1, the second 2 with 0: 2 + 2 beats 3 + 0."""
    assert match([0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1], 2) == [1, 1, 1, 1, 1, 0, 0]


def test_a_client_that_moves_does_not_move_its_cluster() -> None:
    assert match([0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 0, 0], 2) == [0, 0, 0, 0, 1, 1]


def test_absent_clients_do_not_vote_and_stay_absent() -> None:
    """By those present in both rounds the first cluster is 1, though 0 has more clients."""
    assert match([1, -1, -1, 0, 0, 1], [0, 0, 0, 1, -1, -1], 2) == [1, 1, 1, 0, -1, -1]


def test_the_first_clusters_are_numbered_by_first_appearance() -> None:
    assert match([-1] * 4, [2, 0, 2, 1], 3) == [0, 1, 0, 2]


def test_a_new_cluster_takes_a_number_that_nobody_had_in_the_last_round() -> None:
    assert match([0, 0, 2, 2, 2, -1], [0, 0, 1, 1, 2, 2], 5) == [0, 0, 2, 2, 1, 1]


def test_where_all_numbers_are_taken_a_new_cluster_follows_one_that_ended() -> None:
    assert match([0, 0, 1, 1, -1], [0, 0, 0, 0, 1], 2) == [0, 0, 0, 0, 1]
    assert match([0, 0, 1, 1, -1], [0, 0, 0, 0, 1], 3) == [0, 0, 0, 0, 2]


def test_numbers_that_do_not_suffice_are_refused() -> None:
    with pytest.raises(ValueError, match="3 clusters"):
        match([0, 0, 0], [0, 1, 2], 2)
    with pytest.raises(ValueError, match="labels"):
        match([0, 5, 0], [0, 1, 1], 2)


def test_nobody_there() -> None:
    assert match([0, 1], [-1, -1], 2) == [-1, -1]
    assert match([], [], 2) == []


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), max_size=12), st.randoms())
def test_matching_keeps_the_clusters_and_overlaps_at_most(pairs: list, random) -> None:
    previous = [first for first, _ in pairs]
    current = [second for _, second in pairs]
    matched = match(previous, current, 4)
    renamed = dict(zip(current, matched, strict=True))
    assert [renamed[label] for label in current] == matched  # one number a cluster …
    assert len(set(renamed.values())) == len(renamed)  # … and one cluster a number
    assert renamed.get(-1, -1) == -1
    assert set(matched) <= {-1, 0, 1, 2, 3}

    def overlap(labels: list[int]) -> int:
        return sum(a == b != -1 for a, b in zip(previous, labels, strict=True))

    best = max(
        overlap([names[label] if label >= 0 else -1 for label in current])
        for names in permutations(range(4))
    )
    assert overlap(matched) == best

    names = random.sample(range(4), 4)  # other numbers for the same clusters, also where they tie
    assert match(previous, [names[c] if c >= 0 else -1 for c in current], 4) == matched


def test_numbers_stay_in_their_range_over_many_rounds() -> None:
    generator = np.random.default_rng(0)
    labels = np.full(30, -1)
    for _ in range(100):
        current = generator.integers(-1, generator.integers(1, 7), 30)
        labels = match_labels(labels, current, 6)
        assert labels.max() < 6


def test_those_who_were_not_there_before_are_clusters_of_their_own() -> None:
    assert clusters_of_before([4, ABSENT, 2, 4, ABSENT]).tolist() == [0, 1, 2, 0, 3]
    assert clusters_of_before([ABSENT, ABSENT]).tolist() == [0, 1]
