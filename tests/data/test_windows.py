"""Samples against docs/your-data.md, "From series to samples", counted by hand."""

from __future__ import annotations

import math
import re
from datetime import datetime
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import integers
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.data.clock import DAY, Clock
from fedproto_app.data.scale import seasonal_difference
from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import (
    ClientWindows,
    _reached,
    block_of,
    cut_of,
    lookback,
    make_windows,
    sample_inputs,
    shortest_length,
    split_counts,
    start_of_test,
    why_refused,
    window_positions,
)
from fedproto_app.settings import DataSettings

SMALL = DataSettings(period=4, close_window=2, periodic_window=2, lags="")  # looks 8 values back


def series(values: object, start: int = 0, name: str = "a") -> ClientSeries:
    return ClientSeries(name, np.asarray(values, dtype=float), start)


def inputs_of(windows: ClientWindows) -> NDArray[np.float32]:
    """Return the inputs in the data's units."""
    return windows.scale.original(windows.inputs)


def targets_of(windows: ClientWindows) -> NDArray[np.float32]:
    return windows.scale.original(windows.targets)


def test_inputs_are_close_then_periodic_values_oldest_first() -> None:
    windows = make_windows(series(np.arange(40)), SMALL)
    # Sample 0's target is v[8]: close v[6], v[7] and periodic v[0], v[4].
    raw = inputs_of(windows)[[0, 5]]
    np.testing.assert_allclose(raw, [[6, 7, 0, 4], [11, 12, 5, 9]], atol=1e-4)
    np.testing.assert_allclose(targets_of(windows)[:, 0], np.arange(8, 40), atol=1e-4)


def test_split_is_in_time_order_and_trims_the_oldest_train_samples() -> None:
    windows = make_windows(series(np.arange(40)), SMALL)  # 32 samples: 22 train, 3, 7
    assert split_counts(32, SMALL) == (22, 3, 7)
    assert (windows.train_end, windows.validation_end) == (22, 25)
    assert windows.batches.shape == (5, 4)
    assert sorted(windows.batches.ravel()) == list(range(2, 22))
    assert windows.train_samples == 20


def test_scale_comes_from_the_train_part_alone() -> None:
    """So no train sample sees a later value."""
    values = np.random.default_rng(0).normal(size=40)
    scale, trained = make_windows(series(values), SMALL).scale, values[: 8 + 22]
    assert (scale.mean, scale.std) == pytest.approx((trained.mean(), trained.std()))
    changed = values.copy()
    changed[8 + 22 :] += 5
    first, second = (make_windows(series(v), SMALL) for v in (values, changed))
    used = first.batches.ravel()
    np.testing.assert_array_equal(first.inputs[used], second.inputs[used])
    np.testing.assert_array_equal(first.targets[used], second.targets[used])
    # Neither does the temporally shifted view, which mixes in the next sample's window.
    np.testing.assert_array_equal(first.inputs[used + 1], second.inputs[used + 1])


