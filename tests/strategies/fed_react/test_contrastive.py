"""The contrastive loss by hand, and what its crops must keep to."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedproto_app.strategies.fed_react.encoder import (
    ContrastiveBatch,
    Crops,
    contrastive_batches,
    contrastive_loss,
    cut,
    draw_crops,
    triplet_loss,
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value))


def test_the_loss_by_hand() -> None:
    """Client 0 has products 2 with the positives and 1, −3 or 0, 4 with the negatives; all of
    client 1 are 0, which costs log 2 a term."""
    reference = torch.tensor([[[1.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 0.0]]])
    positive = torch.tensor([[[2.0, 5.0], [7.0, 1.0]], [[9.0, 9.0], [9.0, 9.0]]])
    negatives = torch.tensor([[[1.0, 8.0], [-3.0, 8.0]], [[6.0, 0.0], [6.0, 2.0]]])
    negatives = torch.stack([negatives, torch.ones(2, 2, 2)])
    first = -log_sigmoid(2) - log_sigmoid(-1) - log_sigmoid(3)
    second = -log_sigmoid(2) - log_sigmoid(0) - log_sigmoid(-4)
    value = triplet_loss(reference, positive, negatives)
    torch.testing.assert_close(value, torch.tensor([(first + second) / 2, 3 * math.log(2)]))


def test_the_negatives_terms_may_be_averaged_and_large_products_overflow_nothing() -> None:
    reference, positive = torch.tensor([[[1.0]]]), torch.tensor([[[2.0]]])
    negatives = torch.tensor([[[[1.0], [-3.0]]]])
    value = triplet_loss(reference, positive, negatives, averages=True)
    expected = -log_sigmoid(2) - (log_sigmoid(-1) + log_sigmoid(3)) / 2
    torch.testing.assert_close(value, torch.tensor([expected]))
    reference = torch.full((1, 1, 1), 100.0, requires_grad=True)
    value = triplet_loss(reference, -reference, reference.unsqueeze(3))
    assert value.tolist() == [20_000]
    value.sum().backward()
    assert reference.grad is not None
    assert reference.grad.isfinite().all()


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    batch=st.integers(1, 5),
    seed=st.integers(0, 2**32),
)
def test_crops_lie_where_they_should(lengths: list[int], batch: int, seed: int) -> None:
    series_lengths = torch.tensor(lengths)
    series, starts, cropped = draw_crops(series_lengths, 7, batch, 3, seeded(seed))
    assert series.shape == starts.shape == cropped.shape == (7, batch, 5)
    assert (series >= 0).all()
    assert (starts >= 0).all()
    assert (cropped >= 1).all()
    assert (starts + cropped <= series_lengths[series]).all()
    ends = starts + cropped
    assert (series[..., 1] == series[..., 0]).all()
    assert (starts[..., 1] >= starts[..., 0]).all()
    assert (ends[..., 1] <= ends[..., 0]).all()
    different = series[..., 2:] != series[..., :1]
    assert different.all() if len(lengths) > 1 else not different.any()
    if len(set(lengths)) == 1:  # rectangular, as in the paper's code
        assert (cropped[..., 1:] == cropped[:, :1, 1:2]).all()
        assert (cropped[..., 0] == cropped[:, :1, 0]).all()


def test_every_length_start_and_other_series_is_as_likely() -> None:
    """5 series with 6 steps, 20,000 batches; a share of 1/6 has standard error 0.003."""
    series, starts, lengths = draw_crops(torch.full((5,), 6), 20_000, 1, 1, seeded(0))
    positive, reference = lengths[:, 0, 1], lengths[:, 0, 0]
    torch.testing.assert_close(shares(positive, 7)[1:], torch.full((6,), 1 / 6), atol=0.012, rtol=0)
    after = reference[positive == 3]
    torch.testing.assert_close(shares(after, 7)[3:], torch.full((4,), 1 / 4), atol=0.03, rtol=0)
    start = starts[:, 0, 2][positive == 3]
    torch.testing.assert_close(shares(start, 4), torch.full((4,), 1 / 4), atol=0.03, rtol=0)
    inside = (starts[:, 0, 1] - starts[:, 0, 0])[(positive == 3) & (reference == 6)]
    torch.testing.assert_close(shares(inside, 4), torch.full((4,), 1 / 4), atol=0.06, rtol=0)
    distances = (series[:, 0, 2] - series[:, 0, 0]) % 5
    torch.testing.assert_close(
        shares(distances, 5)[1:], torch.full((4,), 1 / 4), atol=0.012, rtol=0
    )


def shares(drawn: Tensor, values: int) -> Tensor:
    return torch.bincount(drawn, minlength=values) / len(drawn)


def test_series_are_references_equally_often_in_changing_order() -> None:
    drawn = draw_crops(torch.full((7,), 4), 21, 2, 1, seeded(3))
    turns = drawn.series[..., 0].flatten().view(6, 7)
    assert (turns.sort(dim=1).values == torch.arange(7)).all()
    assert len({tuple(turn.tolist()) for turn in turns}) > 1
    # The generator decides.
    assert all(map(torch.equal, drawn, draw_crops(torch.full((7,), 4), 21, 2, 1, seeded(3))))
    other_seed = draw_crops(torch.full((7,), 4), 21, 2, 1, seeded(6))
    assert not torch.equal(drawn.starts, other_seed.starts)


def test_crops_are_cut_by_hand() -> None:
    """A series holds 100·client + 10·series + step; the crops of client 1 are shorter."""
    values = (
        100 * torch.arange(2).view(2, 1, 1) + 10 * torch.arange(3).view(1, 3, 1) + torch.arange(5)
    ).unsqueeze(3)
    crops = Crops(
        torch.tensor([[[2, 2, 0, 1]], [[1, 1, 2, 2]]]),
        torch.tensor([[[0, 1, 3, 0]], [[4, 4, 0, 1]]]),
        torch.tensor([[[4, 2, 2, 3]], [[1, 1, 1, 2]]]),
    )
    batch = cut(values, crops, torch.tensor([4, 3]))
    assert batch.inputs.squeeze(3).tolist() == [[[20, 21, 22, 23]], [[114, 0, 0, 0]]]
    assert batch.lengths.tolist() == [[4], [1]]
    assert batch.candidates.squeeze(4).tolist() == [
        [[[21, 22, 0], [3, 4, 0], [10, 11, 12]]],
        [[[114, 0, 0], [120, 0, 0], [121, 122, 0]]],
    ]
    assert batch.candidate_lengths.tolist() == [[[2, 2, 3]], [[1, 1, 2]]]


def test_each_vector_takes_its_own_part_in_the_loss() -> None:
    """With the sum of a crop as its vector: 3 with positive 2, negatives −1, 4; 1 with 0, 5, −2."""
    batch = ContrastiveBatch(
        torch.tensor([[[1.0, 2.0], [1.0, 0.0]]]).unsqueeze(3),
        torch.tensor([[2, 1]]),
        torch.tensor([[[2.0, -1.0, 4.0], [0.0, 5.0, -2.0]]]).view(1, 2, 3, 1, 1),
        torch.ones(1, 2, 3, dtype=torch.int64),
    )
    first = -log_sigmoid(6) - log_sigmoid(3) - log_sigmoid(-12)
    second = -log_sigmoid(0) - log_sigmoid(-5) - log_sigmoid(2)
    value = contrastive_loss(lambda series, lengths: series.sum(dim=2), batch)
    torch.testing.assert_close(value, torch.tensor([(first + second) / 2]))


CLIENTS = [[1], [5, 9, 2], [12, 12]]  # lengths of their series


@pytest.fixture
def cohort() -> tuple[Tensor, Tensor]:
    values, lengths = torch.zeros(3, 3, 12, 2), torch.ones(3, 3, dtype=torch.int64)
    for k, series_lengths in enumerate(CLIENTS):
        for n, length in enumerate(series_lengths):
            values[k, n, :length] = torch.randn(length, 2, generator=seeded(10 * k + n)) + 9
            lengths[k, n] = length
    return values, lengths


def test_a_client_has_the_same_batches_in_any_cohort(cohort: tuple[Tensor, Tensor]) -> None:
    size = {"steps": 6, "batch": 4, "negatives": 2}
    counts = [len(series_lengths) for series_lengths in CLIENTS]
    together = list(contrastive_batches(*cohort, counts, [seeded(k) for k in range(3)], **size))
    assert len(together) == 6
    for k in range(3):
        client_parts = (part[k : k + 1] for part in cohort)
        alone = contrastive_batches(*client_parts, counts[k : k + 1], [seeded(k)], **size)
        for big, small in zip(together, alone, strict=True):
            assert torch.equal(big.lengths[k], small.lengths[0])
            assert torch.equal(big.candidate_lengths[k], small.candidate_lengths[0])
            longest = small.inputs.shape[2]
            assert torch.equal(big.inputs[k, :, :longest], small.inputs[0])
            assert not big.inputs[k, :, longest:].any()
            longest = small.candidates.shape[3]
            assert torch.equal(big.candidates[k, :, :, :longest], small.candidates[0])
            assert not big.candidates[k, :, :, longest:].any()


def test_batches_hold_real_steps_alone(cohort: tuple[Tensor, Tensor]) -> None:
    """Real values are near 9, so 0 tells the padding of a series or of a cohort."""
    counts, generators = (
        [len(series_lengths) for series_lengths in CLIENTS],
        [seeded(k) for k in range(3)],
    )
    for batch in contrastive_batches(*cohort, counts, generators, steps=5, batch=4, negatives=2):
        for crops, lengths in (
            (batch.inputs, batch.lengths),
            (batch.candidates, batch.candidate_lengths),
        ):
            real = (crops != 0).all(dim=-1).sum(dim=-1)
            assert torch.equal(real, lengths)
