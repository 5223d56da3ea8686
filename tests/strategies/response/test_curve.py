"""A response as curves, on cases small enough to compute by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.strategies.response.curve import curve, trained_range
from fedproto_app.strategies.response.features import FEATURES, Columns, Floats, Part, Response

PERIOD = 4
HINGE_AT_0, PERIOD_MEAN, COSINE = 6, 2, 12  # numbers of features, see test_features.py


def response_of(coefficients: Floats, *ends: tuple[float, float]) -> Response:
    """Return a response to two columns, of mean 10 and deviation 2, and of 0 and 1.

    coefficients: [parts, 16, 2]. ends: of each part's range.
    """
    columns = Columns(
        np.tile([10.0, 0.25], (3, 1)),
        np.tile([2.0, 0.4], (3, 1)),
        np.array([False, True]),
        np.array([True, True]),
    )
    parts = (
        Part(of_part.ravel(), np.full((3, 2), low), np.full((3, 2), high))
        for of_part, (low, high) in zip(coefficients, ends, strict=True)
    )
    return Response(columns, tuple(parts))


def test_a_curve_is_the_difference_to_the_mean() -> None:
    coefficients = np.zeros((1, FEATURES, 2))
    coefficients[0, HINGE_AT_0, 0] = 3.0  # max(v, 0)
    coefficients[0, PERIOD_MEAN, 0] = 1.0  # a value that lasts is this mean too
    points = np.array([6.0, 10.0, 12.0, 14.0])  # v = −2, 0, 1, 2
    response = response_of(coefficients, (-3.0, 3.0))
    np.testing.assert_allclose(curve(response, 0, points, PERIOD), [-2, 0, 4, 8], atol=1e-9)
    np.testing.assert_allclose(curve(response, 1, points, PERIOD), 0, atol=1e-9)


@pytest.mark.parametrize("period", [4, 24])
def test_what_depends_on_the_time_of_day_cancels_out(period: int) -> None:
    coefficients = np.zeros((1, FEATURES, 2))
    coefficients[0, COSINE:, 0] = 5.0
    response = response_of(coefficients, (-3.0, 3.0))
    np.testing.assert_allclose(curve(response, 0, np.array([7.0, 15.0]), period), 0, atol=1e-9)


def test_parts_add_up_within_their_ranges() -> None:
    coefficients = np.zeros((2, FEATURES, 2))
    coefficients[:, 0, 0] = 1.0, 10.0
    response = response_of(coefficients, (-1.0, 1.0), (-3.0, 3.0))
    np.testing.assert_allclose(
        curve(response, 0, np.array([8.0, 11.0, 14.0, 99.0]), PERIOD), [-11, 5.5, 21, 31], atol=1e-9
    )
    assert trained_range(response, 0) == (8.0, 12.0)


def test_a_column_of_0_and_1_stands_as_it_is() -> None:
    coefficients = np.zeros((1, FEATURES, 2))
    coefficients[0, 0, 1] = 2.0
    response = response_of(coefficients, (0.0, 1.0))
    np.testing.assert_allclose(
        curve(response, 1, np.array([0.0, 1.0]), PERIOD), [-0.5, 1.5], atol=1e-9
    )
    assert trained_range(response, 1) == (0.0, 1.0)
