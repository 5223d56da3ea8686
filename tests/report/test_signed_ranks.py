from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import wilcoxon

from fedproto_app.report.comparison import holm, signed_rank


def test_six_clients_that_all_gain() -> None:
    """2 of the 2⁶ ways to sign the ranks are as extreme: all of one sign."""
    gains = -np.arange(1.0, 7.0)
    assert signed_rank(gains) == pytest.approx(2 / 64)
    assert signed_rank(-gains) == pytest.approx(2 / 64)


def test_one_small_loss_among_seven() -> None:
    """Rank sums up to 1: all of one sign, or only rank 1 of the other; both ways: 4 of 2⁷."""
    assert signed_rank(np.array([1.0, -2, -3, -4, -5, -6, -7])) == pytest.approx(4 / 128)


def test_many_clients_agree_with_scipy_and_zeros_say_nothing() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 80))
    expected = wilcoxon(first, second).pvalue
    assert signed_rank(first - second) == pytest.approx(expected)
    assert signed_rank(np.append(first - second, np.zeros(9))) == pytest.approx(expected)


def test_five_clients_are_too_few() -> None:
    assert signed_rank(np.arange(1.0, 6.0)) is None
    assert signed_rank(np.append(np.arange(1.0, 6.0), 0)) is None
    assert signed_rank(np.zeros(0)) is None


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.03, 0.5: times 4, 3, 2, 1 = 0.04, 0.06, 0.06, 0.5."""
    assert holm([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm([0.02, 0.011]) == pytest.approx([0.022, 0.022])  # 0.02 · 1 lies below 0.011 · 2
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
