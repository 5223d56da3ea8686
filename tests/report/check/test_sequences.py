from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.report.check.sequences import (
    class_counts,
    constant_sequences,
    deal,
    level_shares,
)
from fedproto_app.settings import ClusterSettings, DataSettings, SequenceSettings
from tests.data.sequences.made_sequences import measured, pool_of

GIVEN_CLIENTS = DataSettings(clusters=ClusterSettings(scheme="given"))


def test_dealt_clients_and_groups_by_hand() -> None:
    pool = pool_of([0, 0, 1, 1, 2] * 2 + [0], ["ann"] * 5 + ["bob"] * 5 + ["cid"], {"bob": "left"})
    dealing = deal(pool, GIVEN_CLIENTS, seed=0)
    assert [client.name for client in dealing.clients] == ["ann", "bob", "cid"]
    assert list(dealing.refused) == ["cid"]
    assert {
        name: [client.name for client in clients] for name, clients in dealing.groups.items()
    } == {"left": ["bob"]}
    assert class_counts(dealing.clients, 3).tolist() == [[2, 2, 1], [2, 2, 1], [1, 0, 0]]
    ann = dealing.clients[0]
    assert sum(map(len, ann.parts.values())) == len(ann.targets) == 5
    assert list(ann.parts) == ["train", "validation", "test"]


def test_sequences_without_a_label_are_separate() -> None:
    pool = pool_of([0, 0, 1, 1, 2, -1] * 3, ["ann"] * 18)
    [ann] = deal(pool, GIVEN_CLIENTS, seed=0).clients
    assert (len(ann.targets), ann.unlabelled) == (15, 3)
    assert class_counts([ann], 3).tolist() == [[6, 6, 3]]


def test_values_as_models_would_see_them() -> None:
    """Sequence i is i at all steps, all are constant: 10 … 19, or zeros once each is scaled."""
    pool = measured(20, ["ann"] * 2 + ["bob"] * 18)
    assert constant_sequences(pool) == 20
    raw = DataSettings(clusters=GIVEN_CLIENTS.clusters, sequences=SequenceSettings(scaling="none"))
    assert deal(pool, raw, 0).value_range == (2, 19)  # ann has too few to take part
    assert deal(pool, GIVEN_CLIENTS, 0).value_range == (0, 0)
    unlabelled = deal(measured(2, ["ann", "bob"]), GIVEN_CLIENTS, 0)
    assert unlabelled.value_range is None


def test_how_far_levels_tell_classes_apart_by_hand() -> None:
    """Levels 0 2 | 4 6 and 5 5 | 5 5, and of no class 99: 4 of 20 within classes, 16 between, of
    which chance gives 2."""
    levels = np.array([[0, 5], [2, 5], [4, 5], [6, 5], [99, 99]], np.float32)
    swings = np.array([[-1, 1], [1, -1]], np.float32)  # within a sequence; no matter
    pool = replace(
        pool_of([0, 0, 1, 1, -1]),
        dimensions=("moves", "stays"),
        sequences=[level + swings for level in levels],
    )
    assert level_shares(pool).tolist() == [pytest.approx(14 / 20), 0]
    few_labels = replace(pool, targets=np.array([0, 1, -1, -1, -1]))
    assert level_shares(few_labels).tolist() == [0, 0]  # as many classes as sequences
    without_labels = replace(pool, targets=np.full(5, -1))
    assert level_shares(without_labels).tolist() == [0, 0]


def test_too_few_to_deal() -> None:
    with pytest.raises(DataError, match="enough for at most 4 clients"):
        deal(pool_of([0, 1, 2, 0]), DataSettings(), seed=0)
