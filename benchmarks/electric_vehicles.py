"""Simulated electric vehicles: windows of drives, and the battery's charge at their end.

    source = "benchmarks.electric_vehicles:load"

Fed-REACT's own recordings are made with SUMO (Krajzewicz et al. 2012) and are not public. Here a
vehicle of one of four kinds lives at a home of its own in one hilly region. It drives there and
back along the same few roads, day by day, and is plugged in at home, as its owner is used to. So
the place, the direction and the temperature say how far a vehicle has come since it was charged.
What that means in per cent depends on the vehicle: battery, age, home, charger, habits.

Every vehicle draws from (seed, vehicle) and the hills from the seed, so a vehicle is the same
for any number of vehicles. One step is one second. A drive obeys limits, stops and the
vehicle's own acceleration. The battery pays for rolling, air, inertia, slope and heating.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import count

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import DataSettings

Vector = NDArray[np.float64]

GRAVITY, AIR_DENSITY = 9.81, 1.2  # m/s², kg/m³
ROTATING = 1.05  # wheels and motor add to the mass that is to be accelerated
COMFORT = 20.0  # °C, where nobody heats or cools
JOULES_PER_KWH = 3.6e6
GRID = 10.0  # m between the points of a road
FEATURES = (
    "latitude", "longitude", "elevation", "temperature",
    "speed", "maximum speed", "acceleration", "vehicle type",
)  # fmt: skip
WINDOWS = 60  # of a vehicle, the geometric mean
DECIMALS = 6  # so that the last bit of a machine's exp() does not matter
LATITUDE, LONGITUDE = 48.0, 11.0  # of the region's middle
KM_PER_DEGREE = 111.2
RESERVE, FAST_CHARGE = 25.0, 80.0  # %: below the first at a trip's end one stops to charge
PATIENCE = 20  # trips until the first that is as long as a window


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
    """From home to a place: [P] points GRID metres apart. limit in m/s, place in degrees."""

    latitude: Vector
    longitude: Vector
    elevation: Vector
    limit: Vector
    stop_chance: Vector

    def back(self) -> Road:
        """Return the same road in the other direction."""
        return Road(*(getattr(self, axis.name)[::-1] for axis in fields(self)))


@dataclass(frozen=True)
class Vehicle:
    """A vehicle and its driver's habits."""

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


class Terrain:
    """Smooth hills around the region's middle."""

    def __init__(self, seed: int) -> None:
        rng = numpy_stream(seed, "terrain")
        self.centres = rng.uniform(-45, 45, (40, 2))
        self.widths = rng.uniform(2.5, 8, 40)
        self.heights = rng.uniform(-120, 220, 40)

    def elevation(self, east: Vector, north: Vector) -> Vector:
        """Return the elevation, [P] in metres, at these kilometres from the middle."""
        across, along = east[:, None] - self.centres[:, 0], north[:, None] - self.centres[:, 1]
        bumps = np.exp(-0.5 * (across**2 + along**2) / self.widths**2)
        metres: Vector = 500 + bumps @ self.heights
        return metres


class Weather:
    """The region's temperature over the year: the same for all vehicles."""

    def __init__(self, seed: int) -> None:
        shocks = numpy_stream(seed, "weather").normal(0, 1.5, 3 * 365)
        self.daily = np.zeros(len(shocks))
        for day in range(1, len(shocks)):
            self.daily[day] = 0.75 * self.daily[day - 1] + shocks[day]

    def temperature(self, hours: Vector, elevation: Vector) -> Vector:
        """Return the temperature, [T] in °C, at hours since the year began, with 6.5 K less per
        km up."""
        season = 9 - 10 * np.cos(2 * np.pi * (hours / 24 - 20) / 365)
        of_the_day = -4 * np.cos(2 * np.pi * (hours - 4) / 24)
        spell = np.interp(hours / 24, np.arange(len(self.daily)), self.daily)
        celsius: Vector = season + of_the_day + spell - 0.0065 * (elevation - 500)
        return celsius