@pytest.mark.parametrize("start", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("length", [37, 38, 39, 40])
def test_row_b_of_every_batch_has_phase_b_of_the_common_clock(start: int, length: int) -> None:
    windows = make_windows(series(np.arange(length) + start, start), SMALL)
    target_clock = start + 8 + windows.batches  # clock position of each sample's target
    assert (target_clock % 4 == np.arange(4)).all()
    for batch in windows.batches:  # and a batch is one run of consecutive samples
        assert sorted(batch) == list(range(min(batch), min(batch) + 4))


def test_a_missing_target_is_masked_and_a_missing_input_carried_forward() -> None:
    values = np.arange(40.0)
    values[20] = np.nan
    windows = make_windows(series(values), SMALL)
    assert not windows.present[12]
    assert windows.present.sum() == 31
    raw = inputs_of(windows)
    # Sample 13 (target v[21]) has close values v[19] and v[20] := v[19]. Sample 16 (target v[24])
    # has v[20] := v[19] as its later periodic value.
    np.testing.assert_allclose(raw[13][:2], [19, 19], atol=1e-4)
    np.testing.assert_allclose(raw[16][3], 19, atol=1e-4)
    assert windows.missing_share == pytest.approx(1 / 40)
    assert np.isfinite([*windows.inputs.ravel(), *windows.targets.ravel()]).all()


@pytest.mark.parametrize("value", [7.0, 0.0, 0.1, 0.3, 1e6 + 0.1])
def test_a_constant_client_has_scale_one(value: float) -> None:
    windows = make_windows(series(np.full(40, value)), SMALL)
    assert windows.scale.mean == pytest.approx(value)
    assert windows.scale.std == 1.0  # 500 times 0.1 has a deviation of 3e-17
    assert abs(windows.targets).max() < 1e-6


def test_the_shortest_usable_length() -> None:
    for settings in (SMALL, DataSettings(), DataSettings(period=288)):
        length = shortest_length(settings)
        assert why_refused(series(np.arange(length)), settings) is None
        assert make_windows(series(np.arange(length)), settings).batches.shape[0] == 1
        more = series(np.arange(shortest_length(settings, 5)))
        assert make_windows(more, settings).batches.shape[0] == 5
        assert not cut_of(series(np.arange(length)), settings).is_young
        assert cut_of(series(np.arange(length - 1)), settings).is_young
        backtest = settings.model_copy(update={"backtest": "1/3"})
        short = series(np.arange(shortest_length(backtest) - 1))
        assert "steps, but a backtest" in str(why_refused(short, backtest))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.full(40, np.nan), "no value is present"),
        ([], "no value is present"),
        ([1, 2], "its first 4 values set its scale, so 0 are left to test; data.scale = "),
        (np.r_[np.arange(32.0), np.full(8, np.nan)], "test part"),
    ],
)
def test_a_client_that_cannot_be_tested_is_refused_by_name(values: object, reason: str) -> None:
    with pytest.raises(DataError, match="client 'bad' refused") as caught:
        make_windows(series(values, name="bad"), SMALL)
    assert reason in str(caught.value)


AHEAD = DataSettings(period=4, close_window=2, periodic_window=2, horizon=3)


def test_several_values_ahead_by_hand() -> None:
    windows = make_windows(series(np.arange(50)), AHEAD)
    # Sample 0's targets are v[8], v[9], v[10]: close v[6], v[7], two periods before each of them
    # v[0], v[1], v[2], and one period before v[4], v[5], v[6].
    np.testing.assert_allclose(inputs_of(windows)[0], [6, 7, 0, 1, 2, 4, 5, 6], atol=1e-4)
    targets = targets_of(windows)
    np.testing.assert_allclose(targets[[0, -1]], [[8, 9, 10], [47, 48, 49]], atol=1e-4)
    # 42 values are forecast: 29 of the train part, 4 of the validation part, 9 of the test part.
    assert (windows.train_end, windows.validation_end) == (29, 33)
    for part, expected in ((windows.validation, range(37, 41)), (windows.test, range(41, 50))):
        assert set(targets[part].ravel().round()) == set(expected)
    assert targets[windows.batches].max() == pytest.approx(36)  # 28 is the last of the train part
    assert windows.batches.shape == (6, 4)  # 27 train samples


def test_targets_beyond_a_period_use_the_newest_known_values_of_their_phase() -> None:
    data = AHEAD.model_copy(update={"horizon": 10, "lags": "6"})
    raw = inputs_of(make_windows(series(np.arange(120)), data))[0]
    # Sample 0's targets are v[8] … v[17]. Two periods before, six steps before, one period before:
    assert raw[2:12].round().tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert raw[12:22].round().tolist() == [2, 3, 4, 5, 6, 7, 4, 5, 6, 7]
    assert raw[22:].round().tolist() == [4, 5, 6, 7, 4, 5, 6, 7, 4, 5]


@given(period=integers(2, 9), horizon=integers(1, 30), lag=integers(0, 20), windows=integers(1, 3))
def test_no_input_is_later_than_the_forecast(
    period: int, horizon: int, lag: int, windows: int
) -> None:
    data = DataSettings.model_construct(
        period=period,
        periodic_window=windows,
        close_window=2,
        horizon=horizon,
        lags=str(lag) if lag >= min(horizon, period) else "",
    )
    positions = window_positions(np.array([0]), data)[0]
    assert positions.max() < 0
    assert positions.min() == -max(lookback(data), *data.further_lags, 0)
    first = lookback(data)
    at_first = np.array([first])
    places = _reached(window_positions(at_first, data), at_first, np.zeros((1, 1), int), data)[0]
    assert places.min() >= 0
    assert places.max() < first
    assert not ((places - positions - first) % period).any()


