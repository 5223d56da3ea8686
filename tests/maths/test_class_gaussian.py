"""The discriminant from sums: by hand, against scikit-learn, and which sums cannot be true."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from fedproto_app.maths.class_gaussian import (
    UNKNOWN_CLASS,
    ClassSums,
    LabelledVectors,
    OwnScatter,
    around_own_means,
    class_means,
    class_sums,
    directions,
    discriminant,
    lean_evidence,
    log_prior,
    means_differ,
    overall_mean,
    own_scatter,
    precision_factors,
    shortened,
    sizes,
    sums_fault,
    without_noise,
)
from fedproto_app.maths.ridge import triangle


def vectors_of(rows: list[list[float]], labels: list[int]) -> LabelledVectors:
    """Return one client's vectors, all present."""
    return LabelledVectors(torch.tensor([rows]), torch.tensor([labels]), torch.ones(1, len(labels)))


def of_first(sums: ClassSums) -> ClassSums:
    return ClassSums(*(part[0] for part in sums))


def classifier(sums: ClassSums, penalty: float) -> tuple[Tensor, Tensor]:
    means = class_means(sums.moment, sums.counts)
    [factor] = precision_factors(sums, [penalty])
    return discriminant(factor, overall_mean(sums), means, sums.counts > 0)


def drawn(codes: int, seed: int, clients: int = 6, samples: int = 12) -> LabelledVectors:
    """Vectors of three classes that lie apart. Client k adds k modulo `codes` to the labels."""
    draws = torch.Generator().manual_seed(seed)
    true = torch.randint(0, 3, (clients, samples), generator=draws)
    features = torch.randn(clients, samples, 4, generator=draws) + 3 * torch.eye(3, 4)[true]
    labels = (true + (torch.arange(clients) % codes).unsqueeze(1)) % 3
    return LabelledVectors(features, labels, torch.ones(clients, samples))


def of_all(sums: ClassSums) -> tuple[ClassSums, OwnScatter]:
    """Return the totals over the clients."""
    own = own_scatter(sums)
    return ClassSums(*(part.sum(0) for part in sums)), OwnScatter(*(part.sum(0) for part in own))


@pytest.mark.parametrize("seed", range(3))
def test_the_covariance_around_own_means_is_that_of_the_pooled_deviations(seed: int) -> None:
    vectors = drawn(3, seed, samples=4)  # so few that a client lacks classes
    deviations, means = [], 0
    for features, labels in zip(vectors.features.numpy(), vectors.labels.numpy(), strict=True):
        for label in set(labels.tolist()):
            of_class = features[labels == label].astype(np.float64)
            deviations.append(of_class - of_class.mean(axis=0))
            means += 1
    rows = np.concatenate(deviations)
    total, own = of_all(class_sums(vectors, 3))
    spread = around_own_means(total, own)
    covariance = own_scatter(spread).scatter / spread.counts.sum()
    np.testing.assert_allclose(covariance, rows.T @ rows / (len(rows) - means), rtol=1e-6)
    assert float(spread.counts.sum()) == pytest.approx(len(rows) - means)
    torch.testing.assert_close(
        class_means(spread.moment, spread.counts), class_means(total.moment, total.counts)
    )


@pytest.mark.parametrize("samples", [8, 100])
def test_other_codes_are_noticed_and_chance_is_not(samples: int) -> None:
    def differ(codes: int, seed: int) -> bool:
        return means_differ(*of_all(class_sums(drawn(codes, seed, samples=samples), 3)))

    assert [differ(2, seed) for seed in range(20)] == [True] * 20
    assert sum(differ(1, seed) for seed in range(100)) <= 5


def test_without_samples_to_spare_no_difference_is_seen() -> None:
    one_each = class_sums(drawn(3, 0, samples=1), 3)
    assert not means_differ(*of_all(one_each))
    assert not means_differ(*of_all(class_sums(drawn(3, 0, clients=1), 3)))


def test_by_hand() -> None:
    # Class 0: 1 and 3, class 1: 6 and 8. Means 2 and 7, variance within classes 1. With r = 1 and
    # n = 4 the penalty 4/3 is λ = 1, so S_λ = 2. All have the mean 4.5.
    sums = of_first(class_sums(vectors_of([[1.0], [3.0], [6.0], [8.0]], [0, 0, 1, 1]), 2))
    assert sums.gram.tolist() == [[110.0]]
    assert sums.moment.tolist() == [[4.0], [14.0]]
    assert sums.counts.tolist() == [2.0, 2.0]
    weight, offset = classifier(sums, 4 / 3)
    torch.testing.assert_close(weight, torch.tensor([[-1.25, 1.25]]).double())
    torch.testing.assert_close(offset, torch.tensor([4.0625, -7.1875]).double())
    between = (weight * 4.5 + offset)[0]  # halfway between the means both are as likely
    torch.testing.assert_close(between[0], between[1])