def load(settings: DataSettings) -> SequencePool:
    """Yield windows of ``data.sequences.window`` seconds. The target is the charge, 0 … 100 %.

    ``data.synthetic.clients`` vehicles have from a third to three and a half times `WINDOWS`
    windows each. The group of a vehicle is its kind. Raises `DataError` if no trip is as long as
    a window.
    """
    synthetic = settings.synthetic
    terrain, weather = Terrain(synthetic.seed), Weather(synthetic.seed)
    vehicles, sequences, targets, counts = [], [], [], []
    for number in range(synthetic.clients):
        rng = numpy_stream(synthetic.seed, "vehicle", number)
        vehicle = new_vehicle(number, terrain, rng)
        number_of_windows = max(1, round(WINDOWS * np.exp(rng.uniform(np.log(0.33), np.log(3.5)))))
        windows, charges = _recorded(vehicle, number_of_windows, weather, settings, rng)
        vehicles.append(vehicle)
        sequences += windows
        targets += charges
        counts.append(len(windows))
    names = np.array([vehicle.name for vehicle in vehicles])
    return SequencePool(
        dimensions=FEATURES,
        classes=(),
        sequences=sequences,
        targets=np.array(targets, dtype=np.float64),
        clients=names.repeat(counts),
        groups={vehicle.name: vehicle.kind.name for vehicle in vehicles},
    )


def new_vehicle(number: int, terrain: Terrain, rng: Generator) -> Vehicle:
    """Return a vehicle with its home, roads and habits. Kinds take turns."""
    kind = KINDS[number % len(KINDS)]
    home = rng.uniform(-12, 12, 2)
    return Vehicle(
        name=f"vehicle-{number:02d}",
        kind=kind,
        capacity=kind.battery * rng.uniform(0.72, 1.0),
        mass=kind.mass * rng.uniform(0.95, 1.2),
        efficiency=rng.uniform(0.82, 0.92),
        recovery=rng.uniform(0.45, 0.75),
        haste=rng.uniform(0.88, 1.08),
        roads=tuple(_road(kind, home, terrain, rng) for _ in range(kind.places)),
        favourite=rng.uniform(0.6, 0.9),
        leaves=rng.uniform(5.5, 9),
        charger=float(rng.choice(kind.chargers)),
        charge_to=float(rng.choice([50, 60, 70, 80, 90, 100])),
        plug_in_below=100.0 if rng.random() < 0.8 else rng.uniform(35, 55),
        first_day=int(rng.integers(365)),
    )


def _road(kind: Kind, home: Vector, terrain: Terrain, rng: Generator) -> Road:
    """Return a winding road to a place, with slow streets at both ends and faster roads between."""
    angle, reach = rng.uniform(0, 2 * np.pi), rng.uniform(*kind.reach)
    ahead = reach * np.array([np.cos(angle), np.sin(angle)])
    aside = np.array([-ahead[1], ahead[0]])
    bends = rng.uniform(-0.15, 0.15, 3)
    corners = home + np.outer([0, 0.25, 0.5, 0.75, 1], ahead) + np.outer([0, *bends, 0], aside)
    curve = CubicSpline(np.linspace(0, 1, 5), corners)(np.linspace(0, 1, 400))
    along = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=1))])
    points = np.arange(0, along[-1], GRID / 1000)
    east, north = (np.interp(points, along, axis) for axis in curve.T)
    stop_chance = np.zeros(len(points))
    gaps = rng.uniform(0.5, 1.5, int(1000 * along[-1] / kind.stops)) * kind.stops / GRID
    stops = np.cumsum(gaps).astype(int)
    stop_chance[stops[stops < len(points) - 10]] = rng.uniform(0.3, 1)
    return Road(
        latitude=LATITUDE + north / KM_PER_DEGREE,
        longitude=LONGITUDE + east / (KM_PER_DEGREE * np.cos(np.radians(LATITUDE))),
        elevation=terrain.elevation(east, north),
        limit=_limits(points, rng),
        stop_chance=stop_chance,
    )


def _limits(points: Vector, rng: Generator) -> Vector:
    """Return limits, [P] in m/s, in sections of 0.4 to 2 km: a town's at the ends, a country
    road's between."""
    edges = np.cumsum(rng.uniform(0.4, 2, int(points[-1] / 0.4) + 1))
    inside = np.minimum(points, points[-1] - points) / 4  # 0 at the ends, 1 from 4 km on
    choice = rng.uniform(0, 1, len(edges) + 1)[np.searchsorted(edges, points)]
    index = np.clip((4.5 * np.minimum(inside, 1) * choice + 0.5).astype(int), 0, 4)
    limits: Vector = np.array([30, 50, 70, 100, 120])[index] / 3.6
    return limits


