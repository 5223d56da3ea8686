from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import clock_of, on_the_clock, sampling_step, stamps_of

HOUR = np.timedelta64(3600, "s").astype("m8[us]")


def times(*texts: str) -> np.ndarray:
    return np.array(texts, dtype="datetime64[us]")


def column(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


def test_the_step_is_the_most_common_distance() -> None:
    stamps = times("2014-01-01T00", "2014-01-01T01", "2014-01-01T04", "2014-01-01T05")
    assert sampling_step(stamps) == HOUR
    assert sampling_step(stamps[:1]) is None


def test_missing_rows_become_nan() -> None:
    stamps = times("1970-01-02T00", "1970-01-02T01", "1970-01-02T03")
    values, start = on_the_clock(stamps, column(1, 2, 4), HOUR, "x.csv")
    np.testing.assert_array_equal(values[:, 0], [1, 2, np.nan, 4])
    assert start == 24


@pytest.mark.parametrize("day", ["1969-12-31", "2014-01-01", "2019-07-13"])
def test_equal_wall_clock_hours_have_equal_phase(day: str) -> None:
    start = on_the_clock(times(f"{day}T05", f"{day}T06"), column(1, 2), HOUR, "x.csv")[1]
    assert start % 24 == 5
    assert (start < 0) == (day < "1970")


@given(st.sets(st.integers(0, 40), min_size=21), st.integers(-(10**5), 10**5))
def test_every_value_stays_at_its_time(rows: set[int], origin: int) -> None:
    positions = np.array(sorted(rows))
    stamps = np.datetime64(0, "us") + (origin + positions) * HOUR
    values, start = on_the_clock(stamps, positions[:, None].astype(float), HOUR, "x.csv")
    present = np.flatnonzero(np.isfinite(values[:, 0]))
    assert start == origin + positions[0]
    np.testing.assert_array_equal(start + present, origin + positions)
    np.testing.assert_array_equal(values[present, 0], positions)


@pytest.mark.parametrize(
    ("stamps", "message"),
    [
        (["2014-01-01T00", "2014-01-01T00"], "2014-01-01 00:00:00 comes twice"),
        (["2014-01-01T01", "2014-01-01T00"], "must increase, but in row 2 2014-01-01 00:00:00 f"),
        (["2014-01-01T00", "NaT"], "row 2 has no time"),
        (["2014-01-01T00", "2014-01-01T00:20"], "lies 0:20:00 after the first"),
        (["2014-01-01T00", "2014-01-03T00"], "2 rows in 49 steps of 1:00:00: more gaps than rows"),
    ],
)
def test_bad_times_are_refused(stamps: list[str], message: str) -> None:
    with pytest.raises(DataError, match=rf"^x\.csv: .*{message}"):
        on_the_clock(times(*stamps), column(1, 2), HOUR, "x.csv")


@pytest.mark.parametrize(
    ("first", "second", "utc", "later"),
    [
        ("2024-03-04T22:30", "2024-03-04T23:30", False, "2024-03-05 00:30:00"),
        ("2024-03-04T22:30", "2024-03-04T23:30", True, "2024-03-05 00:30:00+00:00"),
        ("2024-02-27", "2024-02-28", False, "2024-02-29"),
        ("2024-02-27T06", "2024-02-28T06", False, "2024-02-29 06:00:00"),
        ("1969-12-31T22", "1969-12-31T23", False, "1970-01-01 00:00:00"),
    ],
)
def test_a_position_has_a_time(first: str, second: str, utc: bool, later: str) -> None:
    stamps = times(first, second)
    _, start = on_the_clock(stamps, column(1, 2), sampling_step(stamps), "x.csv")
    clock = clock_of(stamps, sampling_step(stamps), utc=utc)
    assert clock.time(start + 2) == later
    assert clock_of(stamps, None) is None


@pytest.mark.parametrize(
    ("cells", "first", "last"),
    [
        (["31.01.2024 13:00", "01.02.2024 00:00"], "2024-01-31T13:00", "2024-02-01T00:00"),
        (["1.1.24", "2.1.24"], "2024-01-01", "2024-01-02"),  # with dots the day comes first
        (["1/31/2024 1:00 PM", "1/31/2024 2:00 PM"], "2024-01-31T13:00", "2024-01-31T14:00"),
        (["1/31/2024 11:00AM", "1/31/2024 12:00PM"], "2024-01-31T11:00", "2024-01-31T12:00"),
        (["12-01-2024", "13-01-2024"], "2024-01-12", "2024-01-13"),  # 13 is no month
    ],
)
def test_the_whole_column_tells_the_order_of_day_and_month(
    cells: list[str], first: str, last: str
) -> None:
    times = stamps_of(pd.Series(cells), "auto", "time", str, "x.csv").times
    assert times.tolist() == np.array([first, last], dtype="datetime64[us]").tolist()


def test_dates_that_may_be_two_are_refused_with_both_readings() -> None:
    cells = pd.Series(["01/02/2024", "01/02/2024"])
    both = r"'01/02/2024' may be 2024-02-01 00:00:00 or 2024-01-02 00:00:00"
    with pytest.raises(DataError, match=both):
        stamps_of(cells, "auto", "time", str, "x.csv")
