"""Clipping by hand; noise that is normal, and that a key alone decides."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from fedproto_app.maths.class_gaussian import (
    ClassSums,
    LabelledVectors,
    class_sums,
    shortened,
    without_noise,
)
from fedproto_app.maths.ridge import clipped_samples, definite, sums, triangle
from fedproto_app.trust.privacy_loss import clipped_rows, clipped_together, gaussian_noise


def test_a_row_is_shortened_to_the_length_and_a_short_one_stays() -> None:
    """‖(3, 4)‖ = 5, so at C = 2 it becomes (1.2, 1.6)."""
    rows = np.array([[3.0, 4.0], [0.6, 0.8], [0.0, 0.0]], np.float32)
    np.testing.assert_allclose(clipped_rows(rows, 2.0), [[1.2, 1.6], [0.6, 0.8], [0, 0]], rtol=1e-6)


def test_arrays_that_are_one_vector_are_shortened_together() -> None:
    """‖(2, (2, 1))‖ = 3."""
    clipped = clipped_together({"a": np.array([2.0]), "b": np.array([2.0, 1.0])}, 1.5)
    assert clipped["a"].tolist() == [1.0]
    assert clipped["b"].tolist() == [1.0, 0.5]


def test_huge_values_are_shortened_too() -> None:
    rows = np.full((1, 4), 3e38, np.float32)
    np.testing.assert_allclose(clipped_rows(rows, 1.0), 0.5)


def test_what_is_no_number_is_nothing() -> None:
    """Its place would tell of the data, however much noise is added."""
    rows = np.array([[np.nan, 3.0, 4.0], [np.inf, 0.0, 1.0]], np.float32)
    assert clipped_rows(rows, 5.0).tolist() == [[0, 3, 4], [0, 0, 1]]
    assert clipped_together({"a": rows[0]}, 5.0)["a"].tolist() == [0, 3, 4]


def test_noise_is_standard_normal_and_of_independent_entries() -> None:
    noise = gaussian_noise(b"key", 200_000)
    assert kstest(noise, "norm").pvalue > 0.01
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 0.01
    half = len(noise) // 2  # what one pair of uniform numbers made
    assert abs(np.corrcoef(noise[:half] ** 2, noise[half:] ** 2)[0, 1]) < 0.01


def test_the_key_decides_the_noise() -> None:
    assert np.array_equal(gaussian_noise(b"key", 7), gaussian_noise(b"key", 7))
    other_noise = gaussian_noise(b"kez", 10_000)
    assert abs(np.corrcoef(gaussian_noise(b"key", 10_000), other_noise)[0, 1]) < 0.05


@given(st.integers(0, 10_000), st.floats(0.1, 10))
def test_a_sample_adds_no_more_to_regressions_sums_than_its_bound(seed: int, clip: float) -> None:
    """Samples have lengths up to some thousand, and weights 0 or 1."""
    torch.manual_seed(seed)
    x, y = torch.randn(1, 5) * 10 ** (seed % 4), torch.randn(1, 1) * 10 ** (seed % 3)
    gram, moment = sums(*clipped_samples(x, y, clip), torch.ones(1))
    length = torch.cat([triangle(gram), moment.flatten()]).norm()
    assert float(length) <= clip**2 * (1 + 1e-6)


@given(st.integers(0, 10_000), st.floats(0.1, 10))
def test_a_vector_adds_no_more_to_class_sums_than_its_bound(seed: int, clip: float) -> None:
    torch.manual_seed(seed)
    x = torch.randn(1, 1, 6) * 10 ** (seed % 4)
    sums = class_sums(LabelledVectors(shortened(x, clip), torch.tensor([[1]]), torch.ones(1, 1)), 3)
    parts = [triangle(sums.gram), sums.moment.flatten(1), sums.counts]
    length = torch.cat([part.flatten() for part in parts]).norm()
    assert float(length) <= (clip**4 + clip**2 + 1) ** 0.5 * (1 + 1e-6)


def test_what_may_be_noise_alone_is_raised_to_the_noise() -> None:
    """Eigenvalues 100 and 1 of two entries; noise of 1 has eigenvalues up to 2·√2 = 2.83."""
    turned = torch.tensor([[0.6, -0.8], [0.8, 0.6]]).double()
    gram = turned @ torch.diag(torch.tensor([100.0, 1.0]).double()) @ turned.T
    values = torch.linalg.eigvalsh(definite(gram, 1.0))
    assert values.tolist() == pytest.approx([8**0.5, 100.0])


def test_noise_has_no_larger_eigenvalues_than_told() -> None:
    width = 200
    entries = torch.from_numpy(gaussian_noise(b"matrix", width * width)).view(width, width)
    noise = entries.triu() + entries.triu(1).T
    assert float(torch.linalg.eigvalsh(noise).abs().max()) < 1.1 * 2 * width**0.5


def test_a_class_within_the_noise_is_nobodys() -> None:
    gram, moment = torch.eye(2).double() * 50, torch.tensor([[5.0, 0], [9.0, 9.0]]).double()
    usable = without_noise(ClassSums(gram, moment, torch.tensor([10.0, 1.5]).double()), 1.0)
    assert usable.counts.tolist() == [10.0, 0.0]
    assert usable.moment.tolist() == [[5.0, 0.0], [0.0, 0.0]]
