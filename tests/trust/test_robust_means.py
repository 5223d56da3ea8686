"""Means that bear hostile members, worked by hand."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedproto_app.maths.class_gaussian import ClassSums, LabelledVectors, class_sums
from fedproto_app.trust.averaging import (
    judged,
    levelled,
    middle_of_members,
    robust_class_sums,
    shortened_mean,
)


def median(rows: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return np.asarray(np.median(rows, axis=0), dtype=np.float32)


def members(*rows: str) -> Tensor:
    return torch.tensor([[character == "1" for character in row] for row in rows])


def test_a_long_difference_is_shortened_to_the_median_distance_of_all_others() -> None:
    """From 0 the others are 1, 2 and 100 away, the median is 2. Only 0, 1 and 100 are members."""
    flat = torch.tensor([[0.0], [1.0], [2.0], [100.0]])
    mean = shortened_mean(members("1101", "0000"), flat, torch.tensor([0, 3]))
    np.testing.assert_allclose(mean, [[(0 + 1 + 2) / 3], [0.0]])


@given(st.integers(0, 1000), st.floats(-1e6, 1e6))
@settings(max_examples=50, deadline=None)
def test_a_minority_of_partners_cannot_carry_a_client_farther_than_the_honest_are(
    seed: int, shift: float
) -> None:
    """Three of seven copy the first client and add a constant. All three are its partners, and no
    honest one is."""
    draws = torch.Generator().manual_seed(seed)
    honest = torch.randn(4, 6, generator=draws)
    flat = torch.cat([honest, (honest[0] + shift).expand(3, 6)])
    mean = shortened_mean(members("1000111"), flat, torch.tensor([0]))
    farthest = (honest - honest[0]).norm(dim=1).max()
    assert (mean[0] - honest[0]).norm() <= farthest + 1e-4


def test_the_middle_of_members_is_of_them_alone() -> None:
    flat = torch.tensor([[0.0, 9], [1, 9], [100, 9], [5, 5]])
    middle = middle_of_members(members("1110", "0000"), flat, median)
    assert middle.tolist() == [[1, 9], [0, 0]]


def sums_of(slope: float, scale: float, samples: int = 50) -> tuple[Tensor, Tensor]:
    """Return the sums of x = (scale·z, 1) and y = slope·x, one step ahead."""
    z = torch.linspace(-1, 1, samples).double() * scale
    x = torch.stack([z, torch.ones_like(z)], dim=1)
    return (x.T @ x)[None], (x.T @ (slope * z))[None, :, None]


def stacked(*clients: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return torch.stack([gram for gram, _ in clients]), torch.stack(
        [moment for _, moment in clients]
    )


def test_a_client_that_claims_many_samples_counts_as_the_others() -> None:
    gram, moment = levelled(*stacked(sums_of(1, 1), sums_of(1, 1), sums_of(-1, 1, 50_000)))
    traces = gram.diagonal(dim1=-2, dim2=-1).sum(dim=(1, 2))
    np.testing.assert_allclose(traces, traces[0], rtol=1e-9)
    slopes = torch.linalg.solve(gram, moment)[:, 0, 0, 0]  # as they were
    np.testing.assert_allclose(slopes, [1, 1, -1], atol=1e-9)


def test_a_client_that_claims_next_to_nothing_counts_ten_times_at_most() -> None:
    [first, second] = (sums_of(1, 1), sums_of(1, 1))
    tiny = (first[0] * 1e-12, first[1] * 1e-6)  # no more than such squares allow
    gram, moment = levelled(*stacked(first, second, tiny))
    assert torch.equal(gram[:2], stacked(first, second)[0])
    torch.testing.assert_close(moment[2], tiny[1] * 10)


def test_a_fit_is_judged_by_the_samples_of_all() -> None:
    """Slopes 1, 1.1, 0.9 and −5 on z with Σ z² = s. On the four clients' samples 1 errs by 0,
    0.01·s, 0.01·s and 36·s, with lower median 0.01·s, and −5 by 36·s, 6.1²·s, 5.9²·s, 0."""
    gram, moment = stacked(sums_of(1, 1), sums_of(1.1, 1), sums_of(0.9, 1), sums_of(-5, 1))
    s = float(gram[0, 0, 0, 0])
    variances = judged(gram, moment)
    np.testing.assert_allclose(variances / s, [0.01, 0.01, 0.01, 5.9**2], rtol=5e-3)


def test_who_has_no_fit_is_judged_worst_and_does_not_judge() -> None:
    gram, moment = stacked(sums_of(1, 1), sums_of(1, 1), sums_of(1, 1))
    gram[2] = -gram[2]
    scores = judged(gram, moment)
    assert torch.isinf(scores).tolist() == [False, False, True]
    assert torch.isinf(judged(-gram[:2], moment[:2])).all()


def classes_of(*clients: list[tuple[float, int]]) -> list[ClassSums]:
    sums_of_clients = []
    for samples in clients:
        features = torch.tensor([[[x, 1.0] for x, _ in samples]])
        labels = torch.tensor([[label for _, label in samples]])
        sums = class_sums(LabelledVectors(features, labels, torch.ones(labels.shape)), 2)
        sums_of_clients.append(ClassSums(*(value[0] for value in sums)))
    return sums_of_clients


def test_sums_of_classes_by_hand() -> None:
    """Class 0 has means 1, 3 and −50: 1. Class 1 only the first two: their median 6. The third
    has four samples where two are usual, and counts with half of them."""
    clients = classes_of([(1, 0), (5, 1)], [(3, 0), (7, 1)], [(-50, 0)] * 4)

    def all_sums() -> Iterator[ClassSums]:
        return iter(clients)

    gram, moment, counts = robust_class_sums(all_sums, median)
    assert counts.tolist() == [1 + 1 + 2, 2]
    assert moment.tolist() == [[4 * 1, 4], [2 * 6, 2]]
    assert gram.tolist() == [[4 * 1 + 2 * 36, 4 + 12], [4 + 12, 6]]  # nothing varies within


def test_of_classes_nobody_widens_the_others_variance() -> None:
    """Within variances 1, 1 and 10⁴: the third is narrowed to 1. Counts are all alike."""
    wide = [(100.0, 0), (-100.0, 0)]
    clients = classes_of([(1, 0), (-1, 0)], [(1, 0), (-1, 0)], wide)
    gram, _, counts = robust_class_sums(lambda: iter(clients), median)
    assert counts.tolist() == [6, 0]
    assert gram[0, 0] == pytest.approx(6)
