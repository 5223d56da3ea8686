"""The interval of the median ratio: exact cases, and its coverage where clients share days."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.verdict_coverage import coverage, made_errors
from fedproto_app.maths.two_way_bootstrap import median_ratio_interval


def test_it_covers_where_clients_depend_on_common_days() -> None:
    """Over clients alone 95% would be 73%."""
    assert coverage(20, 14, 0.1, days_drawn=True, trials=300) >= 0.9
    assert coverage(20, 14, 0.1, days_drawn=False, trials=300) < 0.8


def test_equal_gains_on_all_days_are_certain() -> None:
    rival = np.arange(1.0, 13).reshape(3, 4)
    assert median_ratio_interval(0.75 * rival, rival) == pytest.approx((0.75, 0.75))


def test_one_column_draws_clients_only() -> None:
    """The median of three drawn clients of ratios 1, 2 and 3 is 1 in 7 of 27 draws, so both ends
    are the extremes."""
    errors = np.array([[1.0], [2.0], [3.0]])
    assert median_ratio_interval(errors, np.ones_like(errors)) == (1.0, 3.0)


def test_one_client_draws_days_only() -> None:
    """A day with ratio 1 and a day with ratio 3: both days, or one of them twice."""
    assert median_ratio_interval(np.array([[1.0, 3.0]]), np.ones((1, 2))) == (1.0, 3.0)


def test_a_client_without_an_error_is_infinitely_worse() -> None:
    errors = np.array([[np.inf, np.inf], [0.5, 0.5]])
    assert median_ratio_interval(errors, np.ones((2, 2))) == (0.5, np.inf)


def test_a_client_counts_only_on_its_days() -> None:
    """The first client has values on day 1 only, the second on day 2 only. Both halve the error."""
    rival = np.array([[1.0, 0.0], [0.0, 1.0]])
    assert median_ratio_interval(rival / 2, rival) == pytest.approx((0.5, 1.0))


def test_many_clients_are_judged_in_parts_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors, rival = made_errors(np.random.default_rng(0), 9, 8, 0.3)
    interval = median_ratio_interval(errors, rival)
    monkeypatch.setattr("fedproto_app.maths.two_way_bootstrap._AT_ONCE", 9 * 7)
    assert median_ratio_interval(errors, rival) == interval
