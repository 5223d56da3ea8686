"""Simulated vehicles: physics by hand, and windows that are the same for the same seed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.electric_vehicles import (
    FEATURES,
    GRAVITY,
    JOULES_PER_KWH,
    KINDS,
    ROTATING,
    Drive,
    Road,
    Terrain,
    Vehicle,
    Weather,
    battery_level,
    battery_power,
    charged_at_home,
    drive_along,
    load,
    new_vehicle,
    trips,
)
from fedproto_app.core.errors import DataError
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import DataSettings, SequenceSettings, SyntheticSettings

# Columns of a window.
TEMPERATURE, SPEED, LIMIT, KIND = 3, 4, 5, 7


def vehicle(number: int = 0, seed: int = 0) -> Vehicle:
    return new_vehicle(number, Terrain(seed), np.random.default_rng([seed, number]))


@cache
def pool(clients: int = 12, seed: int = 0, window: int = 100, stride: int = 100) -> SequencePool:
    return load(
        DataSettings(
            synthetic=SyntheticSettings(clients=clients, seed=seed),
            sequences=SequenceSettings(window=window, stride=stride),
        )
    )


def test_windows_have_their_shape_and_values_their_ranges() -> None:
    cars = pool()
    assert (cars.dimensions, len(FEATURES), cars.classes) == (FEATURES, 8, ())
    assert cars.clients is not None
    assert len(cars.sequences) == len(cars.targets) == len(cars.clients)
    assert {(window.dtype, window.shape) for window in cars.sequences} == {
        (np.dtype("float32"), (100, 8))
    }
    steps = np.concatenate(cars.sequences)
    ranges = ((47, 49), (10, 12), (0, 2500), (-35, 45), (0, 60), (0, 60), (-3, 3), (0, 3))
    for values, (low, high) in zip(steps.T, ranges, strict=True):
        assert low <= values.min() <= values.max() <= high
    assert 0 <= cars.targets.min() <= cars.targets.max() <= 100
    assert (steps[:, SPEED] <= 1.25 * steps[:, LIMIT]).mean() > 0.95  # all keep nearly to it


def test_kinds_take_turns_and_are_the_groups() -> None:
    cars = pool()
    assert list(cars.groups)[:2] == ["vehicle-00", "vehicle-01"]
    assert list(cars.groups.values()) == [kind.name for kind in KINDS] * 3
    assert cars.clients is not None
    for name, window in zip(cars.clients, cars.sequences, strict=True):
        assert KINDS[int(window[0, KIND])].name == cars.groups[str(name)]


def test_window_and_stride_follow_the_settings() -> None:
    """Overlapping windows show the same steps, and the target belongs to the last of them."""
    cars = pool(clients=1, window=60, stride=20)
    first, second = cars.sequences[:2]
    assert first.shape == (60, 8)
    np.testing.assert_array_equal(first[20:], second[:40])
    shifted = pool(clients=1, window=80, stride=20)
    np.testing.assert_array_equal(shifted.sequences[0][:60], first)
    assert shifted.targets[0] == cars.targets[1]


def test_a_window_longer_than_any_trip_is_refused() -> None:
    with pytest.raises(DataError, match=r"data.sequences.window = 90000.*vehicle-00"):
        pool(window=90000)


def test_a_vehicle_depends_on_the_seed_and_not_on_the_number_of_vehicles() -> None:
    first, fewer, other_seed = pool(), pool(clients=2), pool(seed=1)
    np.testing.assert_array_equal(fewer.targets, first.targets[: len(fewer.targets)])
    for window, repeated_window in zip(fewer.sequences, first.sequences, strict=False):
        np.testing.assert_array_equal(window, repeated_window)
    assert not np.array_equal(first.sequences[0], other_seed.sequences[0])


def test_a_trip_begins_where_the_last_one_ended_and_with_its_charge() -> None:
    """Unless charged: at home, after every second trip, or below the reserve. On the way home the
    charge equals the charge of the way there."""
    weather, car = Weather(0), replace(vehicle(1), charger=50.0, plug_in_below=100.0)
    journey = list(islice(trips(car, weather, np.random.default_rng(0)), 20))
    for (outward, level), (back, later) in zip(journey[::2], journey[1::2], strict=True):
        assert level[0] == pytest.approx(car.charge_to, abs=0.1)  # as after every night
        assert later[0] == pytest.approx(level[-1], abs=0.1)
        np.testing.assert_allclose(back[0, :3], outward[-1, :3], rtol=1e-4)
        np.testing.assert_allclose(back[-1, :3], outward[0, :3], rtol=1e-4)


def test_the_hours_pass_while_a_vehicle_drives_and_stays() -> None:
    """The way home begins later, by the trip and the stay: the afternoon shows in the weather."""
    car, weather = vehicle(1), Weather(0)
    weather.temperature = lambda hours, elevation: hours  # type: ignore[method-assign]
    journey = [steps for steps, _ in islice(trips(car, weather, np.random.default_rng(0)), 12)]
    for outward, back in zip(journey[::2], journey[1::2], strict=True):
        stay = back[0, TEMPERATURE] - outward[-1, TEMPERATURE]
        assert car.kind.stay[0] - 0.01 <= stay <= car.kind.stay[1] + 0.01
        took = outward[-1, TEMPERATURE] - outward[0, TEMPERATURE]
        assert took == pytest.approx(len(outward) / 3600, abs=0.01)


def idealised(number: int = 0, **changes: float) -> Vehicle:
    """Return a vehicle without friction and aids, which pays for motion and height alone."""
    usual = vehicle(number)
    kind = replace(usual.kind, drag_area=0.0, rolling=0.0, auxiliary=0.0, heating=0.0)
    return replace(usual, kind=kind, **changes)  # type: ignore[arg-type]


def straight(metres: int, rise: float = 0.0) -> Road:
    """Return a road of 15 m/s without stops and with a steady slope, `rise` metres in all."""
    points = metres // 10 + 1
    return Road(
        latitude=np.linspace(48, 48.1, points),
        longitude=np.full(points, 11.0),
        elevation=np.linspace(500, 500 + rise, points),
        limit=np.full(points, 15.0),
        stop_chance=np.zeros(points),
    )


def kilowatt_hours(car: Vehicle, drive: Drive, celsius: float = 20.0) -> float:
    power = battery_power(car, drive, np.full(len(drive.speed), celsius))
    return float(power.sum() / JOULES_PER_KWH)


def test_a_drive_keeps_limits_and_acceleration_and_stops_at_both_ends() -> None:
    car = vehicle()
    for road in car.roads:
        drive = drive_along(road, car, np.random.default_rng(0))
        assert drive.speed[0] == 0
        assert drive.speed[-1] <= car.kind.acceleration
        assert np.abs(drive.acceleration).max() <= car.kind.acceleration + 1e-9
        assert drive.speed.max() <= car.kind.top_speed
        metres = 10 * (len(road.limit) - 1)
        assert (drive.speed + drive.acceleration / 2).sum() == pytest.approx(metres, rel=0.01)


def test_a_drive_by_hand() -> None:
    """1 km at 15 m/s with 1.6 m/s²: 9.4 s to get there, 9.4 s to stop, 859.4 m between."""
    car = replace(vehicle(), haste=1.0)
    drives = [drive_along(straight(1000), car, np.random.default_rng(s)) for s in range(40)]
    seconds = np.mean([len(drive.speed) for drive in drives])
    assert seconds == pytest.approx(2 * 15 / 1.6 + (1000 - 15**2 / 1.6) / 15, abs=1.5)


def test_the_work_of_a_slope_is_the_gain_in_height() -> None:
    car = idealised(efficiency=1.0, recovery=1.0)
    drive = drive_along(straight(5000, 200), car, np.random.default_rng(1))
    height = drive.elevation[-1] - drive.elevation[0]
    energy = car.mass * (GRAVITY * height + ROTATING * drive.speed[-1] ** 2 / 2)
    assert kilowatt_hours(car, drive) == pytest.approx(energy / JOULES_PER_KWH, rel=1e-9)


@given(
    number=st.integers(0, 7),
    efficiency=st.floats(0.5, 1),
    recovery=st.floats(0, 1),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_there_and_back_never_gives_energy(
    number: int, efficiency: float, recovery: float, seed: int
) -> None:
    """Not even without any friction."""
    car = idealised(number, efficiency=efficiency, recovery=recovery)
    rng = np.random.default_rng(seed)
    outward = drive_along(car.roads[0], car, rng)
    back = drive_along(car.roads[0].back(), car, rng)
    outward, back = (_to_standstill(drive) for drive in (outward, back))
    slack = 2 * car.mass * GRAVITY * 0.5 / JOULES_PER_KWH  # the last metre may be missing
    assert kilowatt_hours(car, outward) + kilowatt_hours(car, back) >= -slack
    if efficiency < 0.95 and recovery < 0.9:
        assert kilowatt_hours(car, outward) + kilowatt_hours(car, back) > 0


def _to_standstill(drive: Drive) -> Drive:
    speed = drive.speed.copy()
    speed[-1] = 0
    return replace(drive, speed=speed, acceleration=np.diff(speed, append=0.0))


def test_the_level_falls_by_the_energy_over_the_capacity() -> None:
    car = vehicle()
    drive = drive_along(car.roads[0], car, np.random.default_rng(0))
    level = battery_level(car, drive, np.full(len(drive.speed), 5.0), 90.0)
    used = kilowatt_hours(car, drive, 5.0)
    assert level[-1] == pytest.approx(90 - 100 * used / car.capacity)


def test_home_charging_by_hand() -> None:
    """3 kW into 20 kWh are 15 % an hour, up to 80 %."""
    car = replace(vehicle(), capacity=20.0, charger=3.0, charge_to=80.0, plug_in_below=60.0)
    assert charged_at_home(car, 40, hours=2) == 70
    assert charged_at_home(car, 40, hours=5) == 80
    assert charged_at_home(car, 60, hours=5) == 60  # the owner sees no need
    eager = replace(car, plug_in_below=100.0)
    assert charged_at_home(eager, 90, hours=5) == 90  # no charger takes anything out


def test_a_full_battery_gains_nothing_from_braking() -> None:
    """Downhill and up again: at 100 % the way down gains nothing, at 80 % it does."""
    car = vehicle()
    rng = np.random.default_rng(0)
    down, up = (drive_along(straight(3000, rise), car, rng) for rise in (-250, 250))
    round_trip = Drive(
        **{
            name: np.concatenate([getattr(down, name), getattr(up, name)])
            for name in Drive.__dataclass_fields__
        }
    )
    warm = np.full(len(round_trip.speed), 20.0)
    full, partly = (battery_level(car, round_trip, warm, charge) for charge in (100, 80))
    assert full.max() <= 100
    assert partly.max() > 81
    assert full[-1] - 100 < partly[-1] - 80 - 1
