"""Partitions deal every image at most once, in equal parts, and the same on every node.

The long tail, the classes drawn from it, and the equal share that they allow.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedproto_app.core.errors import DataError
from fedproto_app.data.images.partition import (
    Holding,
    Stage,
    class_quotas,
    draw_classes,
    draw_partition,
    equal_share,
    given_partition,
    images_of_the_same_mix,
    long_tail_counts,
)
from fedproto_app.data.images.pool import ImageSplit
from fedproto_app.settings import PartitionSettings
from tests.data.drawn_classes import drawn_classes


def labels(classes: int, per_class: int) -> np.ndarray:
    """Return labels in random order, as in a real file."""
    return np.random.default_rng(1).permutation(np.repeat(np.arange(classes), per_class))


def partition(
    per_class: int = 100, num_classes: int = 10, test: int = 50, seed: int = 0, **chosen: Any
) -> tuple[list[Holding], np.ndarray]:
    """Return the clients, and the train images of each row, [R, C]."""
    train_labels = labels(num_classes, per_class)
    holdings = draw_partition(
        train_labels, labels(num_classes, test), num_classes, PartitionSettings(**chosen), seed
    )
    rows = [np.bincount(train_labels[s.train], minlength=num_classes) for s in stages_of(holdings)]
    return holdings, np.array(rows)


def stages_of(holdings: list[Holding]) -> list[Stage]:
    return [stage for holding in holdings for stage in holding.stages]


def places(holdings: list[Holding]) -> list[list[int]]:
    return [part.tolist() for s in stages_of(holdings) for part in (s.train, s.validation, s.test)]


@settings(max_examples=40, deadline=None)
@given(
    chosen=st.fixed_dictionaries(
        {
            "scheme": st.sampled_from(["long-tail", "dirichlet"]),
            "clients": st.integers(1, 8),
            "classes": st.integers(1, 6),
            "stages": st.integers(1, 3),
            "imbalance_factor": st.sampled_from([1.0, 7.0, 50.0]),
            "validation_share": st.sampled_from([0.0, 0.1]),
        }
    ),
    seed=st.integers(0, 99),
)
def test_no_image_twice_and_equal_parts(chosen: dict[str, Any], seed: int) -> None:
    # 30 of the last class: one for every row that could want it
    holdings, rows = partition(per_class=1500, num_classes=6, seed=seed, **chosen)
    factor, share = chosen["imbalance_factor"], chosen["validation_share"]
    counts = long_tail_counts(np.full(6, 1500 - round(1500 * share)), factor)
    trained = np.concatenate([stage.train for stage in stages_of(holdings)])
    validated = np.concatenate([stage.validation for stage in stages_of(holdings)])
    assert len(np.unique(trained)) == len(trained)
    assert not np.intersect1d(trained, validated).size
    assert bool(validated.size) == (share > 0)
    assert len(set(rows.sum(axis=1).tolist())) == 1
    assert rows.shape[0] == chosen["clients"] * chosen["stages"]
    assert (rows.sum(axis=0) <= counts).all()
    if chosen["scheme"] == "long-tail":
        assert ((rows > 0).sum(axis=1) == chosen["classes"]).all()
    else:
        assert rows[0].sum() == counts.sum() // len(rows)


@pytest.mark.parametrize("scheme", ["long-tail", "dirichlet"])
def test_a_seed_is_a_partition(scheme: str) -> None:
    first, repeated, of_another_seed = (
        places(partition(per_class=500, seed=seed, scheme=scheme)[0]) for seed in (1, 1, 2)
    )
    assert first == repeated != of_another_seed


def test_names_sort_as_numbers() -> None:
    assert [h.name for h in partition(clients=2)[0]] == ["client-000", "client-001"]
    large = {"clients": 1001, "stages": 1, "classes": 1, "per_class": 200}
    names = [h.name for h in partition(**large, imbalance_factor=1.0)[0]]
    assert (names[7], names[-1]) == ("client-0007", "client-1000")


def test_evaluation_follows_the_train_classes() -> None:
    train_labels, test_labels = labels(10, 500), labels(10, 200)
    chosen = PartitionSettings(clients=5, stages=2, imbalance_factor=10.0)
    for stage in stages_of(draw_partition(train_labels, test_labels, 10, chosen, 0)):
        train = np.bincount(train_labels[stage.train], minlength=10)
        for part in (test_labels[stage.test], train_labels[stage.validation]):
            mix = np.bincount(part, minlength=10)
            assert ((mix > 0) == (train > 0)).all()
            expected = train / train.sum() * mix.sum()
            assert np.abs(mix - expected).max() <= 3  # of rounding, and one at least
        assert len(np.unique(stage.test)) == len(stage.test)
        # Unless a class has too few: 0.2 test images a train image.
        assert len(stage.test) <= 0.2 * len(stage.train) + 4


@pytest.mark.parametrize(
    ("sizes", "train", "ratio", "expected"),
    [
        ([100, 100, 10, 100], [50, 13, 1, 0], 0.2, [10, 3, 1, 0]),  # 10, 2.6 up to 3, 0.2 up to 1
        ([100, 10], [60, 40], 0.5, [15, 10]),  # where a class is scarce there are fewer of all
        ([10, 0], [20, 20], 0.5, [10, 0]),  # an empty class does not keep the others out
    ],
)
def test_images_of_the_same_mix(sizes: Any, train: Any, ratio: float, expected: Any) -> None:
    pool = [1000 * label + np.arange(size) for label, size in enumerate(sizes)]
    (drawn,) = images_of_the_same_mix(pool, np.array([train]), ratio, np.random.default_rng(5))
    assert len(set(drawn)) == len(drawn)
    assert np.bincount(drawn // 1000, minlength=len(sizes)).tolist() == expected


def test_stages_take_turns_through_the_images() -> None:
    pool, train = [np.arange(10)], np.array([[20], [20], [20]])
    drawn = images_of_the_same_mix(pool, train, 0.2, np.random.default_rng(5))
    assert [len(set(part.tolist())) for part in drawn] == [4, 4, 4]
    assert len(set(np.concatenate(drawn).tolist())) == 10  # 8 in two stages, then the last two
    assert not set(drawn[0].tolist()) & set(drawn[1].tolist())


def test_test_images_can_have_the_mix_of_all_clients() -> None:
    """The train images do not change, but every client has equal shares of all classes to test."""
    train_labels, test_labels = labels(4, 500), labels(4, 400)
    chosen = {"clients": 4, "classes": 2, "stages": 2, "imbalance_factor": 8.0, "test_ratio": 0.5}

    def stages(mix: str) -> list[Stage]:
        partition_settings = PartitionSettings(**chosen, test_mix=mix)
        return stages_of(draw_partition(train_labels, test_labels, 4, partition_settings, 0))

    client_mix, common = stages("own"), stages("everybody")
    dealt = np.concatenate([train_labels[stage.train] for stage in client_mix])
    expected = np.floor(np.bincount(dealt, minlength=4) * 0.5 / 8 + 0.5)  # of eight client stages
    for own_stage, common_stage in zip(client_mix, common, strict=True):
        assert own_stage.train.tolist() == common_stage.train.tolist()
        assert own_stage.validation.tolist() == common_stage.validation.tolist()
        tested = np.bincount(test_labels[common_stage.test], minlength=4)
        assert tested.tolist() == expected.tolist()


def test_a_small_alpha_makes_clients_more_different() -> None:
    purity, chosen = [], {"scheme": "dirichlet", "stages": 1, "imbalance_factor": 1.0}
    for alpha in (0.05, 50.0):
        _, rows = partition(alpha=alpha, clients=10, **chosen)
        purity.append((rows.max(axis=1) / rows.sum(axis=1)).mean())
    assert purity[0] > 0.5
    assert purity[1] < 0.2
    # Shares of almost nothing still deal everything.
    _, rows = partition(alpha=0.001, clients=9, per_class=90, validation_share=0.0, **chosen)
    assert rows.sum(axis=1).tolist() == [100] * 9


def test_shared_images_follow_the_long_tail() -> None:
    sizes = {"num_classes": 3, "clients": 30, "classes": 2, "stages": 2, "samples": 55}
    tail = {"class_draw": "uniform", "imbalance_factor": 100.0, "validation_share": 0.0}
    holdings, rows = partition(**sizes, **tail)
    # Of the classes' 100, 10 and 1 images no row of the last two has 55.
    mixes = {(50, 5, 0), (54, 0, 1), (0, 10, 1)}
    assert {tuple(row) for row in rows.tolist()} == mixes
    trained = [stage.train for stage in stages_of(holdings)]
    assert all(len(np.unique(part)) == len(part) for part in trained)
    used = np.unique(np.concatenate(trained))
    assert np.bincount(labels(3, 100)[used]).tolist() == [100, 10, 1]


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"classes": 11}, r"data\.partition\.classes = 11: the images have only 10 classes"),
        (
            {"clients": 100, "imbalance_factor": 100.0},
            r"too few images: 242 \(1 … 100 a class\).*500 client stages.*clients = 100, "
            r"classes = 4, stages = 5, imbalance-factor = 100",
        ),
        ({"scheme": "dirichlet", "clients": 300}, r"too few images: .*clients = 300, stages = 5"),
        ({"samples": 3}, r"data\.partition\.samples = 3: fewer than .*classes = 4"),
        ({"test": 0}, r"class 0 has no test image \(10 of 10 classes"),
    ],
)
def test_impossible_partitions_are_refused(chosen: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        partition(**{"validation_share": 0.0, **chosen})


def test_a_class_without_train_images_and_a_strange_label_are_refused() -> None:
    with pytest.raises(DataError, match=r"class 1 has no train image \(1 of 3"):
        draw_partition(np.array([0, 2]), np.arange(3), 3, PartitionSettings(), 0)
    with pytest.raises(DataError, match=r"test labels 0 … 3: expected 0 … 2"):
        draw_partition(np.arange(3), np.array([0, 3]), 3, PartitionSettings(), 0)


@pytest.mark.parametrize(("clients", "stages"), [(20, 5), (100, 1)])
@pytest.mark.parametrize("factor", [10.0, 50.0, 100.0])
def test_the_papers_settings_on_cifar10(clients: int, stages: int, factor: float) -> None:
    chosen = {"clients": clients, "stages": stages, "imbalance_factor": factor}
    _, rows = partition(per_class=5000, test=1000, **chosen)
    share = long_tail_counts(np.full(10, 4750), factor).sum() // 100
    assert 0.9 * share <= rows[0].sum() <= share


TRAIN = np.array([0, 0, 1, 1, 2, 2, 0, 1])
TEST = np.array([0, 1, 2, 3])
CLIENTS = np.array(["b", "b", "a", "a", "b", "b", "c", "c"])
STAGES = np.array([1, 1, 1, 1, 3, 3, 2, 2])


def split_of(labels: np.ndarray, clients: Any = None, stages: Any = None) -> ImageSplit:
    return ImageSplit(labels, [""] * len(labels), pytest.fail, clients, stages)


def given_clients(**columns: Any) -> dict[str, list[tuple[list[int], list[int]]]]:
    """Return (train, test) of each stage, by client, without validation."""
    train = split_of(TRAIN, columns.get("train_clients"), columns.get("train_stages"))
    test = split_of(TEST, columns.get("test_clients"), columns.get("test_stages"))
    chosen = PartitionSettings(scheme="given", validation_share=0.0)
    holdings = given_partition(train, test, chosen, 0, "all")
    return {h.name: [(s.train.tolist(), s.test.tolist()) for s in h.stages] for h in holdings}


def test_without_clients_and_stages_there_is_one_of_each() -> None:
    assert given_clients() == {"all": [(list(range(8)), [0, 1, 2])]}  # nobody trains on class 3


def test_given_clients_and_stages() -> None:
    assert given_clients(train_clients=CLIENTS, train_stages=STAGES) == {
        "a": [([2, 3], [1])],
        "b": [([0, 1], [0]), ([], []), ([4, 5], [2])],  # nothing at the second stage
        "c": [([], []), ([6, 7], [0, 1])],
    }
    assert given_clients(train_stages=STAGES) == {
        "all": [([0, 1, 2, 3], [0, 1]), ([6, 7], [0, 1]), ([4, 5], [2])]
    }


def test_test_images_can_have_clients_and_stages_too() -> None:
    owners = np.array(["a", "c", "c", "d"])
    assert given_clients(train_clients=CLIENTS, test_clients=owners) == {
        "a": [([2, 3], [0])],  # its own, whatever the class
        "b": [([0, 1, 4, 5], [])],
        "c": [([6, 7], [1, 2])],
        "d": [([], [3])],
    }
    times = np.array([1, 1, 2, 3])
    assert given_clients(train_stages=STAGES, test_stages=times) == {
        "all": [([0, 1, 2, 3], [0, 1]), ([6, 7], []), ([4, 5], [])]
    }
    with_both = given_clients(
        train_clients=CLIENTS, train_stages=STAGES, test_clients=owners, test_stages=times
    )
    assert with_both["c"] == [([], [1]), ([6, 7], [2])]
    unknown_stage = given_clients(train_clients=CLIENTS, train_stages=STAGES, test_clients=owners)
    assert unknown_stage["c"] == [([], []), ([6, 7], [1])]  # no class 2 there


@pytest.mark.parametrize("kind", ["clients", "stages"])
def test_clients_or_stages_of_test_images_only_are_refused(kind: str) -> None:
    with pytest.raises(DataError, match=f"test images have {kind}, but the train images"):
        given_clients(**{f"test_{kind}": np.arange(4)})


def test_validation_images_of_given_clients_are_drawn_per_class_and_seed() -> None:
    train_labels, owners = np.tile([0, 0, 0, 1], 100), np.repeat([3, 12], 200)
    chosen = PartitionSettings(scheme="given", validation_share=0.1)

    def drawn(seed: int) -> list[Holding]:
        train = split_of(train_labels, owners)
        return given_partition(train, split_of(TEST), chosen, seed, "all")

    holdings = drawn(0)
    assert [holding.name for holding in holdings] == ["3", "12"]
    for holding, expected in zip(holdings, (range(200), range(200, 400)), strict=True):
        (stage,) = holding.stages
        assert sorted([*stage.train, *stage.validation]) == list(expected)
        assert np.bincount(train_labels[stage.validation]).tolist() == [15, 5]
    assert places(holdings) == places(drawn(0))
    assert places(holdings) != places(drawn(1))


@pytest.mark.parametrize(
    ("available", "factor", "expected"),
    [
        ([100, 100, 100], 100.0, [100, 10, 1]),
        ([500, 600, 700], 100.0, [500, 50, 5]),
        ([243] * 6, 243.0, [243, 81, 27, 9, 3, 1]),  # 243 · 243^(-2/5) is 26.99… in floats
        ([1000] * 4, 1000.0, [1000, 100, 10, 1]),
        ([7, 9, 8], 1.0, [7, 7, 7]),
        ([5, 5], 100.0, [5, 1]),  # 0.05, but every class keeps an image
        ([42], 50.0, [42]),
        # CIFAR-10 as usual (Cui et al. 2019): 5000 · 100^(−c/9), rounded down
        ([5000] * 10, 100.0, [5000, 2997, 1796, 1077, 645, 387, 232, 139, 83, 50]),
    ],
)
def test_counts_fall_by_the_same_factor(available: Any, factor: float, expected: Any) -> None:
    counts = long_tail_counts(np.array(available), factor)
    assert counts.tolist() == expected
    assert counts.dtype == np.int64


@given(
    limits=st.lists(st.integers(1, 8), min_size=2, max_size=7),
    rows=st.integers(1, 8),
    classes=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_rows_hold_different_classes_within_the_limits(
    limits: list[int], rows: int, classes: int, seed: int
) -> None:
    row_limits = np.minimum(limits, rows)
    if classes > len(limits) or row_limits.sum() < rows * classes:
        return
    mask = draw_classes(np.array(limits), rows, classes, np.random.default_rng(seed))
    assert (mask.sum(axis=1) == classes).all()
    assert (mask.sum(axis=0) <= row_limits).all()
    if rows * classes >= len(limits):
        assert mask.any(axis=0).all()


def test_free_draws_are_uniform() -> None:
    rng = np.random.default_rng(0)
    mask = draw_classes(np.full(10, 5000), 5000, 4, rng)
    assert np.abs(mask.mean(axis=0) - 0.4).max() < 4 * np.sqrt(0.24 / 5000)


def share_by_hall(mask: np.ndarray, counts: np.ndarray) -> int:
    """Return the largest n by Hall's condition: every set of classes has enough for its rows."""
    rows, classes = mask.shape
    degree, spare, best = int(mask[0].sum()), counts - mask.sum(axis=0), int(counts.sum()) // rows
    for size in range(1, classes + 1):
        for chosen in combinations(range(classes), size):
            outside = np.setdiff1d(np.arange(classes), chosen)
            bound = int((~mask[:, outside].any(axis=1)).sum())
            if bound:
                best = min(best, degree + int(spare[list(chosen)].sum()) // bound)
    return best


@given(drawn_classes(largest=30))
def test_the_equal_share_agrees_with_halls_condition(
    drawn: tuple[np.ndarray, np.ndarray],
) -> None:
    mask, counts = drawn
    assert equal_share(mask, counts) == share_by_hall(mask, counts)


def test_an_equal_share_by_hand() -> None:
    mask = np.array([[1, 1, 0], [0, 1, 1], [0, 1, 1]], dtype=np.bool_)
    counts = np.array([90, 10, 10])
    # Rows 1 and 2 share classes 1 and 2, except one image for row 0: (20 - 1) // 2.
    assert equal_share(mask, counts) == 9


@pytest.mark.parametrize(
    ("counts", "rows", "classes", "expected"),
    [
        ([50, 30, 20], 10, 1, [5, 3, 2]),
        ([80, 10, 10], 10, 2, [10, 5, 5]),  # the head would be dealt twice to six rows
        ([96, 2, 2], 4, 1, [2, 1, 1]),  # no class goes without a row
        ([90, 1, 9], 10, 2, [10, 1, 9]),  # nor has more rows than images
        ([1, 1, 1], 2, 1, [1, 1, 1]),
    ],
)
def test_quotas_follow_the_sizes(counts: Any, rows: int, classes: int, expected: Any) -> None:
    assert class_quotas(np.array(counts), rows, classes).tolist() == expected


@given(st.lists(st.integers(1, 300), min_size=2, max_size=8), st.integers(1, 40), st.data())
def test_quotas_add_up_within_limits(sizes: list[int], rows: int, data: st.DataObject) -> None:
    counts, classes = np.array(sizes), data.draw(st.integers(1, len(sizes)))
    limits = np.minimum(counts, rows)
    assume(limits.sum() >= rows * classes >= len(sizes))
    quotas = class_quotas(counts, rows, classes)
    assert quotas.sum() == rows * classes
    assert ((quotas >= 1) & (quotas <= limits)).all()
    order = np.argsort(-counts, kind="stable")
    assert (np.diff(quotas[order]) <= 0).all()  # the larger class is never behind
