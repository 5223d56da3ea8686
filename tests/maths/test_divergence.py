"""Divergences against scipy and by hand, bitwise reuse, contrast prototypes by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from torch import Tensor

from fedproto_app.maths import divergence as engine
from fedproto_app.maths import threads
from fedproto_app.maths.divergence import (
    contrast_prototypes,
    divergence_from,
    pairwise_divergence,
    threshold,
    update_divergence,
)


def random_prototypes(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread


def with_probabilities(*rows: float) -> Tensor:
    """A prototype of two values a row whose softmax is (share, 1 - share)."""
    return torch.tensor([[math.log(share), math.log(1 - share)] for share in rows])


def scipy_divergence(prototypes: Tensor) -> Tensor:
    p = prototypes.double().softmax(-1).numpy()
    rows = [[(jensenshannon(a, b, axis=-1) ** 2).mean() for b in p] for a in p]
    return torch.tensor(rows, dtype=torch.float64)


def test_two_values_by_hand() -> None:
    # p = (1/4, 3/4), q = (3/4, 1/4), m = (1/2, 1/2): JS = ln 2 - H(1/4).
    one_row = torch.stack([with_probabilities(0.25), with_probabilities(0.75)])
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    expected = math.log(2) - entropy
    assert pairwise_divergence(one_row)[0, 1].item() == pytest.approx(expected, abs=1e-7)
    # A second row where the two agree halves the mean over the rows.
    two_rows = torch.stack([with_probabilities(0.25, 0.6), with_probabilities(0.75, 0.6)])
    assert pairwise_divergence(two_rows)[0, 1].item() == pytest.approx(expected / 2, abs=1e-7)


@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
@pytest.mark.parametrize(("rows", "width"), [(1, 2), (24, 32), (5, 700)])
def test_divergence_agrees_with_scipy(rows: int, width: int, spread: float) -> None:
    prototypes = random_prototypes(7, rows, width, spread=spread)
    result = pairwise_divergence(prototypes)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), scipy_divergence(prototypes), rtol=0, atol=1e-6)


def test_small_divergences_keep_their_digits() -> None:
    prototypes = random_prototypes(6, 24, 32, spread=0.05)
    expected = scipy_divergence(prototypes)
    assert expected.max() < 1e-3
    torch.testing.assert_close(
        pairwise_divergence(prototypes).double(), expected, rtol=1e-5, atol=1e-9
    )


def test_equal_prototypes_are_exactly_zero_apart() -> None:
    prototypes = random_prototypes(1, 24, 32, spread=3).expand(40, 24, 32)
    assert torch.equal(pairwise_divergence(prototypes), torch.zeros(40, 40))


def test_opposite_certainties_are_ln_2_apart_and_never_more() -> None:
    logits = torch.tensor([1e4, -1e4]).repeat(24, 16)
    result = pairwise_divergence(torch.stack([logits, -logits, 1e30 * logits]))
    assert result[0, 1].item() == pytest.approx(math.log(2), abs=1e-6)
    assert result.double().max().item() <= math.log(2)


@settings(max_examples=25, deadline=None)
@given(
    clients=st.integers(1, 40),
    rows=st.integers(1, 3),
    width=st.integers(1, 9),
    seed=st.integers(0, 1000),
    spread=st.sampled_from([1e-6, 0.1, 1.0, 100.0, 1e30]),
)
def test_divergence_is_a_bounded_symmetric_matrix(
    clients: int, rows: int, width: int, seed: int, spread: float
) -> None:
    prototypes = random_prototypes(clients, rows, width, seed=seed, spread=spread)
    result = pairwise_divergence(prototypes)
    assert torch.equal(result, result.T)
    assert torch.equal(result.diagonal(), torch.zeros(clients))
    assert result.min() >= 0
    assert result.double().max().item() <= math.log(2)


def test_order_of_the_clients_does_not_matter() -> None:
    prototypes = random_prototypes(40, 24, 32)
    shuffled = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    expected = pairwise_divergence(prototypes)[shuffled][:, shuffled]
    assert torch.equal(pairwise_divergence(prototypes[shuffled]), expected)


@pytest.mark.parametrize(("tile_rows", "tile_columns"), [(1, 1), (3, 5), (64, 7), (100, 100)])
def test_tiles_change_no_bit(
    monkeypatch: pytest.MonkeyPatch, tile_rows: int, tile_columns: int
) -> None:
    prototypes = random_prototypes(41, 24, 45)  # 1080 values: two pieces
    expected = pairwise_divergence(prototypes)
    monkeypatch.setattr(engine, "TILE_ROWS", tile_rows)
    monkeypatch.setattr(engine, "TILE_COLUMNS", tile_columns)
    assert torch.equal(pairwise_divergence(prototypes), expected)


def test_pieces_of_a_prototype_only_round_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    prototypes = random_prototypes(9, 24, 32)
    expected = pairwise_divergence(prototypes)
    monkeypatch.setattr(engine, "TILE_VALUES", 100)
    torch.testing.assert_close(pairwise_divergence(prototypes), expected, rtol=0, atol=5e-7)


def test_divergences_from_others_are_those_of_all_pairs() -> None:
    prototypes = random_prototypes(50, 3, 7)
    matrix = pairwise_divergence(prototypes)
    assert torch.equal(divergence_from(prototypes[:37], prototypes[37:]), matrix[:37, 37:])


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    prototypes = random_prototypes(50, 24, 32)
    results = []
    for count in (1, 3):
        monkeypatch.setattr(engine, "pool_size", lambda count=count: count)
        monkeypatch.setattr(threads, "pool_size", lambda count=count: count)
        results.append(pairwise_divergence(prototypes))
    assert torch.equal(*results)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_update_equals_a_full_computation_bitwise(data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, 45))
    old_clients = data.draw(st.integers(0, clients))
    reported = data.draw(st.sets(st.integers(0, clients - 1)))
    before = random_prototypes(clients, 3, 8)
    changed = sorted(reported | set(range(old_clients, clients)))
    after = before.clone()
    after[changed] += 1 + random_prototypes(len(changed), 3, 8, seed=1)
    old = pairwise_divergence(before[:old_clients]) if old_clients else None
    assert torch.equal(update_divergence(old, after, changed), pairwise_divergence(after))


@pytest.mark.parametrize("old_clients", [39, 40])
def test_update_computes_only_the_changed_rows_and_columns(old_clients: int) -> None:
    """With a newcomer into a new matrix, otherwise in place."""
    prototypes = random_prototypes(40, 3, 8)
    marked = torch.full((old_clients, old_clients), 0.123)  # no divergence: computed entries show
    result = update_divergence(marked, prototypes, torch.tensor([39, 5, 5, 17]))
    assert (result.data_ptr() == marked.data_ptr()) == (old_clients == 40)
    assert old_clients == 40 or (marked == 0.123).all()
    computed = torch.zeros(40, 40, dtype=torch.bool)
    computed[[5, 17, 39], :] = True
    computed[:, [5, 17, 39]] = True
    assert torch.equal(result[~computed], torch.full((37 * 37,), 0.123))
    assert torch.equal(result[computed], pairwise_divergence(prototypes)[computed])


@pytest.mark.parametrize(
    ("old_clients", "changed"), [(2, [0]), (2, [3, 4]), (2, [-1, 2, 3]), (2, []), (5, [0])]
)
def test_update_refuses_missing_and_unknown_clients(old_clients: int, changed: list[int]) -> None:
    """Four clients, and five before in the last case."""
    message = rf"lie in 0 \.\.\. 3 and hold every client from {old_clients} on"
    with pytest.raises(ValueError, match=message):
        update_divergence(
            torch.zeros(old_clients, old_clients), random_prototypes(4, 3, 8), changed
        )


# Divergences of three clients: 0.1, 0.2 and 0.6 between 0-1, 0-2 and 1-2.
THREE = torch.tensor([[0.0, 0.1, 0.2], [0.1, 0.0, 0.6], [0.2, 0.6, 0.0]])


def test_thresholds_are_numpys_percentile_or_given() -> None:
    values = pairwise_divergence(random_prototypes(30, 3, 8))
    before = values.clone()
    upper = values.numpy()[np.triu_indices(30, k=1)]
    assert threshold(values, "percentile", 37.5) == np.percentile(upper, 37.5)
    assert torch.equal(values, before)
    assert threshold(THREE, "absolute", 0.3) == 0.3
    assert threshold(torch.zeros(1, 1), "percentile", 50) == 0


def test_contrast_prototypes_by_hand() -> None:
    prototypes = torch.tensor([[[1.0, 10.0]], [[3.0, 20.0]], [[5.0, 60.0]]])
    positive, negative, has_negative = contrast_prototypes(prototypes, THREE, 0.2)
    # β = 0.2: PC_0 = {0, 1, 2}, PC_1 = {0, 1}, PC_2 = {0, 2}.
    assert torch.equal(positive, torch.tensor([[[3.0, 30.0]], [[2.0, 15.0]], [[3.0, 35.0]]]))
    assert torch.equal(negative, torch.tensor([[[0.0, 0.0]], [[5.0, 60.0]], [[3.0, 20.0]]]))
    assert has_negative.tolist() == [False, True, True]


def test_contrast_prototypes_of_wanted_clients_come_in_their_order() -> None:
    prototypes = random_prototypes(3, 4, 2)
    of_all = contrast_prototypes(prototypes, THREE, 0.15)
    for chosen_clients in ([2, 0], torch.tensor([2, 0])):
        chosen = contrast_prototypes(prototypes, THREE, 0.15, chosen_clients)
        for part, full in zip(chosen, of_all, strict=True):
            torch.testing.assert_close(part, full[[2, 0]])
    of_none = contrast_prototypes(prototypes, THREE, 0.15, [])
    assert [tuple(part.shape) for part in of_none] == [(0, 4, 2), (0, 4, 2), (0,)]


@pytest.mark.parametrize("clients", [1, 6])
def test_contrast_prototypes_of_equal_clients_are_their_own(clients: int) -> None:
    prototypes = random_prototypes(1, 4, 2).expand(clients, 4, 2)
    values = pairwise_divergence(prototypes)
    positive, negative, has_negative = contrast_prototypes(
        prototypes, values, threshold(values, "percentile", 50)
    )
    torch.testing.assert_close(positive, prototypes)
    assert not negative.any()
    assert not has_negative.any()


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(1, 12), beta=st.floats(0, 100), seed=st.integers(0, 100))
def test_contrast_prototypes_split_everyone(clients: int, beta: float, seed: int) -> None:
    prototypes = random_prototypes(clients, 2, 3, seed=seed)
    values = pairwise_divergence(prototypes)
    beta_value = threshold(values, "percentile", beta)
    positive, negative, has_negative = contrast_prototypes(prototypes, values, beta_value)
    for n, row in enumerate(values):
        similar = row <= beta_value
        assert similar[n]
        assert has_negative[n] == (~similar).any()
        torch.testing.assert_close(positive[n], prototypes[similar].mean(0), rtol=1e-5, atol=1e-6)
        if has_negative[n]:
            torch.testing.assert_close(
                negative[n], prototypes[~similar].mean(0), rtol=1e-5, atol=1e-6
            )
        else:
            assert not negative[n].any()


def test_blocks_of_contrast_prototypes_only_round_differently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prototypes = random_prototypes(23, 4, 2)
    values = pairwise_divergence(prototypes)
    expected = contrast_prototypes(prototypes, values, 0.2)
    monkeypatch.setattr(engine, "CONTRAST_ROWS", 5)
    for part, full in zip(contrast_prototypes(prototypes, values, 0.2), expected, strict=True):
        torch.testing.assert_close(part, full)


def test_random_partners_by_hand() -> None:
    """THREE at β = 0.2 has PC of 3, 2 and 2, and on the circle 1 and 2 are neighbours across 0."""
    prototypes = torch.tensor([[[1.0, 10.0]], [[3.0, 20.0]], [[5.0, 60.0]]])
    places = torch.tensor([0.3, 0.05, 0.95])
    positive, negative, has_negative = contrast_prototypes(
        prototypes, THREE, 0.2, [2, 1, 0], places
    )
    assert positive.tolist() == [[[4.0, 40.0]], [[4.0, 40.0]], [[3.0, 30.0]]]
    assert negative.tolist() == [[[1.0, 10.0]], [[1.0, 10.0]], [[0.0, 0.0]]]
    assert has_negative.tolist() == [True, True, False]
    # Where all have one place, a client still is in its own PC.
    alone, *_ = contrast_prototypes(prototypes, 1 - torch.eye(3), 0.5, None, torch.zeros(3))
    assert torch.equal(alone, prototypes)