def test_the_test_part_begins_where_the_settings_say() -> None:
    """Two clients of different length have the same test part: 2000-01-20 00:00 on."""
    data = DataSettings(test_start="2000-01-20", history=3)
    clock = Clock(np.timedelta64(1, "h"), np.timedelta64(30, "m"))
    begin = clock.first_at(datetime(2000, 1, 20))
    assert clock.time(begin) == "2000-01-20 00:30:00"
    for days in (10, 15):
        client = hourly(days + 5, begin - 24 * days, clock)
        windows = make_windows(client, data)
        history = 24 * days - 72  # values after the look-back
        assert windows.validation_end == history
        assert windows.validation_end - windows.train_end == history // 8  # 0.1 / (0.7 + 0.1)
        assert len(windows.targets[windows.test]) == 24 * 5
        assert windows.start + windows.validation_end == begin
        assert windows.train_samples == 3 * 24
    without_clock = hourly(20, clock=None)
    assert make_windows(without_clock, DataSettings(test_start="400")).validation_end == 400 - 72


@pytest.mark.parametrize(
    ("clock", "text", "reason"),
    [
        (None, "2000-01-20", "the source has no times; give the number of a step"),
        (Clock(np.timedelta64(1, "h"), np.timedelta64(0, "h")), "400", "has times; give a time"),
    ],
)
def test_a_test_part_begins_at_a_time_of_the_source(
    clock: Clock | None, text: str, reason: str
) -> None:
    with pytest.raises(DataError, match=f"data.test-start = '{text}': .*{reason}"):
        why_refused(hourly(20, clock=clock), DataSettings(test_start=text))


@pytest.mark.parametrize(
    ("clock", "text", "begin"),
    [
        (Clock(np.timedelta64(1, "M"), np.timedelta64(-1, "D")), "2014-10", "2014-10-31"),
        (Clock(np.timedelta64(3, "M"), np.timedelta64(0, "D"), form="Q"), "2014Q4", "2014Q4"),
        (Clock(np.timedelta64(12, "M"), np.timedelta64(0, "D"), form="Y"), "2014", "2014"),
        (Clock(DAY, 0 * DAY, week="1111100"), "2014-10-04", "2014-10-06"),  # a Saturday
    ],
)
def test_a_test_part_begins_at_a_step_of_the_calendar(clock: Clock, text: str, begin: str) -> None:
    series = ClientSeries("a", np.ones(9), clock=clock)
    assert clock.time(start_of_test(series, DataSettings(test_start=text))) == begin


def test_local_times_of_a_zone_begin_the_test_part() -> None:
    client = hourly(20, clock=Clock(np.timedelta64(1, "h"), np.timedelta64(0, "h"), utc=True))
    data = DataSettings(test_start="1970-01-11T00:00", time_zone="Europe/Berlin")
    assert start_of_test(client, data) == 240 - 1
    written = data.model_copy(update={"test_start": "1970-01-11T00:00+02:00", "time_zone": ""})
    assert start_of_test(client, written) == 240 - 2


@given(period=integers(2, 40), horizon=integers(1, 90), batches=integers(1, 3))
def test_the_shortest_length_is_found_without_counting_up(
    period: int, horizon: int, batches: int
) -> None:
    backtest = ["", "1/3", "3/3"][batches - 1]
    data = DataSettings(
        period=period, horizon=horizon, close_window=1, periodic_window=1, backtest=backtest
    )

    def suffices(values: int) -> bool:
        train, validation, test = split_counts(values, data)
        enough = train - horizon + 1 >= batches * period
        return enough and min(validation, test) >= horizon

    by_counting = next(values for values in count(batches * period) if suffices(values))
    assert shortest_length(data, batches) == lookback(data) + by_counting


def test_the_shortest_length_of_a_huge_horizon_is_told_at_once() -> None:
    assert shortest_length(DataSettings(horizon=10**12)) > 10**13


