"""An electric vehicle: its kind, how it drives along a road, and what that takes from its battery.

One step is one second. A drive obeys limits, stops and the vehicle's own acceleration; the battery
pays for rolling, air, inertia, slope and heating.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Vector = NDArray[np.float64]

GRAVITY, AIR_DENSITY = 9.81, 1.2  # m/s², kg/m³
ROTATING = 1.05  # wheels and motor add to the mass that is to be accelerated
COMFORT = 20.0  # °C, where nobody heats or cools
JOULES_PER_KWH = 3.6e6
GRID = 10.0  # m between the points of a road


@dataclass(frozen=True)
class Kind:
    """What vehicles of one kind share. A pair is a range to draw from."""

    name: str
    mass: float  # kg
    drag_area: float  # m², c_d·A
    rolling: float  # c_rr
    battery: float  # kWh when new
    top_speed: float  # m/s
    acceleration: float  # m/s², and as much when it brakes
    auxiliary: float  # W
    heating: float  # W a kelvin away from comfort
    places: int  # that it drives to
    reach: tuple[float, float]  # km to a place, as the crow flies
    rounds: tuple[int, int]  # a day, there and back
    stay: tuple[float, float]  # hours there
    pause: tuple[float, float]  # hours at home in between
    stops: float  # m from one to the next
    halt: tuple[float, float]  # seconds of a stop
    chargers: tuple[float, ...]  # kW, at home


KINDS = (
    Kind(
        "city-car", mass=1150, drag_area=0.62, rolling=0.010, battery=20, top_speed=36,
        acceleration=1.6, auxiliary=250, heating=60, places=3, reach=(6, 13), rounds=(1, 3),
        stay=(0.5, 3), pause=(0.5, 2), stops=500, halt=(5, 40), chargers=(2.3, 3.7),
    ),
    Kind(
        "sedan", mass=1850, drag_area=0.58, rolling=0.009, battery=52, top_speed=50,
        acceleration=1.8, auxiliary=350, heating=80, places=3, reach=(16, 32), rounds=(1, 2),
        stay=(2, 8), pause=(0.5, 2), stops=1800, halt=(5, 40), chargers=(3.7, 7.4, 11),
    ),
    Kind(
        "van", mass=2800, drag_area=1.25, rolling=0.011, battery=48, top_speed=33,
        acceleration=1.3, auxiliary=350, heating=110, places=2, reach=(11, 20), rounds=(2, 2),
        stay=(0.1, 0.4), pause=(0.7, 1.5), stops=900, halt=(20, 80), chargers=(11, 22),
    ),
    Kind(
        "bus", mass=15000, drag_area=5.0, rolling=0.008, battery=130, top_speed=22,
        acceleration=0.9, auxiliary=2500, heating=450, places=2, reach=(7, 12), rounds=(4, 6),
        stay=(0.1, 0.2), pause=(0.2, 0.4), stops=450, halt=(12, 30), chargers=(50, 100),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Road:
    """From home to a place: [P] points GRID metres apart; limit in m/s, place in degrees."""

    latitude: Vector
    longitude: Vector
    elevation: Vector
    limit: Vector
    stop_chance: Vector

    def back(self) -> Road:
        """The same road the other way."""
        return Road(
            self.latitude[::-1],
            self.longitude[::-1],
            self.elevation[::-1],
            self.limit[::-1],
            self.stop_chance[::-1],
        )


@dataclass(frozen=True)
class Vehicle:
    """One vehicle and the habits of who drives it."""

    name: str
    kind: Kind
    capacity: float  # kWh, of the battery at its age
    mass: float  # kg with its load
    efficiency: float  # from battery to wheel
    recovery: float  # from wheel to battery, when it brakes
    haste: float  # its speed over the limit's
    roads: tuple[Road, ...]
    favourite: float  # chance of the first road
    leaves: float  # hour of the day
    charger: float  # kW
    charge_to: float  # %
    plug_in_below: float  # %; 100 = whenever it is at home
    first_day: int  # of the year, on which the recording begins


@dataclass(frozen=True)
class Drive:
    """One trip, second by second: [T] each."""

    latitude: Vector
    longitude: Vector
    elevation: Vector  # m
    limit: Vector  # m/s, what road and vehicle allow
    speed: Vector  # m/s
    acceleration: Vector  # m/s²


def drive_along(road: Road, vehicle: Vehicle, rng: Generator) -> Drive:
    """Drive from standstill to standstill, as fast as limits, stops and the vehicle allow.

    Along the road v² changes by 2·a·distance at most: so it is the lowest of the cones that stand
    on all limits and stops, which a running minimum finds from either side.
    """
    limit = np.minimum(road.limit, vehicle.kind.top_speed)
    stops = rng.random(len(limit)) < road.stop_chance
    stops[[0, -1]] = True
    flow = vehicle.haste * np.exp(rng.normal(0, 0.04))  # traffic differs from trip to trip
    highest = np.where(stops, 0.0, np.minimum(limit * flow, vehicle.kind.top_speed)) ** 2
    rise = 2 * vehicle.kind.acceleration * GRID * np.arange(len(limit))
    from_behind = np.minimum.accumulate(highest - rise) + rise
    from_ahead = (np.minimum.accumulate((highest - rise[::-1])[::-1]) + rise)[::-1]
    pace = np.sqrt(np.maximum(np.minimum(from_behind, from_ahead), 0))

    waits = np.where(stops, rng.uniform(*vehicle.kind.halt, len(limit)), 0.0)
    waits[[0, -1]] = 0
    seconds = 2 * GRID / (pace[1:] + pace[:-1])  # of steady acceleration over a cell
    leaving = np.concatenate([[0], np.cumsum(seconds + waits[1:])])
    moments = np.stack([leaving - waits, leaving], axis=1).ravel()  # arrive, leave
    now = np.arange(0, leaving[-1])
    speed = np.interp(now, moments, pace.repeat(2))
    at = np.interp(now, moments, np.arange(len(limit)).repeat(2))
    points = np.arange(len(limit))
    return Drive(
        latitude=np.interp(at, points, road.latitude),
        longitude=np.interp(at, points, road.longitude),
        elevation=np.interp(at, points, road.elevation),
        limit=limit[at.astype(int)],
        speed=speed,
        acceleration=np.diff(speed, append=speed[-1]),
    )


def battery_power(vehicle: Vehicle, drive: Drive, temperature: Vector) -> Vector:
    """[T] W drawn from the battery; negative where braking gives more than all else takes."""
    kind = vehicle.kind
    # Mean speed of the second: so that the work of inertia is just the gain in kinetic energy.
    speed = drive.speed + drive.acceleration / 2
    climb = np.diff(drive.elevation, append=drive.elevation[-1])  # m/s
    wheels = (
        kind.rolling * vehicle.mass * GRAVITY * speed
        + 0.5 * AIR_DENSITY * kind.drag_area * speed**3
        + ROTATING * vehicle.mass * drive.acceleration * speed
        + vehicle.mass * GRAVITY * climb
    )
    drawn = np.where(wheels > 0, wheels / vehicle.efficiency, wheels * vehicle.recovery)
    power: Vector = drawn + kind.auxiliary + kind.heating * np.abs(temperature - COMFORT)
    return power


def battery_level(vehicle: Vehicle, drive: Drive, temperature: Vector, charge: float) -> Vector:
    """[T] % after each second of a drive that begins with `charge` per cent.

    What braking gives to a full battery is lost.
    """
    used = np.cumsum(battery_power(vehicle, drive, temperature)) / JOULES_PER_KWH
    level = charge - 100 * used / vehicle.capacity
    lost = np.maximum.accumulate(np.maximum(level - 100, 0))
    return np.maximum(level - lost, 0)


def charged_at_home(vehicle: Vehicle, charge: float, hours: float) -> float:
    """The charge (%) after so many hours there, plugged in or not as is the owner's habit."""
    if charge >= vehicle.plug_in_below:
        return charge
    gained = 100 * vehicle.charger * max(hours, 0) / vehicle.capacity
    return max(charge, min(vehicle.charge_to, charge + gained))