def _recorded(
    vehicle: Vehicle, limit: int, weather: Weather, settings: DataSettings, rng: Generator
) -> tuple[list[NDArray[np.float32]], list[float]]:
    """Return the first `limit` windows of the vehicle's trips, and the charge after each."""
    length, stride = settings.sequences.window, settings.sequences.stride
    windows: list[NDArray[np.float32]] = []
    charges: list[float] = []
    for number, (steps, level) in enumerate(trips(vehicle, weather, rng)):
        for first in range(0, len(steps) - length + 1, stride):
            windows.append(steps[first : first + length])
            charges.append(float(np.round(level[first + length - 1], DECIMALS)))
        if len(windows) >= limit:
            break
        if number == PATIENCE and not windows:
            raise DataError(
                f"data.sequences.window = {length}: no trip of {vehicle.name} takes so many seconds"
            )
    return windows[:limit], charges[:limit]


def trips(
    vehicle: Vehicle, weather: Weather, rng: Generator
) -> Iterator[tuple[NDArray[np.float32], Vector]]:
    """Yield the vehicle's trips, day after day without end: features [T, 8], charge [T] in %."""
    kind, charge = vehicle.kind, vehicle.charge_to
    for day in count(vehicle.first_day):
        hour = 24 * day + vehicle.leaves + rng.normal(0, 0.2)
        rounds = int(rng.integers(kind.rounds[0], kind.rounds[1], endpoint=True))
        for rounds_left in reversed(range(rounds)):
            favourite = rng.random() < vehicle.favourite
            road = vehicle.roads[0 if favourite else rng.integers(1, len(vehicle.roads))]
            for way in (road, road.back()):
                drive = drive_along(way, vehicle, rng)
                hours = hour + np.arange(len(drive.speed)) / 3600
                temperature = weather.temperature(hours, drive.elevation)
                level = battery_level(vehicle, drive, temperature, charge)
                yield _steps(drive, temperature, KINDS.index(kind)), level
                charge = FAST_CHARGE if level[-1] < RESERVE else float(level[-1])
                hour = hours[-1] + (rng.uniform(*kind.stay) if way is road else 0)
            morning = 24 * (day + 1) + vehicle.leaves
            pause = rng.uniform(*kind.pause) if rounds_left else morning - hour
            charge = charged_at_home(vehicle, charge, pause)
            hour += pause


def _steps(drive: Drive, temperature: Vector, kind: int) -> NDArray[np.float32]:
    """Return the features in their order, [T, 8]."""
    columns = [
        drive.latitude,
        drive.longitude,
        drive.elevation,
        temperature,
        drive.speed,
        drive.limit,
        drive.acceleration,
        np.full(len(drive.speed), float(kind)),
    ]
    return np.round(np.stack(columns, axis=1), DECIMALS).astype(np.float32)


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
    seconds_driven = np.arange(0, leaving[-1])
    speed = np.interp(seconds_driven, moments, pace.repeat(2))
    point = np.interp(seconds_driven, moments, np.arange(len(limit)).repeat(2))
    points = np.arange(len(limit))
    return Drive(
        latitude=np.interp(point, points, road.latitude),
        longitude=np.interp(point, points, road.longitude),
        elevation=np.interp(point, points, road.elevation),
        limit=limit[point.astype(int)],
        speed=speed,
        acceleration=np.diff(speed, append=speed[-1]),
    )


def battery_power(vehicle: Vehicle, drive: Drive, temperature: Vector) -> Vector:
    """Return the battery's power, [T] in W, negative if braking gives more than the rest takes."""
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
    """Return the level, [T] in %, after each second of a drive that begins with `charge` per cent.

    What braking gives to a full battery is lost.
    """
    used = np.cumsum(battery_power(vehicle, drive, temperature)) / JOULES_PER_KWH
    level = charge - 100 * used / vehicle.capacity
    lost = np.maximum.accumulate(np.maximum(level - 100, 0))
    return np.maximum(level - lost, 0)


def charged_at_home(vehicle: Vehicle, charge: float, hours: float) -> float:
    """Return the charge (%) after so many hours at home, plugged in if the owner does so."""
    if charge >= vehicle.plug_in_below:
        return charge
    gained = 100 * vehicle.charger * max(hours, 0) / vehicle.capacity
    return max(charge, min(vehicle.charge_to, charge + gained))
