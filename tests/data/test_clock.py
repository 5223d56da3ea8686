from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import (
    calendar_unit,
    clock_of,
    counts_excel_days,
    on_the_clock,
    sampling_step,
    stamps_of,
)

HOUR = np.timedelta64(3600, "s").astype("m8[us]")


def times(*texts: str) -> np.ndarray:
    return np.array(texts, dtype="datetime64[us]")


def column(*values: float) -> np.ndarray:
    return np.array(values)[:, None]


def test_the_step_is_the_most_common_distance() -> None:
    stamps = times("2014-01-01T00", "2014-01-01T01", "2014-01-01T04", "2014-01-01T05")
    assert sampling_step(stamps) == HOUR
    assert sampling_step(stamps[:1]) is None


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


MONTHS = ["2014-01-01", "2014-02-01", "2014-04-01"]


@pytest.mark.parametrize(
    ("cells", "unit", "numbers"),
    [
        (MONTHS, "months", [528, 529, 531]),
        (["2014-01", "2014-02", "2014-03"], "months", [528, 529, 530]),
        (["2014-01-31", "2014-02-28", "2014-03-31"], "months", [528, 529, 530]),
        (["1970-01-01", "1970-04-01", "1970-10-01"], "quarters", [0, 1, 3]),
        (["1998Q1", "1998 q2", "1998-Q4"], "quarters", [112, 113, 115]),
        (["1969-07-01", "1970-07-01", "1972-07-01"], "years", [-1, 0, 2]),
    ],
)
def test_steps_of_the_calendar_are_counted_if_asked(
    cells: list[str], unit: str, numbers: list[int]
) -> None:
    stamps = stamps_of(pd.Series(cells), "step", "column 'ds'", str, "a.csv")
    assert stamps.is_count
    assert (stamps.times.astype("datetime64[s]").astype(int)).tolist() == numbers
    assert stamps.notes == (f"times are counted in {unit} since 1970: {cells[0]} is {numbers[0]}",)


def test_steps_of_the_calendar_are_named_where_they_are_refused() -> None:
    months = np.array(MONTHS, dtype="datetime64[us]")
    with pytest.raises(DataError, match=r"the times are monthly, from 2014-01-01 .*time-unit"):
        on_the_clock(months, np.zeros((3, 1)), np.timedelta64(31, "D"), "a.csv")
    with pytest.raises(DataError, match=r"the times are quarterly, such as '1998Q1', .* --set"):
        stamps_of(pd.Series(["1998Q1", "1998Q2"]), "auto", "column 'ds'", str, "a.csv")


@pytest.mark.parametrize("days", [["2014-01-01", "2014-01-08", "2014-01-15"], MONTHS[:2]])
def test_other_dates_are_no_steps_of_the_calendar(days: list[str]) -> None:
    assert calendar_unit(np.array(days, dtype="datetime64[us]")) == ""


def test_excels_days_are_local_times() -> None:
    cells = pd.Series(["45292", "45292.041666667", "45292.083333333"])
    stamps = stamps_of(cells, "excel", "column 'ds'", str, "a.csv")
    expected = np.datetime64("2024-01-01T00", "us") + np.arange(3) * np.timedelta64(1, "h")
    assert (stamps.times == expected).all()
    assert not stamps.utc
    assert counts_excel_days(list(cells))
    assert not counts_excel_days(["45292", "7"])


@pytest.mark.parametrize(("zones", "notes"), [(("+01:00", "+02:00"), 1), (("+01:00", "+01:00"), 0)])
def test_offsets_that_change_are_noted(zones: tuple[str, str], notes: int) -> None:
    cells = pd.Series([f"2024-01-01 0{n}:00{zone}" for n, zone in enumerate(zones)])
    stamps = stamps_of(cells, "auto", "column 'ds'", str, "a.csv")
    assert len(stamps.notes) == notes
    assert all("the offset from UTC changes (+01:00, +02:00)" in note for note in stamps.notes)
