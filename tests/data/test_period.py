from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.data.period import find_period, weeks_repeat
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.sources import load_series
from fedproto_app.settings import DataSettings
from tests.helpers.real_data import real_data
from tests.helpers.waves import wave


@given(st.integers(4, 60), st.floats(-1, 1), st.integers(0, 9))
def test_a_noisy_sinusoid_with_a_trend(period: int, slope: float, seed: int) -> None:
    values = wave(period, 12 * period + 100, noise=0.2, seed=seed)
    actual = find_period(values + slope * np.arange(len(values)) / period)
    assert actual is not None
    assert abs(actual - period) <= period // 20


def test_two_peaks_a_day_are_one_period() -> None:
    assert find_period(wave(24, 480) + 0.9 * wave(12, 480)) == 24


def test_a_week_of_unequal_days_is_the_week() -> None:
    days = np.repeat([1.0, 1, 1, 1, 1, 0, 0], 24)
    assert find_period(np.tile(days, 6) + 0.1 * wave(24, 6 * 168)) == 168


def test_gaps_do_not_hide_the_period() -> None:
    values = wave(24, 480, noise=0.1)
    values[100:130] = np.nan
    values[::17] = np.nan
    assert find_period(values) == 24


@pytest.mark.parametrize(
    "values",
    [
        np.empty(0),
        np.full(50, np.nan),
        np.full(50, 3.0),
        np.arange(100.0),
        np.random.default_rng(0).standard_normal(1000),
        np.array([1.0, 2, 1, 2, 1]),
    ],
    ids=["empty", "missing", "constant", "trend", "noise", "five-values"],
)
def test_no_period_where_there_is_none(values: np.ndarray) -> None:
    assert find_period(values) is None


WEEKEND = np.repeat([0.0, 0, 0, 0, 0, 1, 1], 24)


@pytest.mark.parametrize(
    ("values", "repeat"),
    [
        (wave(24, 6 * 168, noise=0.3) + np.tile(WEEKEND, 6), True),
        (wave(24, 6 * 168, noise=0.3), False),  # no day is like another
        (np.r_[wave(24, 5 * 168, noise=0.3), np.tile(WEEKEND, 3)], False),  # after the train part
        (np.full(6 * 168, 2.0), False),
        (np.tile(WEEKEND, 1), False),
    ],
    ids=["weekends", "days", "later", "constant", "a-week"],
)
def test_weeks_repeat_if_a_value_is_nearer_to_that_seven_days_ago(
    values: np.ndarray, repeat: bool
) -> None:
    assert weeks_repeat([ClientSeries("a", values)], 24) is repeat


@pytest.mark.parametrize(
    ("name", "more", "repeat"),
    [
        ("electricity_2014_hourly", {}, True),
        ("milano_internet_hourly", {}, True),
        ("gefcom2012_wind_hourly", {"source": "long-csv", "columns": "power"}, False),
        ("beijing_air_weather_hourly", {"source": "long-csv", "columns": "pm25"}, False),
    ],
)
def test_weeks_of_public_series(name: str, more: dict[str, str], repeat: bool) -> None:
    path = real_data(f"{name}.csv.gz")
    series = load_series(DataSettings(**{"source": "wide-csv", "path": str(path), **more}))
    assert weeks_repeat(series, 24) is repeat


@pytest.mark.parametrize(
    ("name", "periods"),
    [
        ("milano_internet_hourly", {24, 168}),
        ("milano_internet_10min", {144, 1008}),
        ("electricity_2014_hourly", {24, 168}),
        ("m4_hourly", {24, 168}),
    ],
)
def test_real_data_have_days_and_weeks(name: str, periods: set[int]) -> None:
    settings = DataSettings(source="wide-csv", path=str(real_data(f"{name}.csv.gz")))
    actual = [find_period(series.values) for series in load_series(settings)]
    assert sum(period in periods for period in actual) >= 0.8 * len(actual)