@pytest.mark.parametrize(
    ("rows", "count", "penalties"),
    [
        ([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], 2.0, [1.0, 1.0]),  # S = I
        ([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [-1.0, -1.0]], 1.0, [1.0, 1.0]),  # along one line
        # Here S = T = diag(9, 1/9). Up to a factor V is (3, 1/3), and so is S_jj / V_j. So
        # r = (3 + 1/3)² / (9 + 1/9) = 50/41, and s·V is (3 + 1/3) / 2 · (3, 1/3) = (5, 5/9).
        ([[3.0, 1 / 3], [3.0, -1 / 3], [-3.0, 1 / 3], [-3.0, -1 / 3]], 50 / 41, [5.0, 5 / 9]),
    ],
)
def test_the_penalty_goes_by_the_directions_in_which_features_vary(
    rows: list[list[float]], count: float, penalties: list[float]
) -> None:
    sums = of_first(class_sums(vectors_of(rows, [0] * 4), 1))
    [factor], within = precision_factors(sums, [2.0]), own_scatter(sums).scatter / 4
    ridge = factor @ factor.T - within
    torch.testing.assert_close(ridge, 6 * count / 4 * torch.tensor(penalties).diag().double())


def test_the_penalty_goes_by_the_variances_over_all_classes() -> None:
    # Within the classes, S = I. The classes' means are 2 and 7 in the first feature and 0 in the
    # second, so T = (7.25, 1), with the mean 4.125, and V = √4.125 · (√7.25, 1). Divided by √V, the
    # features vary by a = 1/√7.25 and 1 within classes, up to a factor that cancels. Then
    # r = (a + 1)² / (a² + 1), λ = 3 r / 8, and λ·s·V is λ · (a + 1) / 2 · (√7.25, 1).
    rows = [[first, second] for first in (1.0, 3.0, 6.0, 8.0) for second in (1.0, -1.0)]
    sums = of_first(class_sums(vectors_of(rows, [0, 0, 0, 0, 1, 1, 1, 1]), 2))
    a = 7.25**-0.5
    strength = 3 * (a + 1) ** 2 / (a**2 + 1) / 8 * (a + 1) / 2
    [factor] = precision_factors(sums, [1.0])
    expected = torch.tensor([1 + strength / a, 1 + strength]).diag().double()
    torch.testing.assert_close(factor @ factor.T, expected)