def test_the_windows_of_a_backtest_share_the_test_part() -> None:
    settings = DataSettings(period=4, close_window=1, periodic_window=1)
    tested: list[list[int]] = []
    for number in range(1, 6):
        data = settings.model_copy(update={"backtest": f"{number}/5"})
        values = np.arange(math.floor(1000 * data.used_share + 1e-9), dtype=float)
        windows = make_windows(series(values), data)
        tested.append(targets_of(windows)[windows.test, 0].round().astype(int).tolist())
        assert len(targets_of(windows)[windows.validation]) == math.floor(0.1 * (len(values) - 4))
    assert [steps[-1] for steps in tested] == [839, 879, 919, 959, 999]
    assert all(len(steps) in (39, 40) for steps in tested)  # so none is in two windows


def test_a_limited_history_is_the_newest_and_sets_the_scale() -> None:
    values = np.random.default_rng(1).normal(size=60) + np.r_[np.zeros(24), np.full(36, 9.0)]
    full = make_windows(series(values), SMALL)
    short = make_windows(series(values), SMALL.model_copy(update={"history": 2}))
    assert len(full.batches) > 2
    np.testing.assert_array_equal(short.batches, full.batches[-2:])
    train = 36  # of the 52 values that are forecast
    trained = values[8 + train - 8 - 8 : 8 + train]  # two periods of targets and their look-back
    assert short.scale.mean == pytest.approx(trained.mean())
    assert short.scale.std == pytest.approx(trained.std())
    older = values.copy()
    older[: 8 + train - 16] = 1e6  # what is forgotten has no part in anything
    changed = make_windows(series(older), SMALL.model_copy(update={"history": 2}))
    used = short.batches.ravel()
    np.testing.assert_array_equal(changed.inputs[used], short.inputs[used])


@pytest.mark.parametrize("beyond", [0, 1, 1000])
def test_a_history_of_all_there_is_or_more_is_none(beyond: int) -> None:
    values = np.random.default_rng(1).normal(size=63)
    values[:8] += 50  # two train values fill no batch, and the look-back is before them
    full = make_windows(series(values), SMALL)
    assert full.train_end % SMALL.period
    history = len(full.batches) + beyond
    long = make_windows(series(values), SMALL.model_copy(update={"history": history}))
    for name in {*vars(full), "inputs"} - {"series", "make_inputs"}:
        np.testing.assert_array_equal(getattr(long, name), getattr(full, name))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, "8 steps (2 periodic values at period 4)"),
        ({"close_window": 17}, "17 steps (data.close-window = 17)"),
    ],
)
def test_the_refusal_of_a_short_series_names_the_look_back(changes: Any, cause: str) -> None:
    small = {"period": 4, "close_window": 2, "periodic_window": 2, "backtest": "1/3"}
    settings = DataSettings(**{**small, **changes})
    with pytest.raises(DataError, match=re.escape(f"a look-back of {cause} need at least")):
        make_windows(series(np.arange(12)), settings)


def test_further_lags_are_sorted_among_the_periodic_values() -> None:
    lagged = DataSettings(period=4, close_window=2, periodic_window=1, lags="9, 3")
    assert lagged.distances == (9, 4, 3)
    inputs = inputs_of(make_windows(series(np.arange(60)), lagged))
    np.testing.assert_allclose(inputs[5], [7, 8, 0, 5, 6], atol=1e-4)  # the target is v[9]


def test_a_lag_before_the_series_is_the_first_value_of_its_phase() -> None:
    lagged = SMALL.model_copy(update={"lags": "9"})
    with_lag, without = (make_windows(series(np.arange(60)), data) for data in (lagged, SMALL))
    np.testing.assert_allclose(inputs_of(with_lag)[:3, 2], [3, 0, 1], atol=1e-4)  # v[-1] is v[3]
    np.testing.assert_array_equal(np.delete(with_lag.inputs, 2, axis=1), without.inputs)
    assert with_lag.validation_end == without.validation_end
    assert shortest_length(lagged) == shortest_length(SMALL)


@pytest.mark.parametrize(
    ("changes", "lags"),
    [
        ({}, (25,)),
        ({"close_window": 25}, ()),  # which has that value
        ({"period": 47}, (48,)),
        ({"period": 48}, ()),
        ({"horizon": 2}, ()),
        ({"calendar": "week"}, (25, 168)),
        ({"calendar": "week", "horizon": 24}, (168,)),
        ({"calendar": "week", "history": 13}, (25,)),
        ({"calendar": "week", "history": 14}, (25, 168)),
        ({"calendar": "week", "lags": ""}, ()),
        ({"lags": "30, 26"}, (30, 26)),
    ],
)
def test_by_default_the_lags_are_those_that_the_periodic_values_lack(
    changes: Any, lags: tuple[int, ...]
) -> None:
    assert DataSettings(**changes).further_lags == lags


