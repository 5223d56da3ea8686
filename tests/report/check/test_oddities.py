"""Oddities of a series, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.data.series import ClientSeries
from fedproto_app.report.check.forecasting import (
    LARGEST_SCALED,
    Oddities,
    Outliers,
    oddities_of,
    outliers_of,
)
from fedproto_app.settings import DataSettings
from tests.helpers.waves import wave

# Twenty values at period 4, from the fifth on forecast: 12 train, 2 validation, 2 test samples.
SMALL = DataSettings(
    period=4, close_window=1, periodic_window=1, train_share=0.75, validation_share=0.125
)


def odd(values: np.ndarray, settings: DataSettings = SMALL) -> Oddities:
    return oddities_of(ClientSeries("a", values), settings)


def test_an_outlier_lies_ten_robust_deviations_off() -> None:
    """−2 … 2 over and over: the median is 0, the median distance 1, so the limit is 14.826."""
    values = np.tile([-2.0, -1, 0, 1, 2], 20)
    values[41] = 14.8
    assert outliers_of(values, 4) is None
    values[41], values[67] = 14.9, -29.652
    assert outliers_of(values, 4) == Outliers(2, 67, -29.652, pytest.approx(20))


def test_values_that_repeat_after_a_period_are_no_outliers() -> None:
    values = np.tile([-2.0, -1, 0, 1, 2], 20)
    values[::20] = 30  # every fourth period
    values[3::20] = 30
    assert outliers_of(values, 20) is None
    assert outliers_of(values, 7) == Outliers(10, 0, 30, pytest.approx(30 / 1.4826))


def test_where_most_values_are_equal_the_standard_deviation_counts() -> None:
    values = np.zeros(400)
    values[7] = 1.0  # its deviation is 0.05: 20 of them
    assert outliers_of(values, 24) == Outliers(1, 7, 1, pytest.approx(20, rel=0.01))
    assert outliers_of(np.full(400, 3.0), 24) is None


def test_missing_values_are_none_and_near_none() -> None:
    values = np.tile([-2.0, -1, 0, 1, 2], 20)
    values[[10, 38, 46]] = np.nan
    assert outliers_of(values, 4) is None
    values[42] = 20
    assert outliers_of(values, 4) == Outliers(1, 42, 20, pytest.approx(20 / 1.4826))


def test_a_shift_between_train_and_test_by_hand() -> None:
    """Train: 0 and 2 in turn (mean 1, deviation 1), test: 3 and 7 (mean 5, deviation 2)."""
    values = np.array([0.0, 2] * 9 + [3, 7])
    oddity = odd(values)
    assert (oddity.shift, oddity.ratio, oddity.largest) == (4, 2, 6)
    assert (oddity.is_shifted, oddity.is_spread, oddity.constant) == (True, False, False)
    assert oddity.notes == "test mean +4.0"
    values[-1] = 7.5
    assert odd(values).notes == "test mean +4.2, test spread ×2.2"
    assert odd(np.array([0.0, 2] * 9 + [1.2, 1.8])).notes == "test spread ×0.3"
    assert odd(np.array([0.0, 2] * 10)).notes == ""


def test_a_constant_train_part_has_no_ratio() -> None:
    oddity = odd(np.array([5.0] * 16 + [5, 6, 9, 8]))
    assert oddity.constant
    assert np.isnan(oddity.ratio)
    assert oddity.notes == "train part constant"


@pytest.mark.parametrize("size", [1e17, 1e200])
def test_a_test_part_whose_errors_would_be_refused(size: float) -> None:
    values = wave(24, 480)
    values[-1] = size
    oddity = odd(values, DataSettings())
    assert oddity.largest > LARGEST_SCALED
    assert oddity.notes == "1 outlier, too large"


def test_values_that_overflow_in_the_train_part() -> None:
    values = wave(24, 480)
    values[100] = 1e300
    assert odd(values, DataSettings()).is_too_large


def test_an_ordinary_series_is_not_odd() -> None:
    oddity = odd(wave(24, 480), DataSettings())
    assert (oddity.outliers, oddity.notes) == (None, "")
