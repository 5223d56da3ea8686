from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import (
    DAY,
    Clock,
    Stamps,
    common_clock,
    counts_excel_days,
    on_the_clock,
    sampling_step,
    stamps_of,
)
from fedproto_app.settings.choice import TimeUnit

HOUR = np.timedelta64(3600, "s").astype("m8[us]")
HOURLY = Clock(HOUR, 0 * HOUR)


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
    values, start = on_the_clock(stamps, positions[:, None].astype(float), HOURLY, "x.csv")
    present = np.flatnonzero(np.isfinite(values[:, 0]))
    assert start == origin + positions[0]
    np.testing.assert_array_equal(start + present, origin + positions)
    np.testing.assert_array_equal(values[present, 0], positions)


@pytest.mark.parametrize(
    ("stamps", "message"),
    [
        (["2014-01-01T00", "2014-01-01T00:20"], "lies 0:20:00 after the first"),
        (["2014-01-01T00", "2014-01-03T00"], "2 rows in 49 steps of 1:00:00: more gaps than rows"),
    ],
)
def test_bad_times_are_refused(stamps: list[str], message: str) -> None:
    with pytest.raises(DataError, match=rf"^x\.csv: .*{message}"):
        on_the_clock(times(*stamps), column(1, 2), HOURLY, "x.csv")


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
    clock = common_clock([Stamps(stamps, utc)])
    assert clock is not None
    _, start = on_the_clock(stamps, column(1, 2), clock.shifted_to(stamps), "x.csv")
    assert clock.shifted_to(stamps).time(start + 2) == later
    assert common_clock([Stamps(stamps[:1])]) is None


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
    readings = r"'01/02/2024' may be 2024-02-01 00:00:00 or 2024-01-02 00:00:00"
    with pytest.raises(DataError, match=readings):
        stamps_of(cells, "auto", "time", str, "x.csv")


def stamps(*cells: object, unit: TimeUnit = "auto") -> Stamps:
    return stamps_of(pd.Series(list(cells)), unit, "column 'ds'", str, "a.csv")


def clock_of(times: Any) -> Clock:
    stamps = np.asarray(times, dtype="datetime64[us]")
    clock = common_clock([Stamps(stamps)])
    assert clock is not None
    return clock.shifted_to(stamps)


SIX_DAYS = pd.offsets.CustomBusinessDay(weekmask="Mon Tue Wed Thu Fri Sat")


@pytest.mark.parametrize(
    ("freq", "words", "cycle"),
    [
        ("MS", "monthly, at the month's start", 12),
        ("ME", "monthly, at the month's end", 12),
        ("BMS", "monthly, on the first business day of the month", 12),
        ("BME", "monthly, on the last business day of the month", 12),
        ("QS", "quarterly from January on, at the month's start", 4),
        ("QE-JAN", "quarterly from January on, at the month's end", 4),
        ("YE-JUN", "yearly in June, at the month's end", 0),
        ("2MS", "every 2 months from February on, at the month's start", 6),
        ("B", "business days, Monday to Friday", 5),
        (SIX_DAYS, "days but Sundays", 6),
        (pd.offsets.CustomBusinessDay(weekmask="Tue Thu"), "days on Tuesdays and Thursdays", 2),
        ("W-FRI", "every 7 days", 0),
        ("28D", "every 28 days", 0),
        ("D", "every 1 day", 7),
        ("30min", "every 30 min", 48),
    ],
)
def test_times_of_pandas_go_on_as_in_pandas(freq: Any, words: str, cycle: int) -> None:
    """A tenth of the rows is missing, none of the first and last, and the clock is the same."""
    times = pd.date_range("1969-01-03", periods=300, freq=freq).to_numpy("datetime64[us]")
    has_row = np.random.default_rng(0).random(200) > 0.1
    has_row[[0, -1]] = True
    clock = clock_of(times[:200][has_row])
    assert (clock.words, clock.cycle) == (words, cycle)
    start = clock.positions(times[:1])[0]
    assert (clock.moments(start + np.arange(300)) == times).all()
    assert (clock.positions(times) == start + np.arange(300)).all()


@pytest.mark.parametrize(
    ("days", "words", "further"),
    [
        (["2014-01-15", "2014-02-15", "2014-04-15"], "monthly, on day 15", "2014-05-15"),
        (["2024-12-31", "2025-01-31", "2025-02-28"], "monthly, at the month's end", "2025-03-31"),
        (["2024-11-30", "2025-01-31", "2025-02-28"], "monthly, at the month's end", "2025-03-31"),
        (["2014-01-01", "2014-02-01"], "every 31 days", "2014-03-04"),
        (["2014-01-01", "2014-01-29", "2014-02-26"], "every 28 days", "2014-03-26"),
    ],
)
def test_months_are_on_one_day_or_at_the_end(days: list[str], words: str, further: str) -> None:
    clock = clock_of(times(*days))
    assert clock.words == words
    assert clock.time(int(clock.positions(times(days[-1]))[0]) + 1) == further