def test_times_are_the_phase_and_the_day_of_the_week() -> None:
    week = DataSettings(period=24, calendar="week")
    clock = np.datetime64("2024-03-02T22", "h")  # a Saturday, from which on it counts in hours
    start = int((clock - np.datetime64("1970-01-01T00", "h")) / np.timedelta64(1, "h"))
    positions = start + np.array([0, 1, 2, 26])
    # 1970-01-01 was a Thursday: Saturday is 2, Sunday 3, Monday 4.
    firsts = lookback(week) + np.arange(4)
    inputs = sample_inputs(np.zeros((3, 400)), firsts, positions, week)
    assert inputs.shape == (3, 4, 3 + 5 + 2)
    assert inputs[..., -2:].tolist() == [[[22, 2], [23, 2], [0, 3], [0, 4]]] * 3
    assert sample_inputs(np.zeros(400), firsts, positions, DataSettings()).shape == (4, 3 + 4)
    windows = make_windows(series(np.arange(400), start=5), week)
    np.testing.assert_array_equal(windows.inputs[:3, -2:], [[5, 3], [6, 3], [7, 3]])


def test_the_seasonal_difference_of_six_values_by_hand() -> None:
    """1 2 4 2 3 8 at period 2: |4 − 1|, |2 − 2|, |3 − 4|, |8 − 2|, of mean 10 / 4."""
    values = np.array([1.0, 2, 4, 2, 3, 8])
    assert seasonal_difference(values, 2) == 2.5
    values[1] = np.nan  # 3, 1 and 6 are known
    assert seasonal_difference(values, 2) == pytest.approx(10 / 3)
    assert seasonal_difference(np.tile([0.1, 0.7], 30), 2) == 0
    assert seasonal_difference(np.tile([0.1, 0.1 + 1e-12], 30), 3) == 0  # rounding
    assert seasonal_difference(np.array([1.0, np.nan, np.nan, 2]), 2) == 0
    assert seasonal_difference(np.array([1.0]), 2) == 0


@pytest.mark.parametrize(("changed", "expected"), [(9, 0.0), (10, 0.15)])
def test_a_divisor_that_rests_on_a_few_changes_is_not_used(changed: int, expected: float) -> None:
    values = 3.0 * np.minimum(np.arange(201), changed)  # 200 differences
    assert seasonal_difference(values, 1) == pytest.approx(expected)


def test_the_seasonal_difference_is_of_the_train_part_whatever_the_history() -> None:
    values = np.random.default_rng(2).normal(size=60)
    full = make_windows(series(values), SMALL)
    train = 8 + full.train_end
    expected = abs(values[4:train] - values[: train - 4]).mean()
    assert full.scale.seasonal_difference == pytest.approx(expected)
    short = make_windows(series(values), SMALL.model_copy(update={"history": 2}))
    assert short.scale.seasonal_difference == full.scale.seasonal_difference


# --- blocks of periods ----------------------------------------------------------------------------

WEEKS = DataSettings(least_periods=7)  # blocks of 168 hours
HOURS = Clock(np.timedelta64(1, "h"), np.timedelta64(0, "h"))


def hourly(days: int, start: int = 0, clock: Clock | None = HOURS) -> ClientSeries:
    values = np.random.default_rng(days).normal(size=24 * days)
    return ClientSeries("a", values, start=start, clock=clock)


def part_of(client: ClientSeries, settings: DataSettings) -> tuple[int, int]:
    """Return where the first targets of the train batches lie on the clock: the first, the end."""
    windows = make_windows(client, settings)
    return windows.start + int(windows.batches.min()), windows.start + int(
        windows.batches.max()
    ) + 1


