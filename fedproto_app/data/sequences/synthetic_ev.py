"""The embedded set of electric vehicles: windows of drives, and the battery's charge at their end.

The real set is SUMO's (Krajzewicz et al. 2012), which is not public. Here a vehicle of one of four
kinds lives at a home of its own in one hilly region. It goes out and back again along the same few
roads, day by day, and is plugged in at home, as its owner is used to. So where a vehicle is, which
way it goes and how warm it is say how far it has come since it was charged. What that means in per
cent is its own matter: battery, age, home, charger, habits.

Every vehicle draws from (seed, vehicle) and the hills from the seed, so a vehicle is the same
however many others there are. One step is one second.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedproto_app.core.errors import DataError
from fedproto_app.core.randomness import numpy_stream
from fedproto_app.data.sequences.electric_vehicle import (
    GRID,
    KINDS,
    Drive,
    Kind,
    Road,
    Vector,
    Vehicle,
    battery_level,
    charged_at_home,
    drive_along,
)
from fedproto_app.data.sequences.pool import SequencePool
from fedproto_app.settings import DataSettings

FEATURES = (
    "latitude", "longitude", "elevation", "temperature",
    "speed", "maximum speed", "acceleration", "vehicle type",
)  # fmt: skip
DECIMALS = 6  # so that the last bit of a machine's exp() does not matter
LATITUDE, LONGITUDE = 48.0, 11.0  # of the region's middle
KM_PER_DEGREE = 111.2
RESERVE, FAST_CHARGE = 25.0, 80.0  # %: below the first at a trip's end one stops to charge
PATIENCE = 20  # trips until the first that is as long as a window


class Terrain:
    """Smooth hills around the region's middle."""

    def __init__(self, seed: int) -> None:
        rng = numpy_stream(seed, "terrain")
        self.centres = rng.uniform(-45, 45, (40, 2))
        self.widths = rng.uniform(2.5, 8, 40)
        self.heights = rng.uniform(-120, 220, 40)

    def elevation(self, east: Vector, north: Vector) -> Vector:
        """[P] metres above the sea, at these kilometres from the middle."""
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
        """[T] °C, at hours since the year began; 6.5 K less a kilometre up."""
        season = 9 - 10 * np.cos(2 * np.pi * (hours / 24 - 20) / 365)
        of_the_day = -4 * np.cos(2 * np.pi * (hours - 4) / 24)
        spell = np.interp(hours / 24, np.arange(len(self.daily)), self.daily)
        celsius: Vector = season + of_the_day + spell - 0.0065 * (elevation - 500)
        return celsius


def synthetic_ev(settings: DataSettings) -> SequencePool:
    """Windows of ``data.sequences.window`` seconds; the target is the charge, 0 … 100 %.

    The vehicles have from a third to three and a half times ``data.synthetic.windows`` windows. The
    group of a vehicle is its kind. Raises `DataError` where no trip is as long as a window.
    """
    synthetic = settings.synthetic
    terrain, weather = Terrain(synthetic.seed), Weather(synthetic.seed)
    vehicles, sequences, targets, counts = [], [], [], []
    for number in range(synthetic.clients):
        rng = numpy_stream(synthetic.seed, "vehicle", number)
        vehicle = new_vehicle(number, terrain, rng)
        wanted = max(1, round(synthetic.windows * np.exp(rng.uniform(np.log(0.33), np.log(3.5)))))
        windows, charges = _recorded(vehicle, wanted, weather, settings, rng)
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
    """A vehicle with its home, roads and habits; kinds take turns."""
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
    """A winding road to a place; slow streets at both ends, faster ones between."""
    from scipy.interpolate import CubicSpline  # slow to import, and seldom used

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
    """[P] m/s, in sections of 0.4 to 2 km: a town's at the ends, a country road's between."""
    edges = np.cumsum(rng.uniform(0.4, 2, int(points[-1] / 0.4) + 1))
    inside = np.minimum(points, points[-1] - points) / 4  # 0 at the ends, 1 from 4 km on
    choice = rng.uniform(0, 1, len(edges) + 1)[np.searchsorted(edges, points)]
    index = np.clip((4.5 * np.minimum(inside, 1) * choice + 0.5).astype(int), 0, 4)
    limits: Vector = np.array([30, 50, 70, 100, 120])[index] / 3.6
    return limits


def _recorded(
    vehicle: Vehicle, wanted: int, weather: Weather, settings: DataSettings, rng: Generator
) -> tuple[list[NDArray[np.float32]], list[float]]:
    """The first `wanted` windows of the vehicle's trips, and the charge at the end of each."""
    length, stride = settings.sequences.window, settings.sequences.stride
    windows: list[NDArray[np.float32]] = []
    charges: list[float] = []
    for number, (steps, level) in enumerate(trips(vehicle, weather, rng)):
        for first in range(0, len(steps) - length + 1, stride):
            windows.append(steps[first : first + length])
            charges.append(float(np.round(level[first + length - 1], DECIMALS)))
        if len(windows) >= wanted:
            break
        if number == PATIENCE and not windows:
            raise DataError(
                f"data.sequences.window = {length}: no trip of {vehicle.name} takes so many seconds"
            )
    return windows[:wanted], charges[:wanted]


def trips(
    vehicle: Vehicle, weather: Weather, rng: Generator
) -> Iterator[tuple[NDArray[np.float32], Vector]]:
    """The vehicle's trips, day after day without end: features [T, 8] and charge [T] in %."""
    kind, charge = vehicle.kind, vehicle.charge_to
    for day in count(vehicle.first_day):
        hour = 24 * day + vehicle.leaves + rng.normal(0, 0.2)
        rounds = int(rng.integers(kind.rounds[0], kind.rounds[1], endpoint=True))
        for left in reversed(range(rounds)):
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
            pause = rng.uniform(*kind.pause) if left else morning - hour
            charge = charged_at_home(vehicle, charge, pause)
            hour += pause


def _steps(drive: Drive, temperature: Vector, kind: int) -> NDArray[np.float32]:
    """[T, 8] the features in their order."""
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
