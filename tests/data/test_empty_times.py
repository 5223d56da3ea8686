from __future__ import annotations

import numpy as np
import pytest

from fedproto_app.data.clock import Clock
from fedproto_app.data.empty_times import FEWEST_TIMES, empty_times_text, is_empty_time
from fedproto_app.data.series import ClientSeries

HOUR, DAY = np.timedelta64(3_600_000_000, "us"), np.timedelta64(86_400_000_000, "us")
MONDAY = (np.datetime64("2024-03-04") - np.datetime64("1970-01-01")).astype(int)


def series(
    days: int, step: np.timedelta64 = HOUR, *, start: int | None = None, utc: bool = False
) -> ClientSeries:
    """Return a series without a gap from a Monday, 2024-03-04, on."""
    a_day = int(DAY / step)
    start = MONDAY * a_day if start is None else start
    return ClientSeries("a", np.ones(days * a_day), start, clock=Clock(step, 0 * step, utc))


def without(
    client: ClientSeries, weekdays: tuple[int, ...] = (), hours: tuple[int, ...] = ()
) -> str:
    """Return the words for the series without values on these days and at these hours."""
    assert client.clock is not None
    hour = (client.clock.seconds(client.start + np.arange(len(client.values))) / 3600).astype(int)
    weekday = (hour // 24 + 3) % 7
    client.values[np.isin(weekday, weekdays) | np.isin(hour % 24, hours)] = np.nan
    return empty_times_text(client, 24)


def test_a_shop_that_never_opens_on_sundays_is_forecast_on_the_other_days() -> None:
    shop = series(7 * FEWEST_TIMES, DAY)
    shop.values[6::7] = np.nan
    ahead = shop.start + len(shop.values) + np.arange(14)
    assert np.flatnonzero(is_empty_time(shop, ahead, 7)).tolist() == [6, 13]
    assert empty_times_text(shop, 7) == "on Sundays"


def test_a_handful_decides_and_one_value_is_enough() -> None:
    short = series(7 * (FEWEST_TIMES - 1), DAY)
    short.values[6::7] = np.nan
    assert empty_times_text(short, 7) == ""
    opened = series(7 * 20, DAY)
    opened.values[6::7] = np.nan
    opened.values[13] = 1
    assert empty_times_text(opened, 7) == ""


@pytest.mark.parametrize(
    ("weekdays", "hours", "words"),
    [
        ((5, 6), (), "on Saturdays and Sundays"),
        ((), (22, 23, 0, 1), "from 22:00 to 01:00"),
        ((6,), (2, 3), "on Sundays and from 02:00 to 03:00"),
        ((), (3, 8), "at 2 times of the day"),
        ((), (3,), "at 03:00"),
        ((), (), ""),
    ],
)
def test_words(weekdays: tuple[int, ...], hours: tuple[int, ...], words: str) -> None:
    assert without(series(42), weekdays, hours) == words


def test_times_of_the_week_and_an_offset_are_named() -> None:
    shop = series(42, utc=True)
    shop.values[5 * 24 + 14 :: 7 * 24] = np.nan  # Saturdays at two
    assert empty_times_text(shop, 24) == "at 1 time of the week (UTC)"


def test_without_a_clock_places_in_the_period_and_in_seven_count() -> None:
    values = np.tile([1.0, 1, 1, np.nan], 40)
    client = ClientSeries("a", values[2:], start=2)
    assert is_empty_time(client, np.array([160, 163, 167]), 4).tolist() == [False, True, True]
    assert empty_times_text(client, 4) == "at 7 of the 28 steps of 7 periods"


def test_gaps_by_chance_and_long_gaps_are_no_empty_times() -> None:
    """With half of the values missing, 168 hours are bound to hold some without five in a row."""
    halved = series(7 * 6)
    halved.values[np.random.default_rng(0).random(len(halved.values)) < 0.5] = np.nan
    long_gap = series(60)
    long_gap.values[200:900] = np.nan
    assert empty_times_text(halved, 24) == empty_times_text(long_gap, 24) == ""


@pytest.mark.parametrize("values", [np.empty(0), np.full(500, np.nan)])
def test_a_series_without_any_value_says_nothing(values: np.ndarray) -> None:
    client = ClientSeries("a", values, clock=series(1).clock)
    assert not is_empty_time(client, np.arange(30), 24).any()
