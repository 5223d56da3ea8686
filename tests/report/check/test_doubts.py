"""Doubts about values: each rule where it holds, and just where it does not."""

from __future__ import annotations

import dataclasses
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedproto_app.data.clock import Clock
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.series import ClientSeries
from fedproto_app.report.check.doubts import (
    codes_in,
    copies_among,
    doubts_about_classes,
    doubts_about_gain,
    doubts_about_sequences,
    doubts_about_series,
    is_counter,
    repeating_part,
    sums_among,
    unit_jump,
    zeros_at_the_ends,
)
from fedproto_app.settings import DataSettings
from tests.helpers.waves import wave

PLAIN = np.arange(10.0, 61.0)  # a range of 50
HOURLY = Clock(np.timedelta64(1, "h"), np.timedelta64(0, "us"))
DAILY = Clock(np.timedelta64(1, "D"), np.timedelta64(0, "us"))


@pytest.mark.parametrize(
    ("more", "codes"),
    [
        ([-999] * 5, [(-999, 5)]),
        ([-999] * 4, []),  # too few
        ([0] * 9, []),  # a zero is a zero
        ([-39] * 5, []),  # below the others by less than their range
        ([-41] * 5, [(-41, 5)]),
        ([999.9] * 6 + [-99] * 5, [(-99, 5), (999.9, 6)]),
        ([-999] * 5 + [-9999] * 7, [(-9999, 7), (-999, 5)]),
        ([900, 1000, 1500] + [2000] * 9, []),  # a limit that high values reach
        ([2_500_000] * 9, []),  # a machine that is on
        ([65535] * 5, [(65535, 5)]),
        ([1e20] * 5, [(1e20, 5)]),
        ([], []),
    ],
)
def test_codes(more: list[float], codes: list[tuple[float, int]]) -> None:
    values = np.concatenate([PLAIN, [np.nan], np.array(more, dtype=float)])
    assert codes_in(values) == codes


@given(st.integers(0, 99))
def test_noise_holds_no_code_and_is_no_counter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for values in (rng.normal(size=300), rng.poisson(2.0, 300).astype(float), rng.pareto(1, 300)):
        assert codes_in(values) == []
        assert not is_counter(values)
        assert zeros_at_the_ends(values, 24) == (0, 0)


def test_counters_rise_with_few_resets_and_not_rarely() -> None:
    rising = np.cumsum(np.random.default_rng(0).uniform(0, 2, 400))
    with_reset = rising.copy()
    with_reset[200:] -= with_reset[200]
    assert is_counter(rising)
    assert is_counter(with_reset)
    assert not is_counter(rising[:100])
    assert not is_counter(np.repeat([1.0, 2.0], 200))  # a single step up
    assert not is_counter(rising % 40)  # it falls once in 40


def test_a_part_that_repeats_is_long_varied_and_without_gaps() -> None:
    noise = np.random.default_rng(0).normal(size=400)

    def copied(count: int) -> NDArray[np.float64]:
        values = noise.copy()
        for place in range(200, 200 + count):
            values[place] = values[place - 24]
        return values

    assert repeating_part(noise, 24)[1] == 0
    assert repeating_part(copied(47), 24)[1] == 0
    assert repeating_part(copied(48), 24) == (200, 48)
    assert repeating_part(copied(48), 25)[1] == 0
    with_gap = copied(100)
    with_gap[230] = np.nan
    assert repeating_part(with_gap, 24)[1] == 0  # the gap also has a copy, at 254
    assert repeating_part(np.tile([1.0, 2.0, 3.0], 100), 24)[1] == 0  # three values, a schedule
    assert repeating_part(np.tile([1.0, 2.0, 3.0, 4.0], 100), 24) == (24, 376)
    assert repeating_part(noise[:20], 24)[1] == 0


def test_filled_weeks_are_named() -> None:
    values = np.random.default_rng(0).normal(size=24 * 40)
    values[24 * 20 : 24 * 23] = values[24 * 13 : 24 * 16]
    client = ClientSeries("site", values, clock=HOURLY)
    [line] = [line for line in doubts_about_series([client], DataSettings()) if "equal" in line]
    assert line.startswith(
        "site has 72 values from 1970-01-21 00:00:00 on that equal those of 7 days earlier: if "
    )
    assert "from step 480 on that equal those of 168 steps earlier" in " ".join(
        doubts_about_series([dataclasses.replace(client, clock=None)], DataSettings())
    )