def test_two_weeks_or_days_missing_at_random_are_no_weekdays_without_steps() -> None:
    days = pd.date_range("2024-01-01", periods=14, freq="B")
    assert clock_of(days).words == "every 1 day"
    six_days = pd.date_range("2024-01-01", periods=36, freq=SIX_DAYS)
    rare = six_days[np.random.default_rng(0).random(36) > 0.4]
    assert clock_of(rare).words == "every 1 day"
    assert clock_of(six_days).words == "days but Sundays"


def test_clients_of_one_step_keep_their_own_days() -> None:
    starts, ends = (pd.date_range("2024-01-01", periods=5, freq=freq) for freq in ("MS", "ME"))
    clients = [Stamps(days.to_numpy("datetime64[us]")) for days in (starts, ends)]
    clock = common_clock(clients)
    assert clock is not None
    clocks = [clock.shifted_to(client.times) for client in clients]
    assert [of_client.time(600) for of_client in clocks] == ["2020-01-01", "2020-01-31"]
    weekly = [Stamps(np.arange(day, 60, 7).astype("M8[D]").astype("M8[us]")) for day in (0, 3)]
    assert common_clock(weekly).words == "every 7 days"


def test_times_between_the_steps_of_the_calendar_are_refused() -> None:
    monthly = clock_of(pd.date_range("2014-01-01", periods=9, freq="MS"))
    with pytest.raises(
        DataError, match="2014-02-03 00:00:00 in row 2 is no step of the other rows"
    ):
        on_the_clock(times("2014-01-01", "2014-02-03"), column(1, 2), monthly, "a.csv")
    about_a_month = times("2014-01-10", "2014-02-11", "2014-03-13")
    with pytest.raises(
        DataError, match="months are read if all rows lie on one day up to the 28th"
    ):
        on_the_clock(about_a_month, column(1, 2, 3), clock_of(about_a_month), "a.csv")


days_without = st.integers(1, 126).map(lambda digits: f"{digits:07b}")
time_of_day = st.integers(0, 86_399_999_999).map(lambda size: np.timedelta64(size, "us"))
of_weekdays = st.builds(Clock, st.just(DAY), time_of_day, st.booleans(), st.just(0), days_without)


@st.composite
def of_months(draw: st.DrawFn) -> Clock:
    size = draw(st.sampled_from([1, 2, 3, 4, 6, 12, 24, 36]))
    day = draw(st.integers(-1, 27) | st.sampled_from([0, -1]))
    week = draw(st.just("1111111") | st.just("1111100")) if day in (0, -1) else "1111111"
    offset = day * DAY + draw(time_of_day)
    month = draw(st.integers(0, size - 1))
    return Clock(np.timedelta64(size, "M"), offset, draw(st.booleans()), month, week)


@settings(max_examples=2000, deadline=None)
@given(of_months() | of_weekdays, st.integers(-300, 300))
def test_positions_become_times_and_positions_again(clock: Clock, first: int) -> None:
    positions = first + np.arange(15)
    moments = clock.moments(positions)
    assert (np.diff(moments) > np.timedelta64(0)).all()
    assert (clock.positions(moments) == positions).all()
    assert clock.first_at(moments[3].item()) == positions[3]
    assert clock.first_at((moments[3] + np.timedelta64(1, "us")).item()) == positions[4]
    assert Clock.from_numbers(clock.numbers()) == clock


@pytest.mark.parametrize(
    ("cells", "unit", "begins", "further"),
    [
        (["1998Q1", "1998-Q2", "q3 1998"], "auto", ["1998-01", "1998-04", "1998-07"], "1998Q4"),
        (["2010M11", "2010M12"], "auto", ["2010-11", "2010-12"], "2011-01"),
        (["2010-11", "2010-12"], "auto", ["2010-11", "2010-12"], "2011-01"),
        (["2024-W52", "2025-W01"], "auto", ["2024-12-23", "2024-12-30"], "2025-01-06"),
        (["1969", "1970", "1971"], "year", ["1969", "1970", "1971"], "1972"),
    ],
)
def test_periods_are_the_times_at_which_they_begin(
    cells: list[str], unit: TimeUnit, begins: list[str], further: str
) -> None:
    read = stamps(*cells, unit=unit)
    assert (read.times == np.array(begins, dtype="datetime64[us]")).all()
    clock = common_clock([read])
    assert clock is not None
    clock = clock.shifted_to(read.times)
    assert clock.time(int(clock.positions(read.times)[-1]) + 1) == further


@pytest.mark.parametrize(
    ("cells", "unit", "message"),
    [
        (["1998Q1", "1998Q5"], "auto", "1: expected a period such as '1998Q1', got '1998Q5'"),
        (["1998Q1", "1998M02"], "auto", "1: expected a period such as '1998Q1', got '1998M02'"),
        (["1998", "1999.5"], "year", "1: expected a year from 1 to 9999, got '1999.5'"),
        (["1998", "1999"], "auto", "to year for years, or to step if these are numbers of steps"),
    ],
)
def test_other_cells_are_no_periods(cells: list[str], unit: TimeUnit, message: str) -> None:
    with pytest.raises(DataError, match=message):
        stamps(*cells, unit=unit)


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