def test_the_common_unit_of_the_features_makes_no_difference() -> None:
    vectors = drawn(1, 0)
    in_units = vectors._replace(features=vectors.features * 5)
    total, total_in_units = (of_all(class_sums(part, 3))[0] for part in (vectors, in_units))
    weight, offset = classifier(total, 1.0)
    weight_in_units, offset_in_units = classifier(total_in_units, 1.0)
    torch.testing.assert_close(weight_in_units * 5, weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(offset_in_units, offset, rtol=1e-4, atol=1e-6)


def test_sums_in_single_precision_of_more_features_than_samples_give_a_classifier() -> None:
    draws = torch.Generator().manual_seed(0)
    deviations = torch.logspace(-4, 0, 300)
    labels = torch.arange(40) % 2
    rows = 1 + deviations * (torch.randn(40, 300, generator=draws) + labels.unsqueeze(1))
    vectors = LabelledVectors(rows.unsqueeze(0), labels.unsqueeze(0), torch.ones(1, 40))
    exact = of_first(class_sums(vectors, 2))
    rounded = ClassSums(*(part.float().double() for part in exact))
    weight, offset = classifier(rounded, 0.3)
    assert weight.isfinite().all()
    true_weight, true_offset = classifier(exact, 0.3)
    scores, true_scores = rows.double() @ weight + offset, rows.double() @ true_weight + true_offset
    torch.testing.assert_close(scores, true_scores, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("deviation", [0.0, 1e-3])
@pytest.mark.parametrize("samples", [10, 60, 1000])
def test_features_that_hardly_vary_give_a_classifier_in_single_precision(
    samples: int, deviation: float
) -> None:
    draws = torch.Generator().manual_seed(0)
    rows = torch.rand(800, generator=draws)
    rows = rows + deviation * torch.randn(samples, 800, generator=draws)
    labels = torch.arange(samples) % 2
    vectors = LabelledVectors(rows.unsqueeze(0), labels.unsqueeze(0), torch.ones(1, samples))
    rounded = ClassSums(*(part[0].float().double() for part in class_sums(vectors, 2)))
    assert classifier(rounded, 1.0)[0].isfinite().all()


def test_directions_of_anything_are_between_one_and_all() -> None:
    counts, none = torch.tensor([1.0]).double(), torch.zeros(1, 3).double()
    for scale in (0.0, 1e-200, 1.0, 1e200):
        sums = ClassSums(scale * torch.eye(3).double(), none, counts)
        assert float(directions(sums)) == pytest.approx(3)


def test_the_evidence_by_hand() -> None:
    # S = I of two features, so r = 2 and tr S = 2. Class 0: two samples of the client with mean
    # (1, 0), two of others with mean (0, 1), whose distance has the square 2. Class 1 only others
    # have.
    spread = of_first(
        class_sums(vectors_of([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], [0] * 4), 1)
    )
    local = torch.tensor([[2.0, 0.0], [0.0, 0.0]]), torch.tensor([2.0, 0.0])
    reference = torch.tensor([[0.0, 2.0], [9.0, 9.0]]), torch.tensor([2.0, 5.0])
    wide = spread._replace(gram=4 * spread.gram)
    for sums, trace in ((spread, 2), (wide, 8)):
        for lean, v in ((1.0, 2), (1e12, 1)):
            actual = lean_evidence(local, reference, sums, lean, directions(sums))
            assert float(actual) == pytest.approx(-math.log(v * trace) - 2 / (v * trace))


def test_one_covariance_for_several_clients_is_as_one_for_each() -> None:
    sums = class_sums(
        LabelledVectors(
            torch.randn(2, 9, 3, generator=torch.Generator().manual_seed(0)),
            torch.arange(9).remainder(3).expand(2, 9),
            torch.ones(2, 9),
        ),
        3,
    )
    first = of_first(sums)
    [factor], centre = precision_factors(first, [1.0]), overall_mean(first)
    means, has_samples = class_means(sums.moment, sums.counts), sums.counts > 0
    together = discriminant(factor, centre, means, has_samples)
    apart = discriminant(factor.expand(2, 3, 3), centre.expand(2, 3), means, has_samples)
    for joint, separate in zip(together, apart, strict=True):
        torch.testing.assert_close(joint, separate)


def test_a_class_that_nobody_has_is_never_chosen() -> None:
    sums = of_first(class_sums(vectors_of([[1.0], [3.0]], [0, 0]), 2))
    weight, offset = classifier(sums, 1.0)
    assert weight[:, 1].tolist() == [0.0]
    assert offset[1] == UNKNOWN_CLASS
    assert log_prior(sums.counts).tolist() == [0.0, UNKNOWN_CLASS]
    assert torch.isfinite(weight).all()


def test_what_is_not_present_does_not_count() -> None:
    masked = vectors_of([[1.0], [3.0], [99.0]], [0, 1, 1])
    masked.present[0, 2] = 0
    shorter = vectors_of([[1.0], [3.0]], [0, 1])
    for masked_sum, shorter_sum in zip(class_sums(masked, 2), class_sums(shorter, 2), strict=True):
        torch.testing.assert_close(masked_sum, shorter_sum)


class _WithPenalty:
    """A covariance estimator that adds a penalty to the covariance of a class."""

    def __init__(self, penalty: np.ndarray) -> None:
        self._penalty = penalty

    def fit(self, x: np.ndarray) -> _WithPenalty:
        self.covariance_ = np.cov(x.T, bias=True) + self._penalty
        return self


def test_it_is_scikit_learns_and_sums_of_parts_are_those_of_all() -> None:
    draws = np.random.default_rng(0)
    labels = draws.integers(0, 4, 200)
    features = draws.normal(size=(200, 6)) @ draws.normal(size=(6, 6)) + labels[:, None]
    parts = [
        of_first(class_sums(vectors_of(features[part].tolist(), labels[part].tolist()), 4))
        for part in (slice(0, 50), slice(50, 200))
    ]
    sums = parts[0].plus(parts[1])
    weight, offset = classifier(sums, 1e-9)
    ours = torch.from_numpy(features) @ weight + offset + log_prior(sums.counts)
    # Even a tiny penalty adds 2e-7 · D of the mean square to the variances.
    least = 6 * 2e-7 * np.square(features).mean() * np.eye(6)
    oracle = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=_WithPenalty(least))
    oracle.fit(features, labels)
    np.testing.assert_allclose(
        ours.softmax(dim=1).numpy(), oracle.predict_proba(features), atol=1e-4
    )


def test_few_samples_and_equal_ones_still_give_a_classifier() -> None:
    alone = of_first(class_sums(vectors_of([[1.0, 0.0], [0.0, 1.0]], [0, 1]), 3))
    equal = of_first(class_sums(vectors_of([[0.0, 0.0], [0.0, 0.0]], [0, 1]), 3))
    for sums in (alone, equal):
        weight, offset = classifier(sums, 1.0)
        assert torch.isfinite(weight).all()
        assert torch.isfinite(offset).all()
    weight, offset = classifier(alone, 1.0)
    assert (torch.eye(2).double() @ weight + offset).argmax(dim=1).tolist() == [0, 1]


TRUE = of_first(class_sums(vectors_of([[1.0, 2.0], [3.0, 1.0], [0.0, 1.0]], [0, 0, 1]), 3))
LIES = {
    "is not a possible number": TRUE._replace(counts=torch.tensor([2.5, 0.5, 0]).double()),
    "more than the 3 that it declared": TRUE._replace(counts=torch.tensor([2, 2, 0]).double()),
    "a mean square is": TRUE._replace(gram=TRUE.gram * 1e6),
    "a class without samples has a sum": TRUE._replace(
        moment=TRUE.moment + torch.tensor([[0, 0], [0, 0], [1, 0]]).double()
    ),
    "no samples have such sums": TRUE._replace(moment=TRUE.moment * 3),
}


def test_a_feature_with_a_negative_square_is_no_slack_of_another() -> None:
    gram = torch.diag(torch.tensor([3e8, -2.9])).double()
    crooked = ClassSums(gram, torch.zeros(3, 2).double(), torch.tensor([3, 0, 0]).double())
    assert sums_fault(crooked, 3, 1e8) == "no samples have such sums and products"


def test_sizes_see_a_large_class_among_many_small_samples() -> None:
    assert sizes(TRUE) == pytest.approx((2**2 + 1.5**2) / 2)  # class 0; all: 16 / 6
    moment = torch.tensor([[2.0, 2.0], [20.0, 0.0]]).double()
    few_samples = ClassSums(torch.eye(2).double() * 100, moment, torch.tensor([98, 2]).double())
    assert sizes(few_samples) == pytest.approx(50)  # (10² + 0²) / 2


@pytest.mark.parametrize("reason", LIES)
def test_sums_that_cannot_be_true(reason: str) -> None:
    assert sums_fault(TRUE, 3, 100.0) is None
    assert reason in str(sums_fault(LIES[reason], 3, 100.0))


@given(st.integers(0, 10_000), st.floats(0.1, 10))
def test_a_vector_adds_no_more_to_class_sums_than_its_bound(seed: int, clip: float) -> None:
    torch.manual_seed(seed)
    x = torch.randn(1, 1, 6) * 10 ** (seed % 4)
    sums = class_sums(LabelledVectors(shortened(x, clip), torch.tensor([[1]]), torch.ones(1, 1)), 3)
    parts = [triangle(sums.gram), sums.moment.flatten(1), sums.counts]
    length = torch.cat([part.flatten() for part in parts]).norm()
    assert float(length) <= (clip**4 + clip**2 + 1) ** 0.5 * (1 + 1e-6)


def test_a_class_within_the_noise_is_nobodys() -> None:
    gram, moment = torch.eye(2).double() * 50, torch.tensor([[5.0, 0], [9.0, 9.0]]).double()
    usable = without_noise(ClassSums(gram, moment, torch.tensor([10.0, 1.5]).double()), 1.0)
    assert usable.counts.tolist() == [10.0, 0.0]
    assert usable.moment.tolist() == [[5.0, 0.0], [0.0, 0.0]]


def test_sums_of_features_that_are_never_negative() -> None:
    assert sums_fault(TRUE, 3, 100.0, never_negative=True) is None
    negated = TRUE._replace(moment=-TRUE.moment)
    assert sums_fault(negated, 3, 100.0) is None  # its covariance within classes is the same
    reason = "its features are never negative, and a sum of them is -4"
    assert sums_fault(negated, 3, 100.0, never_negative=True) == reason
    unlike = TRUE._replace(gram=TRUE.gram * torch.tensor([[1.0, -1.0], [-1.0, 1.0]]).double())
    assert "a sum of them is -5" in str(sums_fault(unlike, 3, 100.0, never_negative=True))


def test_sums_that_count_for_less_than_their_samples() -> None:
    """Three samples that count as half of one each."""
    half = ClassSums(*(value / 2 for value in TRUE))
    assert "not a possible number" in str(sums_fault(half, 3, 100.0))
    assert sums_fault(half, 2, 100.0, sample_weight=0.5) is None
    assert "more than the 1" in str(sums_fault(half, 1, 100.0, sample_weight=0.5))
    less = half._replace(counts=half.counts * 0.9)
    assert "not a possible number" in str(sums_fault(less, 2, 100.0, sample_weight=0.5))


def test_each_of_several_penalties_has_its_own_factor() -> None:
    sums = class_sums(
        LabelledVectors(
            torch.randn(1, 20, 3, generator=torch.Generator().manual_seed(0)),
            torch.arange(20).view(1, 20) % 2,
            torch.ones(1, 20),
        ),
        2,
    )
    for factor, penalty in zip(precision_factors(sums, [3, 1, 2]), [3, 1, 2], strict=True):
        assert torch.equal(factor, precision_factors(sums, [penalty])[0])
