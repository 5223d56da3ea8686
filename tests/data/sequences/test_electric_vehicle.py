from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproto_app.data.sequences.electric_vehicle import (
    GRAVITY,
    JOULES_PER_KWH,
    ROTATING,
    Drive,
    Road,
    Vehicle,
    battery_level,
    battery_power,
    charged_at_home,
    drive_along,
)
from tests.data.sequences.made_vehicles import vehicle


def idealised(number: int = 0, **changes: float) -> Vehicle:
    """A vehicle without friction and aids, which pays for motion and height alone."""
    usual = vehicle(number)
    kind = replace(usual.kind, drag_area=0.0, rolling=0.0, auxiliary=0.0, heating=0.0)
    return replace(usual, kind=kind, **changes)  # type: ignore[arg-type]


def straight(metres: int, rise: float = 0.0, limit: float = 15.0, stops: float = 0.0) -> Road:
    """A road with one limit (m/s) and a steady slope, `rise` metres in all."""
    points = metres // 10 + 1
    chance = np.zeros(points)
    chance[50::50] = stops
    return Road(
        latitude=np.linspace(48, 48.1, points),
        longitude=np.full(points, 11.0),
        elevation=np.linspace(500, 500 + rise, points),
        limit=np.full(points, limit),
        stop_chance=chance,
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


def test_stops_cost_time_and_energy() -> None:
    car, rng = vehicle(), np.random.default_rng(0)
    free, stopped = (drive_along(straight(5000, stops=s), car, rng) for s in (0, 1))
    assert (stopped.speed == 0).sum() > 8 * car.kind.halt[0]
    assert len(stopped.speed) > len(free.speed) + 60
    assert kilowatt_hours(car, stopped) > 1.1 * kilowatt_hours(car, free)


@pytest.mark.parametrize("number", range(4))
def test_uphill_costs_more_than_level_and_that_more_than_downhill(number: int) -> None:
    car = vehicle(number)
    up, level, down = (
        kilowatt_hours(car, drive_along(straight(5000, rise), car, np.random.default_rng(1)))
        for rise in (200, 0, -200)
    )
    assert down < level < up


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
    """Even without any friction; and with no loss at all it costs nothing."""
    car = idealised(number, efficiency=efficiency, recovery=recovery)
    rng = np.random.default_rng(seed)
    there = drive_along(car.roads[0], car, rng)
    back = drive_along(car.roads[0].back(), car, rng)
    there, back = (_to_standstill(drive) for drive in (there, back))
    slack = 2 * car.mass * GRAVITY * 0.5 / JOULES_PER_KWH  # the last metre may be missing
    assert kilowatt_hours(car, there) + kilowatt_hours(car, back) >= -slack
    if efficiency < 0.95 and recovery < 0.9:
        assert kilowatt_hours(car, there) + kilowatt_hours(car, back) > 0


def _to_standstill(drive: Drive) -> Drive:
    speed = drive.speed.copy()
    speed[-1] = 0
    return replace(drive, speed=speed, acceleration=np.diff(speed, append=0.0))


def test_heavier_kinds_need_more_for_a_kilometre() -> None:
    road = straight(8000, stops=0.7)
    usual = []
    for number in range(4):
        cars = [vehicle(number, seed) for seed in range(5)]
        drives = [drive_along(road, car, np.random.default_rng(1)) for car in cars]
        needs = [kilowatt_hours(car, drive) / 8 for car, drive in zip(cars, drives, strict=True)]
        usual.append(np.mean(needs))
    assert usual == sorted(usual)
    assert 0.06 < usual[0] < usual[1] < 0.25  # kWh/km, as such cars do
    assert 0.7 < usual[3] < 2


def test_frost_costs_more_than_a_mild_day() -> None:
    for number in range(4):
        car = vehicle(number)
        drive = drive_along(car.roads[0], car, np.random.default_rng(0))
        frost, mild = kilowatt_hours(car, drive, -10), kilowatt_hours(car, drive, 20)
        heating = 30 * car.kind.heating * len(drive.speed) / JOULES_PER_KWH
        assert frost - mild == pytest.approx(heating)


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


def test_a_full_battery_keeps_nothing_of_what_braking_gives() -> None:
    """Downhill and up again: from 100 % the way down is for nothing, from 80 % it pays."""
    car = vehicle()
    rng = np.random.default_rng(0)
    down, up = (drive_along(straight(3000, rise), car, rng) for rise in (-250, 250))
    both = Drive(
        **{
            name: np.concatenate([getattr(down, name), getattr(up, name)])
            for name in Drive.__dataclass_fields__
        }
    )
    warm = np.full(len(both.speed), 20.0)
    full, some = (battery_level(car, both, warm, charge) for charge in (100, 80))
    assert full.max() <= 100
    assert some.max() > 81
    assert full[-1] - 100 < some[-1] - 80 - 1
