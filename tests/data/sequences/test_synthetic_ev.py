from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest

from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.electric_vehicle import KINDS
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.data.sequences.synthetic_ev import (
    FEATURES,
    Weather,
    synthetic_ev,
    trips,
)
from fedproto_app.settings import DataSettings, SequenceSettings, SyntheticSettings
from tests.data.sequences.made_vehicles import vehicle

# Columns of a window.
ELEVATION, TEMPERATURE, SPEED, LIMIT, ACCELERATION, KIND = range(2, 8)


@cache
def pool(
    clients: int = 12, windows: int = 30, seed: int = 0, window: int = 100, stride: int = 100
) -> SequencePool:
    return synthetic_ev(
        DataSettings(
            synthetic=SyntheticSettings(clients=clients, windows=windows, seed=seed),
            sequences=SequenceSettings(window=window, stride=stride),
        )
    )


def test_windows_of_the_vehicles() -> None:
    cars = pool()
    assert cars.dimensions == FEATURES
    assert len(FEATURES) == 8
    assert cars.classes == ()
    assert cars.targets.dtype == np.float64
    assert cars.clients is not None
    assert len(cars.sequences) == len(cars.targets) == len(cars.clients)
    for window in cars.sequences:
        assert window.dtype == np.float32
        assert window.shape == (100, 8)
        assert np.isfinite(window).all()


def test_values_stay_in_their_ranges() -> None:
    cars = pool()
    steps = np.concatenate(cars.sequences)
    assert cars.targets.min() >= 0
    assert cars.targets.max() <= 100
    assert np.abs(steps[:, :2] - (48, 11)).max() < 1
    assert steps[:, ELEVATION].min() > 0
    assert steps[:, ELEVATION].max() < 2500
    assert steps[:, TEMPERATURE].min() > -35
    assert steps[:, TEMPERATURE].max() < 45
    assert steps[:, SPEED].min() >= 0
    assert (steps[:, SPEED] <= 1.25 * steps[:, LIMIT]).mean() > 0.95  # all keep nearly to it
    assert set(steps[:, KIND]) == set(range(len(KINDS)))


def test_kinds_take_turns_and_are_the_groups() -> None:
    cars = pool()
    assert list(cars.groups)[:2] == ["vehicle-00", "vehicle-01"]
    assert list(cars.groups.values()) == [kind.name for kind in KINDS] * 3
    assert cars.clients is not None
    for name, window in zip(cars.clients, cars.sequences, strict=True):
        assert KINDS[int(window[0, KIND])].name == cars.groups[str(name)]


def test_vehicles_have_very_different_numbers_of_windows() -> None:
    cars = pool(clients=40)
    assert cars.clients is not None
    counts = np.unique(cars.clients, return_counts=True)[1]
    assert len(counts) == 40
    assert 30 * 0.33 - 1 <= counts.min() < 15
    assert 70 < counts.max() <= 30 * 3.5 + 1


def test_more_windows_are_later_ones_of_the_same_drives() -> None:
    few, many = pool(clients=1), pool(clients=1, windows=60)
    assert len(many.targets) == pytest.approx(2 * len(few.targets), abs=1)
    np.testing.assert_array_equal(few.targets, many.targets[: len(few.targets)])


def test_window_and_stride_are_those_of_the_settings() -> None:
    """Overlapping windows show the same steps, and the target belongs to the last of them."""
    cars = pool(clients=1, window=60, stride=20)
    first, second = cars.sequences[:2]
    assert first.shape == (60, 8)
    np.testing.assert_array_equal(first[20:], second[:40])
    shifted = pool(clients=1, window=80, stride=20)
    np.testing.assert_array_equal(shifted.sequences[0][:60], first)
    assert shifted.targets[0] == cars.targets[1]


def test_no_window_goes_over_a_stop_for_the_night() -> None:
    for window in pool().sequences:
        moved = np.abs(np.diff(window[:, :2].astype(np.float64), axis=0)).max()
        assert moved < 0.001  # degrees in a second: 100 m


def test_a_window_longer_than_any_trip_is_refused() -> None:
    with pytest.raises(DataError, match=r"data.sequences.window = 90000.*vehicle-00"):
        pool(window=90000)


def test_a_seed_is_a_data_set() -> None:
    first, again, other = pool(), pool.__wrapped__(), pool(seed=1)
    np.testing.assert_array_equal(first.targets, again.targets)
    for one, same in zip(first.sequences, again.sequences, strict=True):
        np.testing.assert_array_equal(one, same)
    assert not np.array_equal(first.sequences[0], other.sequences[0])