@given(
    st.integers(-500, 500),
    st.integers(30, 60),
    st.floats(0.5, 0.85),
    st.sampled_from([0, 7, 8, 20]),
    st.sampled_from([1, 5, 24]),
    st.sampled_from([3, 40]),
)
def test_whatever_a_run_asks_for_parts_differ_by_whole_blocks(
    start: int, days: int, share: float, history: int, horizon: int, close_window: int
) -> None:
    settings = DataSettings(
        least_periods=7,
        train_share=share,
        history=history,
        horizon=horizon,
        close_window=close_window,
    )
    client = hourly(days, start)
    cut = cut_of(client, settings)
    if not cut.sends or cut.is_young:
        return
    first, end = part_of(client, settings)
    assert (first % 168, end % 168) == (0, 0)
    windows = make_windows(client, settings)
    used = windows.batches
    assert sorted(used.ravel()) == list(range(used.min(), used.max() + 1))  # each sample once
    assert used.max() + horizon <= windows.train_end
    # The blocks alone set the scale, so it says nothing of the values beside them.
    in_blocks = client.values[first - start : end - start]
    assert (windows.scale.mean, windows.scale.std) == (
        pytest.approx(in_blocks.mean()),
        pytest.approx(in_blocks.std()),
    )


def test_the_newest_blocks_by_hand() -> None:
    """42 days: look-back 72, 936 forecast values, 655 to train on, to position 727 of 4 · 168 + 55.

    The first target is at 72, so the first whole block begins at 168.
    """
    assert part_of(hourly(42), WEEKS) == (168, 4 * 168)
    assert part_of(hourly(42), WEEKS.model_copy(update={"history": 13})) == (3 * 168, 4 * 168)
    assert part_of(hourly(42), DataSettings(least_periods=1)) == (72, 720)
    assert part_of(hourly(42), DataSettings(history=1)) == (727 - 24, 727)


@pytest.mark.parametrize(
    ("clock", "block"),
    [
        (HOURS, 168),
        (Clock(np.timedelta64(15, "m"), np.timedelta64(0, "m")), 7 * 96),
        (Clock(np.timedelta64(1, "D"), np.timedelta64(0, "D")), 49),
        (Clock(np.timedelta64(7, "D"), np.timedelta64(0, "D")), 52),
        (Clock(np.timedelta64(28, "D"), np.timedelta64(0, "D")), 13),
        (Clock(np.timedelta64(1, "D"), np.timedelta64(0, "D"), week="1111100"), 35),
        (Clock(np.timedelta64(1, "M"), np.timedelta64(0, "D")), 12),
        (Clock(np.timedelta64(3, "M"), np.timedelta64(0, "D")), 8),
        (Clock(np.timedelta64(12, "M"), np.timedelta64(0, "D")), 7),
        (Clock(np.timedelta64(7, "h"), np.timedelta64(0, "h")), 168),
        (None, 168),
    ],
)
def test_the_length_of_a_block_is_not_the_runs(clock: Clock | None, block: int) -> None:
    client = hourly(42, clock=clock)
    for period in (2, 24, 25):
        assert block_of(client, WEEKS.model_copy(update={"period": period})) == block
    assert block_of(client, DataSettings()) == 0


def test_a_period_must_divide_a_block() -> None:
    refusal = str(why_refused(hourly(42), WEEKS.model_copy(update={"period": 25})))
    assert refusal.startswith("least-periods = 7: ")
    assert "whole blocks of 168 steps, which data.period = 25 does not divide" in refusal


@pytest.mark.parametrize("changes", [{"history": 6}, {"train_share": 0.05}])
def test_a_client_without_a_block_sends_nothing(changes: dict[str, Any]) -> None:
    windows = make_windows(hourly(42), WEEKS.model_copy(update=changes))
    assert not windows.sends
    assert windows.train_samples == 0
    assert windows.batches.size > 0  # its own model may use them


def test_a_block_of_gaps_is_no_block() -> None:
    client = hourly(42)
    client.values[: 4 * 168] = np.nan
    client.values[168 : 168 + 83] = 1.0
    assert not make_windows(client, WEEKS).sends
    client.values[168 + 83] = 2.0
    assert make_windows(client, WEEKS).sends


def test_a_look_back_costs_no_block() -> None:
    """Five years of months from February on have three of look-back, and 70% of the others hold no
    year from January on. 70% of all five hold three, the first without its January."""
    months = Clock(np.timedelta64(1, "M"), np.timedelta64(0, "D"))
    client = ClientSeries("a", np.random.default_rng(0).normal(size=60), 1, clock=months)
    settings = DataSettings(period=12, least_periods=7)
    assert cut_of(client, settings.model_copy(update={"least_periods": 0})).is_young is False
    assert part_of(client, settings) == (0, 36)