def test_zeros_at_the_ends_last_longer_than_any_between() -> None:
    day = np.r_[np.zeros(8), np.ones(16)]
    days = np.tile(day, 20)
    assert zeros_at_the_ends(np.r_[np.zeros(48), days], 24) == (56, 0)
    assert zeros_at_the_ends(np.r_[days, np.zeros(48)], 24) == (0, 48)
    assert zeros_at_the_ends(np.r_[np.zeros(39), days], 24) == (0, 0)  # shorter than two days
    closed = np.r_[np.zeros(48), days, np.zeros(30), days]
    assert zeros_at_the_ends(closed, 24) == (0, 0)  # 38 zeros between
    assert zeros_at_the_ends(np.zeros(500), 24) == (0, 0)
    assert zeros_at_the_ends(np.r_[np.zeros(90), 5, np.zeros(20), 5], 24) == (0, 0)  # mostly 0


def test_copies_are_found_at_any_shift_with_few_other_values() -> None:
    rng = np.random.default_rng(1)
    first, second = rng.normal(size=(2, 500)).round(1)
    mended = first.copy()
    mended[::50], mended[7:9] = 0.0, np.nan
    clients = [
        ClientSeries("first", first, start=1000),
        ClientSeries("other", second, start=1000),
        ClientSeries("mended", mended, start=1000),
        ClientSeries("moved", first[100:], start=1000),
        ClientSeries("later", np.r_[second[:200], first[:300]], start=1000),
    ]
    assert copies_among(clients) == [
        ("mended", "first", 0),
        ("moved", "first", -100),
        ("later", "first", 200),
    ]


def test_series_of_hardly_any_values_have_no_copies() -> None:
    rng = np.random.default_rng(2)
    clients = [
        ClientSeries("still", np.ones(300)),
        ClientSeries("still too", np.ones(300)),
        ClientSeries("short", PLAIN[:20]),
        ClientSeries("short too", PLAIN[:20]),
        *(ClientSeries(f"{k}", rng.poisson(1.0, 900).astype(float)) for k in range(20)),
    ]
    assert copies_among(clients) == []


def test_totals_are_found_among_rounded_parts_and_other_totals() -> None:
    rng = np.random.default_rng(3)
    parts = 50 + 5 * rng.normal(size=(5, 300)).round(1)
    west, east = parts[:2].sum(axis=0).round(), parts[2:].sum(axis=0).round()
    west[::40] = np.nan  # rows without all values do not count
    table = {
        "all": west + east,
        "west": west,
        "east": east,
        **dict(zip("abcde", parts, strict=True)),
    }
    clients = [ClientSeries(name, values) for name, values in table.items()]
    assert sums_among(clients) == (
        [("west", ["a", "b"]), ("east", ["c", "d", "e"]), ("all", ["a", "b", "c", "d", "e"])],
        [],
    )
    assert doubts_about_gain(clients)[0].startswith("west is the sum of a, b, and east is the sum")
    mean, noisy = (parts[0] + parts[1]) / 2, west + rng.normal(0, 3, 300)
    not_summed = [ClientSeries("mean", mean), ClientSeries("noisy", noisy), *clients[3:]]
    assert sums_among(not_summed) == ([], [])
    late = ClientSeries("late", parts[0], start=250)
    assert sums_among([*clients, late]) == ([], [])  # too few rows in common


def test_a_series_in_another_unit_is_a_multiple_and_a_similar_one_is_not() -> None:
    rng = np.random.default_rng(4)
    first = wave(24, 300, noise=0.5)
    clients = [
        ClientSeries("kilowatts", first),
        ClientSeries("watts", (1000 * first + 7).round()),
        ClientSeries("same", first),
        ClientSeries("neighbour", 3 * first + rng.normal(0, 0.1, 300)),
    ]
    _, multiples = sums_among(clients)
    assert multiples == [("same", "kilowatts"), ("watts", "kilowatts")]
    same, scaled = doubts_about_gain(clients)  # a copy is named once
    assert same.startswith("same has the values of kilowatts: the gain")
    assert scaled.startswith("watts rises and falls in proportion to kilowatts: these may be")


def test_values_in_another_unit_from_some_time_on_are_found() -> None:
    values = 10 + wave(24, 24 * 10, noise=0.5)
    larger = np.r_[values[:96], 1000 * values[96:]]
    assert unit_jump(larger, 24) == (96, pytest.approx(1000, rel=0.1))
    assert unit_jump(larger[::-1], 24) == (144, pytest.approx(0.001, rel=0.1))
    assert unit_jump(np.r_[values, 1000 * values[:24]], 24) is None  # a single day
    assert unit_jump(np.r_[values, 15 * values], 24) is None
    assert unit_jump(np.r_[np.zeros(96), values], 24) is None  # it began late
    with_gap = larger.copy()
    with_gap[72:150] = np.nan
    assert unit_jump(with_gap, 24) == (144, pytest.approx(1000, rel=0.1))
    [line] = doubts_about_series([ClientSeries("mill", larger, start=7)], DataSettings())[:1]
    assert line.startswith("mill from step 103 on: the values are about 990 times those before")


