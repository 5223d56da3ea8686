"""Heads by hand, against liblinear's one-versus-rest, and against the normal equations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from sklearn.svm import LinearSVC

from fedproto_app.maths.linear_heads import (
    classifier_loss,
    fit_classifier,
    fit_regressor,
    regressor_loss,
    scores,
)

ABSENT = [0.0, 0.0, -1.0]


def column(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)[:, None]


def labels_of(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def noise(
    rows: int, columns: int, classes: int, shift: float = 0.0
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Vectors of classes that overlap, far from the origin if shifted."""
    rng = np.random.default_rng([rows, columns])
    labels = np.arange(rows) % classes
    vectors = rng.normal(size=(rows, columns)) + shift
    vectors[:, 0] += labels
    return vectors.astype(np.float32), labels


@pytest.mark.parametrize(
    ("vectors", "labels", "penalty", "expected"),
    [
        # At ∓1: ½w² + 2·penalty·(1 − w)² is least at w = 4·penalty/(1 + 4·penalty), and b = 0.
        ([-1, 1], [0, 1], 1.0, [4 / 5, 0]),
        ([-1, 1], [0, 1], 0.25, [1 / 2, 0]),
        ([-1, 1], [0, 1], 10.0, [40 / 41, 0]),
        # At 0, two of class 1: b·(1 + 6·penalty) = 2·penalty. A bias without penalty would be 1/3.
        ([0, 0, 0], [0, 1, 1], 1.0, [0, 2 / 7]),
        ([0, 0, 0], [0, 1, 1], 0.5, [0, 1 / 4]),
        ([0, 0, 0], [0, 1, 1], 100.0, [0, 200 / 601]),
    ],
)
def test_few_points_by_hand(
    vectors: list[float], labels: list[int], penalty: float, expected: list[float]
) -> None:
    head = fit_classifier(column(*vectors), labels_of(*labels), 2, penalty)
    np.testing.assert_allclose(head, [np.negative(expected), expected], atol=1e-4)


def test_an_absent_class_says_no_to_all() -> None:
    vectors, labels = noise(12, 2, 3)
    head = fit_classifier(vectors, np.array([0, 2, 5])[labels], 7, 1.0)
    assert head.shape == (7, 3)
    assert head.dtype == np.float32
    assert head[[1, 3, 4, 6]].tolist() == [ABSENT] * 4
    assert np.array_equal(head[[0, 2, 5]], fit_classifier(vectors, labels, 3, 1.0))


@pytest.mark.parametrize("rows", [1, 5])
def test_an_only_class_says_yes_to_all(rows: int) -> None:
    vectors = np.random.default_rng(0).normal(size=(rows, 2)).astype(np.float32)
    head = fit_classifier(vectors, np.full(rows, 1), 3, 1.0)
    assert head.tolist() == [ABSENT, [0, 0, 1], ABSENT]
    assert classifier_loss(head, vectors, np.full(rows, 1)) == 0


def liblinear(
    vectors: NDArray[np.float32], labels: NDArray[np.generic], penalty: float
) -> NDArray[np.float64]:
    """scikit-learn's head of the present classes. Two classes keep only the second's row."""
    machine = LinearSVC(C=penalty, random_state=0, max_iter=1_000_000, tol=1e-8)
    machine.fit(vectors.astype(np.float64), labels)
    weights = np.concatenate([machine.coef_, machine.intercept_[:, None]], axis=1)
    return np.concatenate([-weights, weights]) if len(weights) == 1 else weights


@pytest.mark.parametrize(
    ("rows", "columns", "classes", "penalty"),
    [
        (30, 3, 3, 0.5),  # more vectors than weights
        (200, 6, 2, 1.0),
        (8, 320, 3, 1.0),  # fewer
        (8, 20, 4, 0.5),
        (64, 320, 10, 1.0),  # as of a client of Fed-REACT
        (64, 320, 10, 0.01),
        (21, 20, 3, 10.0),  # as many
    ],
)
def test_heads_are_liblinears(rows: int, columns: int, classes: int, penalty: float) -> None:
    vectors, labels = noise(rows, columns, classes, shift=1.0)
    vectors /= np.float32(np.sqrt(columns))
    vectors[1], labels[1] = vectors[0], (labels[0] + 1) % classes  # nobody can part these two
    head = fit_classifier(vectors, labels, classes, penalty)
    present = np.unique(labels)
    np.testing.assert_allclose(head[present], liblinear(vectors, labels, penalty), atol=1e-5)


def test_newton_ends_where_the_gradient_is_zero() -> None:
    """With classes far apart, a full step goes too far and is halved."""
    vectors, labels = noise(300, 12, 3, shift=5.0)
    vectors *= 10
    head = fit_classifier(vectors, labels, 3, 50.0).astype(np.float64)
    inputs = np.concatenate([vectors, np.ones((300, 1))], axis=1, dtype=np.float64)
    signs = np.where(np.arange(3) == labels[:, None], 1.0, -1.0)
    errors = np.maximum(0.0, 1.0 - signs * (inputs @ head.T))
    pushes = 2 * 50.0 * inputs.T @ (signs * errors)
    largest = 2 * 50.0 * np.abs(inputs).T @ errors  # float32 rounds the head: of what it adds up
    assert (np.abs(head.T - pushes) < 1e-4 * largest.max()).all()