def test_a_vehicle_is_the_same_among_more_vehicles() -> None:
    few, many = pool(clients=2), pool(clients=12)
    np.testing.assert_array_equal(few.targets, many.targets[: len(few.targets)])


def test_a_trip_begins_where_the_last_one_ended_and_with_its_charge() -> None:
    """Unless charged: at home, after every second trip, or below the reserve. On the way home the
    charge is that of the way there."""
    weather, car = Weather(0), replace(vehicle(1), charger=50.0, plug_in_below=100.0)
    journey = list(islice(trips(car, weather, np.random.default_rng(0)), 20))
    for (there, level), (back, later) in zip(journey[::2], journey[1::2], strict=True):
        assert level[0] == pytest.approx(car.charge_to, abs=0.1)  # as after every night
        assert later[0] == pytest.approx(level[-1], abs=0.1)
        np.testing.assert_allclose(back[0, :3], there[-1, :3], rtol=1e-4)
        np.testing.assert_allclose(back[-1, :3], there[0, :3], rtol=1e-4)


def test_an_almost_empty_battery_is_charged_on_the_way() -> None:
    car = replace(vehicle(), charge_to=27.0)
    journey = list(islice(trips(car, Weather(0), np.random.default_rng(0)), 2))
    assert journey[0][1][-1] < 25
    assert journey[1][1][0] == pytest.approx(80, abs=0.1)


def test_days_are_warmer_than_nights_and_summers_than_winters_and_hills_cool() -> None:
    weather, low = Weather(0), np.full(24, 500.0)
    days = np.array([weather.temperature(24 * d + np.arange(24.0), low) for d in range(365)])
    assert days[:, 16].mean() == pytest.approx(days[:, 4].mean() + 8, abs=0.2)
    assert days[185:215].mean() > days[5:35].mean() + 12
    above = weather.temperature(np.arange(24.0), low + 1000)
    np.testing.assert_allclose(above, days[0] - 6.5)


def test_the_hours_pass_while_a_vehicle_drives_and_stays() -> None:
    """The way home begins later, by the trip and the stay: the afternoon shows in the weather."""
    car, weather = vehicle(1), Weather(0)
    weather.temperature = lambda hours, elevation: hours  # type: ignore[method-assign]
    journey = [steps for steps, _ in islice(trips(car, weather, np.random.default_rng(0)), 12)]
    for there, back in zip(journey[::2], journey[1::2], strict=True):
        stay = back[0, TEMPERATURE] - there[-1, TEMPERATURE]
        assert car.kind.stay[0] - 0.01 <= stay <= car.kind.stay[1] + 0.01
        took = there[-1, TEMPERATURE] - there[0, TEMPERATURE]
        assert took == pytest.approx(len(there) / 3600, abs=0.01)


def test_the_charge_is_learned_from_a_vehicles_own_drives_only() -> None:
    """Ridge regression on means, extremes and last values of the features."""
    cars = pool(clients=16, windows=60)
    steps = np.stack(cars.sequences).astype(np.float64)
    rows = np.concatenate([steps.mean(1), steps[:, -1], steps.min(1), steps.max(1)], axis=1)
    test = np.arange(len(rows)) % 4 == 0
    assert cars.clients is not None

    def error(own: np.ndarray, model: np.ndarray) -> float:
        prediction = _ridge(rows[model & ~test], cars.targets[model & ~test], rows[own & test])
        return float(np.sqrt(np.mean((prediction - cars.targets[own & test]) ** 2)))

    everyone = np.full(len(rows), True)
    whose = [cars.clients == name for name in cars.groups]
    common = np.mean([error(own, everyone) for own in whose])
    personal = np.mean([error(own, own) for own in whose])
    mean_alone = np.mean([cars.targets[own].std() for own in whose])
    assert personal < 0.6 * common
    assert personal < 0.9 * mean_alone


def _ridge(rows: np.ndarray, targets: np.ndarray, asked: np.ndarray) -> np.ndarray:
    mean, scale = rows.mean(axis=0), rows.std(axis=0) + 1e-3
    scaled = (rows - mean) / scale
    gram = scaled.T @ scaled + 1.0 * np.eye(rows.shape[1])
    weights = np.linalg.solve(gram, scaled.T @ (targets - targets.mean()))
    prediction: np.ndarray = (asked - mean) / scale @ weights + targets.mean()
    return prediction
