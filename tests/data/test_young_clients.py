"""A client that is too short to be trained, validated and tested takes part with what it has."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproto_app.data.series import ClientSeries
from fedproto_app.data.windows import (
    cut_of,
    lookback,
    make_windows,
    sample_inputs,
    shortest_length,
    why_refused,
    window_positions,
)
from fedproto_app.settings import DataSettings
from tests.data.test_windows import HOURS, SMALL, inputs_of, series


def test_the_look_back_reaches_before_the_series_by_hand() -> None:
    """Seven of ten values are trained on, one is for validation, two are tested."""
    windows = make_windows(series(np.arange(10)), SMALL)
    assert windows.batches.shape == (2, 4)
    assert windows.train_samples == 8
    first = windows.end - 10 - windows.start  # the sample whose target is v[0]
    assert first == 1
    assert windows.present[:, 0].tolist() == [False, False, *[True] * 9]
    assert (windows.train_end, windows.validation_end, len(windows.targets)) == (8, 9, 11)
    raw = inputs_of(windows).round(4)
    # v[1] knows v[0] alone.
    assert raw[first + 1].tolist() == [0, 0, 0, 0]
    # v[3]: close v[1], v[2], and no earlier value of its phase.
    assert raw[first + 3].tolist() == [1, 2, 0, 0]
    # v[5]: close v[3], v[4], and v[1] for both one and two periods before it.
    assert raw[first + 5].tolist() == [3, 4, 1, 1]
    # v[9]: all values.
    assert raw[first + 9].tolist() == [7, 8, 1, 5]
    assert windows.scale.mean == np.arange(7).mean()
    assert windows.missing_share == 0


@given(length=st.integers(1, 40), place=st.integers(0, 39), lags=st.sampled_from(["", "11"]))
def test_a_place_before_the_series_moves_forward_by_whole_periods(
    length: int, place: int, lags: str
) -> None:
    settings = SMALL.model_copy(update={"lags": lags})
    place = min(place, length)
    values = np.arange(1.0, length + 1)
    begin = 30
    padded = np.concatenate([np.zeros(begin), values])
    first = np.array([begin + place])
    past = sample_inputs(padded, first, first, settings, begin)[0].tolist()
    positions = (window_positions(first, settings)[0] - begin).tolist()
    for number, (position, value) in enumerate(zip(positions, past, strict=True)):
        if place == 0:
            expected = 0.0
        elif position >= 0:
            expected = values[position]
        else:
            same_phase = [p for p in range(position, place, 4) if p >= 0]
            is_close = number < settings.close_window
            expected = values[0 if is_close or not same_phase else same_phase[0]]
        assert value == expected


@pytest.mark.parametrize("horizon", [1, 3, 5])
@pytest.mark.parametrize("length", range(6, 40))
def test_no_train_target_is_later_than_the_train_part(length: int, horizon: int) -> None:
    """Batches are whole periods whose rows have their phase, and the parts share no target."""
    settings = SMALL.model_copy(update={"horizon": horizon, "scale": "0,1"})
    client = series(np.arange(100.0, 100 + length), start=3)
    if (reason := why_refused(client, settings)) is not None:
        assert "fewer than" in reason or "test part" in reason
        return
    windows = make_windows(client, settings)
    assert ((windows.start + windows.batches) % 4 == np.arange(4)).all()
    targets = windows.scale.original(windows.targets).round()

    def times(samples: object) -> set[float]:
        return set(targets[samples][windows.present[samples]])  # type: ignore[index]

    train = times(windows.batches.ravel())
    validation, test = times(windows.validation), times(windows.test)
    assert max(test) == 100 + length - 1
    assert not train & validation
    assert not validation & test
    assert windows.sends == bool(train)
    if train and validation:
        assert max(train) < min(validation)
    if validation:
        assert max(validation) < min(test)


@pytest.mark.parametrize(("days", "trained", "validated"), [(0, 0, 0), (1, 21, 3), (3, 63, 9)])
def test_days_before_the_test_part(days: int, trained: int, validated: int) -> None:
    """An eighth of a newcomer's hours is for validation, and the first value is no target."""
    values = np.random.default_rng(0).normal(size=24 * (days + 10))
    client = ClientSeries("a", values, 24 * (100 - days), clock=HOURS)
    settings = DataSettings(test_start="1970-04-11", scale="0,1")
    windows = make_windows(client, settings)
    assert windows.first_test == 2400
    in_batches = np.zeros(len(windows.targets), dtype=bool)
    in_batches[windows.batches.ravel()] = True
    assert windows.present[in_batches].sum() == max(0, trained - 1)
    assert windows.present[windows.validation].sum() == validated
    assert windows.present[windows.test].sum() == 240 - (days == 0)
    assert windows.sends == (days > 0)
    assert windows.train_samples == (24 * days)


def test_validation_has_a_horizon_or_nothing() -> None:
    values = np.random.default_rng(0).normal(size=24 * 5)
    for days, samples in ((1, 0), (2, 0), (3, 1)):
        client = ClientSeries("a", values, 24 * (100 - days), clock=HOURS)
        settings = DataSettings(test_start="1970-04-11", horizon=24)
        windows = make_windows(client, settings)
        assert len(windows.targets[windows.validation]) == samples
        # A day ahead, the first sample needs a value before it and a day after.
        assert windows.sends == (days > 1)


def test_only_a_client_that_would_be_refused_is_young() -> None:
    length = shortest_length(SMALL)
    client = series(np.arange(length))
    windows = make_windows(client, SMALL)
    assert windows.start == lookback(SMALL)
    gap = series(np.r_[np.arange(8.0), np.full(22, np.nan), np.arange(10.0)])
    assert cut_of(gap, SMALL).is_young  # every target of its train part would be missing


def test_the_scale_is_declared_or_that_of_the_first_period() -> None:
    client = ClientSeries("a", np.arange(50.0, 98), 2400, clock=HOURS)
    settings = DataSettings(test_start="1970-04-11")
    windows = make_windows(client, settings)
    first = np.arange(50.0, 74)
    assert (windows.scale.mean, windows.scale.std) == (first.mean(), first.std())
    assert windows.present[windows.test].sum() == 24  # these values are not tested
    declared = make_windows(client, settings.model_copy(update={"scale": "60,5"}))
    assert (declared.scale.mean, declared.scale.std) == (60, 5)
    assert declared.scale.floor(np.array([1.0])) == -np.inf  # whether it can fall below 0?
    assert declared.present[declared.test].sum() == 47


def test_at_a_site_a_young_client_does_not_send() -> None:
    values = np.random.default_rng(0).normal(size=24 * 5)
    client = ClientSeries("a", values, clock=HOURS)
    windows = make_windows(client, DataSettings(least_periods=7))
    assert not windows.sends
    assert windows.train_samples == 0
    assert make_windows(client, DataSettings()).sends
