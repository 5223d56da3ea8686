"""Electric vehicles made for the tests."""

from __future__ import annotations

import numpy as np

from fedproto_app.data.sequences.electric_vehicle import Vehicle
from fedproto_app.data.sequences.synthetic_ev import Terrain, new_vehicle


def vehicle(number: int = 0, seed: int = 0) -> Vehicle:
    return new_vehicle(number, Terrain(seed), np.random.default_rng([seed, number]))