def test_a_giant_is_named_for_its_size_or_length() -> None:
    small = [ClientSeries(f"{k}", wave(24, 400, noise=0.5, seed=k)) for k in range(5)]
    large = ClientSeries("large", 100 * small[0].values + 7)
    long = ClientSeries("long", wave(24, 9000, noise=0.5))
    [size] = doubts_about_series([*small, large], DataSettings())
    assert size.startswith("large: its values are on average 93 times those of the median client")
    lengths = doubts_about_series([*small, long], DataSettings())
    assert "long: it has 22 times the values of the median client" in lengths[0]
    assert not any(
        "large" in line for line in doubts_about_series([*small[:4], large], DataSettings())
    )


def test_intervals_of_few_days_are_doubted_only_where_a_period_is_a_day() -> None:
    settings = DataSettings()  # of N values after 72, a tenth is validated
    series = ClientSeries("a", wave(24, 72 + 710, noise=0.5), clock=HOURLY)
    [line] = doubts_about_series([series], settings)
    assert line.startswith("a: too little history for 95% intervals")
    assert "a validation part of only 3.0 days" in line
    longer = dataclasses.replace(series, values=wave(24, 72 + 720, noise=0.5))
    daily = dataclasses.replace(series, clock=DAILY)
    without_clock = dataclasses.replace(series, clock=None)
    assert [doubts_about_series([case], settings) for case in (longer, daily, without_clock)] == [
        []
    ] * 3


def test_what_series_lack_is_said_from_a_threshold_on() -> None:
    settings = DataSettings()  # looks back 72 steps
    gappy = wave(24, 400, noise=0.5, seed=4)
    gappy[np.random.default_rng(0).random(400) < 0.4] = np.nan
    gappy[[0, -1]] = 1.0
    series = [
        ClientSeries("whole", wave(24, 400)),
        ClientSeries("fresh", wave(24, 329, noise=0.5, seed=1)),
        ClientSeries("old", wave(24, 328, noise=0.5, seed=2)),
        ClientSeries("short", wave(24, 199, noise=0.5, seed=3), start=201),
        ClientSeries("gappy", gappy),
        ClientSeries("empty", np.empty(0)),
    ]
    lines = doubts_about_series(series, settings)
    assert lines[0].startswith("old: the last value, from which a forecast starts, is up to 72")
    assert lines[1].startswith("short: up to 201 steps shorter")
    assert lines[2].startswith("gappy: up to ")
    assert len(lines) == 3
    assert doubts_about_series(series[:2], settings) == []


def test_names_of_classes_that_look_alike() -> None:
    composed, apart = "Süd", unicodedata.normalize("NFD", "Süd")
    assert doubts_about_classes(["walk", "walks", "unknown"]) == []
    [line] = doubts_about_classes([composed, apart, "a  b", "A b"])
    assert line.endswith(f": {composed!r} and {apart!r}, 'a  b' and 'A b'")


def test_a_sensor_that_never_changes_for_anyone() -> None:
    steps = np.random.default_rng(0).normal(size=(6, 10, 2)).astype(np.float32)
    steps[..., 1] = 3
    pool = SequencePool(("x", "y"), ("a", "b"), list(steps), np.array([0, 1] * 3))
    assert doubts_about_sequences(pool) == ["y never changes: is the sensor dead?"]


def test_axes_and_targets_that_may_not_mean_what_they_seem_to() -> None:
    steps = np.random.default_rng(0).normal(size=(6, 3, 5)).astype(np.float32)
    names = tuple("abcde")
    [line] = doubts_about_sequences(
        SequencePool(names, ("no", "yes"), list(steps), np.arange(6) % 2)
    )
    assert line == "the longest sequence has 3 steps of 5 values: are the two axes swapped?"
    long = [np.repeat(sequence, 2, axis=0) for sequence in steps]
    [line] = doubts_about_sequences(SequencePool(names, (), long, np.array([0.0, 1, 2] * 2)))
    assert line.startswith("the targets are 3 whole numbers, saved as real ones: if they are cl")
    assert doubts_about_sequences(SequencePool(names, (), long, np.linspace(0, 1, 6))) == []
    assert doubts_about_sequences(SequencePool(names, (), long * 10, np.arange(60.0))) == []
