"""φ of known columns, on cases small enough to compute by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedproto_app.strategies.response.features import (
    FEATURES,
    Columns,
    Part,
    Response,
    features,
    filled,
    trailing_means,
)

PERIOD = 4


def columns_of(mean: float, deviation: float, *, plain: bool = False, used: bool = True) -> Columns:
    return Columns(
        np.full((3, 1), mean), np.full((3, 1), deviation), np.array([plain]), np.array([used])
    )


def test_trailing_means_are_over_what_there_is() -> None:
    means = trailing_means(
        np.array([[2.0], [4.0], [6.0], [8.0], [10.0], [12.0], [14.0], [16.0]]), 8
    )
    np.testing.assert_allclose(means[:, 0, 0], [2, 4, 6, 8, 10, 12, 14, 16])
    np.testing.assert_allclose(means[:, 1, 0], [2, 3, 5, 7, 9, 11, 13, 15])  # of two
    np.testing.assert_allclose(means[:, 2, 0], [2, 3, 4, 5, 6, 7, 8, 9])  # of eight


def test_a_gap_has_the_value_before_it() -> None:
    columns = np.array([[np.nan, 1.0], [2.0, np.nan], [np.nan, np.nan]])
    np.testing.assert_array_equal(filled(columns), [[np.nan, 1.0], [2.0, 1.0], [2.0, 1.0]])


def test_a_column_gives_hinges_and_waves() -> None:
    v = np.array([[[2.0], [-2.0], [0.5]]])
    phi = features(v, np.array([1]), PERIOD, columns_of(0, 1))[0]  # a quarter of the period: sin
    expected = [
        *(2.0, -2.0, 0.5),  # v
        *(2.0, -1.0, 0.5),  # max(v + 1, 0) − 1
        *(2.0, 0.0, 0.5),  # max(v, 0)
        *(1.0, 0.0, 0.0),  # max(v − 1, 0)
        *(0.0, 0.0, 2.0, 2.0),  # v and max(v, 0), times cos and sin
    ]
    np.testing.assert_allclose(phi, expected, atol=1e-12)


def test_values_are_standardised_and_cut() -> None:
    v = columns_of(10, 2).standardised(np.array([[14.0], [10.0], [30.0]]), PERIOD)
    np.testing.assert_allclose(v[:, 0, 0], [2, 0, 3])


def test_a_missing_column_has_no_features() -> None:
    columns = columns_of(10, 2)
    v = columns.standardised(np.full((5, 1), np.nan), PERIOD)
    assert not features(v, np.arange(5), PERIOD, columns).any()


def test_a_column_that_does_not_vary_anywhere_has_no_features() -> None:
    columns = columns_of(10, 0)
    v = columns.standardised(np.full((5, 1), 10.0), PERIOD)
    assert not features(v, np.arange(5), PERIOD, columns).any()


def test_a_column_of_0_and_1_is_one_feature_as_it_stands() -> None:
    columns = columns_of(0.1, 0.3, plain=True)
    v = columns.standardised(np.array([[0.0], [1.0]]), PERIOD)
    phi = features(v, np.arange(2), PERIOD, columns)
    np.testing.assert_array_equal(phi[:, 0], [0, 1])
    assert not phi[:, 1:].any()
    assert columns.features.tolist() == [True] + [False] * (FEATURES - 1)


def test_a_column_that_is_not_used_has_no_features() -> None:
    columns = columns_of(0, 1, used=False)
    assert not columns.features.any()
    assert not columns.standardised(np.ones((3, 1)), PERIOD).any()


def test_a_response_is_the_sum_of_its_parts_within_their_ranges() -> None:
    slope = np.zeros(FEATURES)
    slope[0] = 1.0
    low, high = np.full((3, 1), -1.0), np.full((3, 1), 1.0)
    response = Response(
        columns_of(0, 1), (Part(slope, low, high), Part(2 * slope, -low * 0, 3 * high))
    )
    values = response.values(np.array([[-2.0], [0.5], [2.0]]), 0, PERIOD)
    np.testing.assert_allclose(values, [-1.0 + 0, 0.5 + 1, 1.0 + 4])
    copy = Response.read(json.loads(json.dumps(response.numbers())))
    np.testing.assert_array_equal(copy.values(np.array([[2.0]]), 0, PERIOD), [5.0])


@pytest.mark.parametrize("start", [0, 3])
def test_the_phase_is_that_of_the_clock(start: int) -> None:
    coefficients = np.zeros(FEATURES)
    coefficients[12] = 1.0  # v · cos
    part = Part(coefficients, np.full((3, 1), -3.0), np.full((3, 1), 3.0))
    values = Response(columns_of(0, 1), (part,)).values(np.ones((4, 1)), start, PERIOD)
    np.testing.assert_allclose(values, np.cos(np.pi / 2 * (start + np.arange(4))), atol=1e-12)