@pytest.mark.parametrize(("size", "penalty"), [(1e4, 1e6), (1e30, 1.0), (1e-30, 1e9), (0.0, 1.0)])
def test_the_scale_of_vectors_and_penalty_breaks_nothing(size: float, penalty: float) -> None:
    rng = np.random.default_rng(0)
    for columns in (5, 40):
        vectors = (size * rng.normal(size=(30, columns))).astype(np.float32)
        vectors[3:6] = vectors[0]
        head = fit_classifier(vectors, rng.integers(0, 2, 30), 2, penalty)
        assert np.isfinite(head).all()


@pytest.mark.parametrize(("rows", "columns"), [(9, 2), (4, 7)])
@pytest.mark.parametrize("penalty", [0.1, 1.0, 50.0])
def test_ridge_solves_its_normal_equations(rows: int, columns: int, penalty: float) -> None:
    """(XᵀX + diag(1, …, 1, 0)/(2·penalty))·θ = Xᵀy, X having a last column of ones."""
    rng = np.random.default_rng([rows, columns])
    vectors = (rng.normal(size=(rows, columns)) + 3).astype(np.float32)
    targets = rng.normal(size=rows) * 10 + 40
    with_ones = np.concatenate([vectors.astype(np.float64), np.ones((rows, 1))], axis=1)
    pull = np.diag([1.0] * columns + [0.0]) / (2 * penalty)
    expected = np.linalg.solve(with_ones.T @ with_ones + pull, with_ones.T @ targets)
    head = fit_regressor(vectors, targets, penalty)
    assert head.shape == (1, columns + 1)
    assert head.dtype == np.float32
    np.testing.assert_allclose(head[0], expected, rtol=1e-5, atol=1e-6)


def test_ridge_by_hand() -> None:
    """Points (∓1, 3 ∓ 2): ½w² + 2·(2 − w)² is least at w = 8/5, and b is their mean, untouched."""
    head = fit_regressor(column(-1, 1), np.array([1.0, 5.0]), 1.0)
    np.testing.assert_allclose(head, [[8 / 5, 3]], rtol=1e-6)
    # Of one vector, alone or repeated, it is the mean.
    vector = np.array([[5.0, -7.0, 2.0]], dtype=np.float32)
    assert fit_regressor(vector, np.array([4.5]), 1.0).tolist() == [[0, 0, 0, 4.5]]
    repeated = fit_regressor(np.repeat(vector, 3, axis=0), np.array([1.0, 2.0, 6.0]), 1.0)
    np.testing.assert_allclose(repeated, [[0, 0, 0, 3]], atol=1e-6)


HEAD = np.array([[1, 2, -1], [0, -1, 0.5], [0, 0, -1]], dtype=np.float32)
VECTORS = np.array([[1, 1], [2, -1]], dtype=np.float32)


def test_scores_and_losses_by_hand() -> None:
    """Gaps of vector 1, of class 0: 1 − 2 < 0, 1 − 0.5, 0. Of vector 2, of class 2:
    1 − 1 = 0, 1 + 1.5, 1 + 1."""
    assert scores(HEAD, VECTORS).tolist() == [[2, -0.5, -1], [-1, 1.5, -1]]
    assert classifier_loss(HEAD, VECTORS[:1], labels_of(0)) == 0.25
    assert classifier_loss(HEAD, VECTORS[1:], labels_of(2)) == 2.5**2 + 2**2
    mean_loss = (0.25 + 2.5**2 + 2**2) / 2
    assert classifier_loss(HEAD, VECTORS, labels_of(0, 2)) == mean_loss
    assert regressor_loss(HEAD[:1], VECTORS, np.array([0.0, -4.0])) == (2**2 + 3**2) / 2


@settings(max_examples=60)
@given(
    vectors=arrays(np.float32, (5, 3), elements=st.floats(-1e6, 1e6, width=32)),
    labels=st.lists(st.integers(0, 3), min_size=5, max_size=5),
    targets=arrays(np.float64, 5, elements=st.floats(-1e6, 1e6)),
    rows=st.integers(1, 5),
)
def test_finite_vectors_make_finite_heads_and_losses(
    vectors: NDArray[np.float32], labels: list[int], targets: NDArray[np.float64], rows: int
) -> None:
    vectors, classes, targets = vectors[:rows], np.array(labels[:rows]), targets[:rows]
    head = fit_classifier(vectors, classes, 4, 1.0)
    assert np.isfinite(head).all()
    assert np.isfinite(classifier_loss(head, vectors, classes))
    line = fit_regressor(vectors, targets, 1.0)
    assert np.isfinite(line).all()
    assert np.isfinite(regressor_loss(line, vectors, targets))


def test_the_largest_float32_numbers_give_finite_losses() -> None:
    """Their products overflow float32, and ∞ − ∞ would be no number."""
    vectors = np.full((1, 2), 3e38, dtype=np.float32)
    head = np.array([[3e38, -3e38, 0.0]], dtype=np.float32)
    assert classifier_loss(head, vectors, labels_of(0)) == 1
    assert regressor_loss(head, vectors, np.array([2.0])) == 4
